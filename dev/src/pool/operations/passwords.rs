//! ChangePassword.

use postern_common::Secret;
use serde::Deserialize;
use serde_json::Value;

use super::empty_response;
use crate::pool::context::PoolContext;
use crate::pool::error::ApiError;
use crate::pool::model::User;
use crate::pool::tokens;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ChangePasswordRequest {
    access_token: String,
    previous_password: String,
    proposed_password: String,
}

pub(super) async fn change(
    context: &PoolContext,
    request: ChangePasswordRequest,
) -> Result<Value, ApiError> {
    let (_, user) = tokens::verify(context, &request.access_token)?;
    let pool = context.pool(&user.pool_id)?;
    let previous = Secret::new(request.previous_password);
    let is_match = context
        .hasher
        .verify(&previous, user.password.as_deref())
        .await?;
    if !is_match {
        return Err(ApiError::wrong_password());
    }
    let proposed = request.proposed_password;
    pool.settings.password_policy.check(&proposed)?;
    let hash = context.hasher.hash(&Secret::new(proposed)).await?;
    let change = |user: &mut User| {
        user.set_password(hash);
        Ok(())
    };
    context.update_user(&user, change).await?;
    Ok(empty_response())
}
