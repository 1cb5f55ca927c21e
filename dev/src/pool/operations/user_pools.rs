//! Operations on user pools.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::Answer;
use crate::pool::bootstrap::REGION;
use crate::pool::context::PoolContext;
use crate::pool::crypto::new_signing_key;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::UserPool;
use crate::random;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PoolRequest {
    pub(super) user_pool_id: String,
}

pub(super) async fn create(context: &PoolContext, request: UserPool) -> Answer {
    if request.name.is_empty() {
        return Err(ApiError::missing("poolName"));
    }
    let pool = create_pool(context, request).await?;
    Ok(json!({"UserPool": {"Id": pool.id, "Name": pool.name}}))
}

/// Creates a pool with an id and a signing key.
pub(crate) async fn create_pool(context: &PoolContext, pool: UserPool) -> ApiResult<UserPool> {
    let pool = UserPool {
        id: format!("{REGION}_{}", random::alphanumeric(9)),
        groups: BTreeSet::new(),
        signing_key: new_signing_key().await?,
        ..pool
    };
    context.store.pools.put(&pool.id, pool.clone()).await?;
    Ok(pool)
}

pub(super) async fn describe(context: &PoolContext, request: PoolRequest) -> Answer {
    let pool = context.pool(&request.user_pool_id)?;
    Ok(json!({"UserPool": {
        "Id": pool.id, "Name": pool.name, "UsernameAttributes": pool.username_attributes,
        "AdminCreateUserConfig": pool.admin_create_user_config,
    }}))
}
