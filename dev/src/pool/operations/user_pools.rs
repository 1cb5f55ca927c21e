//! Operations on user pools.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::Answer;
use crate::pool::config::REGION;
use crate::pool::context::PoolContext;
use crate::pool::crypto::{self, random};
use crate::pool::error::ApiResult;
use crate::pool::model::{PoolSettings, STANDARD_ATTRIBUTES, UserPool};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreatePoolRequest {
    pool_name: String,
    #[serde(default)]
    admin_create_user_config: AdminCreateUserConfig,
    #[serde(default)]
    username_attributes: Vec<String>,
    #[serde(default)]
    schema: Vec<SchemaAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DescribePoolRequest {
    user_pool_id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct AdminCreateUserConfig {
    allow_admin_create_user_only: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SchemaAttribute {
    name: String,
}

pub(super) async fn create(context: &PoolContext, request: CreatePoolRequest) -> Answer {
    let settings = PoolSettings {
        admin_create_only: request
            .admin_create_user_config
            .allow_admin_create_user_only,
        email_usernames: request
            .username_attributes
            .iter()
            .any(|name| name == "email"),
        custom_attributes: custom_attributes(&request.schema),
    };
    let pool = create_pool(context, request.pool_name, settings).await?;
    Ok(json!({"UserPool": {"Id": pool.id, "Name": pool.name}}))
}

/// Creates a pool with its signing key.
pub(crate) async fn create_pool(
    context: &PoolContext,
    name: String,
    settings: PoolSettings,
) -> ApiResult<UserPool> {
    let id = format!("{REGION}_{}", random::alphanumeric(9)?);
    let pool = UserPool {
        id,
        name,
        settings,
        groups: BTreeSet::new(),
        signing_key: crypto::new_signing_key().await?,
    };
    context.keys.add_pool(&pool)?;
    context.store.pools.put(&pool.id, pool.clone()).await?;
    Ok(pool)
}

fn custom_attributes(schema: &[SchemaAttribute]) -> Vec<String> {
    let named = schema
        .iter()
        .map(|attribute| attribute.name.trim_start_matches("custom:"));
    let ours = named.filter(|name| *name != "sub" && !STANDARD_ATTRIBUTES.contains(name));
    ours.map(|name| format!("custom:{name}")).collect()
}

pub(super) async fn describe(context: &PoolContext, request: DescribePoolRequest) -> Answer {
    let pool = context.pool(&request.user_pool_id)?;
    let username_attributes: &[&str] = match pool.settings.email_usernames {
        true => &["email"],
        false => &[],
    };
    Ok(json!({"UserPool": {
        "Id": pool.id, "Name": pool.name, "UsernameAttributes": username_attributes,
        "AdminCreateUserConfig": {"AllowAdminCreateUserOnly": pool.settings.admin_create_only},
    }}))
}
