//! Operations of a signed-in user on its own account, authorized by an access token.

use serde::Deserialize;
use serde_json::json;

use super::{Answer, empty_response};
use crate::pool::context::PoolContext;
use crate::pool::tokens;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AccessTokenRequest {
    access_token: String,
}

pub(super) async fn get(context: &PoolContext, request: AccessTokenRequest) -> Answer {
    let (token, user) = tokens::verify(context, &request.access_token)?;
    let (client, _) = context.client(&token.client_id)?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|name| client.may_read(name)),
    }))
}

pub(super) async fn delete(context: &PoolContext, request: AccessTokenRequest) -> Answer {
    let (_, user) = tokens::verify(context, &request.access_token)?;
    context.store.users.take(&user.id()).await?;
    Ok(empty_response())
}
