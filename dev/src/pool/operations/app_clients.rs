//! Operations on app clients.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Answer;
use crate::pool::context::{PoolContext, not_found};
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, UserPool};
use crate::pool::tokens::{REFRESH_TOKEN_S, TOKEN_S};
use crate::random;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreateClientRequest {
    #[serde(default)]
    generate_secret: bool,
    #[serde(flatten)]
    client: AppClient,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ClientRequest {
    user_pool_id: String,
    client_id: String,
}

pub(super) async fn create(context: &PoolContext, request: CreateClientRequest) -> Answer {
    let client = request.client;
    let pool = context.pool(&client.user_pool_id)?;
    let mut flows = client.explicit_auth_flows.iter();
    if client.rotation_grace_s().is_some() && flows.any(|flow| flow == "ALLOW_REFRESH_TOKEN_AUTH") {
        return Err(ApiError::invalid(
            "Refresh token rotation cannot be enabled with ALLOW_REFRESH_TOKEN_AUTH",
        ));
    }
    let client = create_client(context, request.generate_secret, client).await?;
    Ok(describe_client(context, &client, &pool))
}

/// Creates an app client with an id, and a secret if wanted.
pub(crate) async fn create_client(
    context: &PoolContext,
    has_secret: bool,
    client: AppClient,
) -> ApiResult<AppClient> {
    let client = AppClient {
        client_id: random::alphanumeric(26).to_lowercase(),
        client_secret: has_secret.then(|| random::alphanumeric(52).to_lowercase()),
        ..client
    };
    let clients = &context.store.clients;
    clients.put(&client.client_id, client.clone()).await?;
    Ok(client)
}

pub(super) async fn describe(context: &PoolContext, request: ClientRequest) -> Answer {
    let (client, pool) = context.client(&request.client_id)?;
    if pool.id != request.user_pool_id {
        return Err(not_found("User pool client", &request.client_id));
    }
    Ok(describe_client(context, &client, &pool))
}

/// Returns the response with a client. Clients of the API take its null members as absent.
fn describe_client(context: &PoolContext, client: &AppClient, pool: &UserPool) -> Value {
    let mut described = json!(client);
    if !client.hides_users() {
        described["PreventUserExistenceErrors"] = "LEGACY".into();
    }
    described["AccessTokenValidity"] = context.access_token_s(pool).into();
    described["IdTokenValidity"] = TOKEN_S.into();
    described["RefreshTokenValidity"] = REFRESH_TOKEN_S.into();
    described["TokenValidityUnits"] =
        json!({"AccessToken": "seconds", "IdToken": "seconds", "RefreshToken": "seconds"});
    described["EnableTokenRevocation"] = true.into();
    json!({ "UserPoolClient": described })
}
