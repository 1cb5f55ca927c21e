//! Operations of a signed-in user on its own account, authorized by an access token.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{OperationCall, empty_response};
use crate::pool::error::ApiError;
use crate::pool::model::{AppClient, User};
use crate::pool::tokens;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AccessTokenRequest {
    access_token: String,
}

/// Returns the user and the client of an access token.
async fn token_owner(
    call: &OperationCall<'_>,
    access_token: &str,
) -> Result<(User, Arc<AppClient>), ApiError> {
    let (token, pool_id) = tokens::verify(call.context, access_token).await?;
    let client = call
        .context
        .directory
        .client_of(&pool_id, &token.client_id)?;
    call.record_client(&client);
    let user = call.context.find_user(&pool_id, &token.username).await?;
    call.record_user(&user);
    if !user.is_enabled() {
        return Err(ApiError::user_disabled());
    }
    Ok((user, client))
}

pub(super) async fn get(
    call: &OperationCall<'_>,
    request: AccessTokenRequest,
) -> Result<Value, ApiError> {
    let (user, client) = token_owner(call, &request.access_token).await?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|name| client.may_read(name)),
    }))
}

pub(super) async fn sign_out(
    call: &OperationCall<'_>,
    request: AccessTokenRequest,
) -> Result<Value, ApiError> {
    let (user, _) = token_owner(call, &request.access_token).await?;
    call.context
        .store
        .revoke_user(&user.pool_id, &user.username, call.context.clock.now())
        .await?;
    Ok(empty_response())
}
