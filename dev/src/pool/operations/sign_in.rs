//! InitiateAuth.

use std::collections::HashMap;
use std::time::Duration;

use postern_core::Secret;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{Answer, challenges, custom_auth, refresh};
use crate::pool::context::PoolContext;
use crate::pool::crypto::is_password;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, Session, User, UserPool, UserStatus};
use crate::pool::tokens::{REFRESH_TOKEN_S, issue_tokens};

const PASSWORD_FLOW: &str = "USER_PASSWORD_AUTH";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InitiateAuthRequest {
    auth_flow: String,
    client_id: String,
    #[serde(default)]
    auth_parameters: HashMap<String, String>,
}

pub(super) async fn initiate(context: &PoolContext, request: InitiateAuthRequest) -> Answer {
    let (client, pool) = context.client(&request.client_id)?;
    let parameters = &request.auth_parameters;
    match request.auth_flow.as_str() {
        PASSWORD_FLOW => password_auth(context, &client, &pool, parameters).await,
        "CUSTOM_AUTH" => custom_auth::start(context, &client, &pool, parameters).await,
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => {
            refresh::refresh_token_auth(context, &client, parameters).await
        }
        other => Err(ApiError::invalid(format!(
            "{other} flow not enabled for this client"
        ))),
    }
}

pub(super) fn parameter<'a>(
    parameters: &'a HashMap<String, String>,
    name: &str,
) -> ApiResult<&'a str> {
    let value = parameters.get(name).map(String::as_str);
    let value = value.filter(|value| !value.is_empty());
    value.ok_or_else(|| ApiError::invalid(format!("Missing required parameter {name}")))
}

async fn password_auth(
    context: &PoolContext,
    client: &AppClient,
    pool: &UserPool,
    parameters: &HashMap<String, String>,
) -> Answer {
    client.require_flow(PASSWORD_FLOW)?;
    let entered = parameter(parameters, "USERNAME")?;
    let password = Secret::from(parameter(parameters, "PASSWORD")?);
    // At sign-in the hash is over the name that was entered; elsewhere it is over the real
    // username.
    client.check_secret_hash(parameters.get("SECRET_HASH").map(String::as_str), entered)?;
    let found = context.find_entered_user(pool, entered);
    let stored = found.as_ref().and_then(|user| user.password.as_deref());
    let is_match = is_password(&password, stored).await?;
    match found {
        Some(user) if is_match => complete_password_auth(context, client, &user).await,
        // Known and unknown names take the same time.
        None if !client.hides_users() => Err(ApiError::user_not_found()),
        Some(_) | None => Err(ApiError::wrong_password()),
    }
}

/// Returns the response to a correct password: tokens or a challenge, or the error that prevents
/// both.
async fn complete_password_auth(context: &PoolContext, client: &AppClient, user: &User) -> Answer {
    match user.status {
        _ if !user.is_enabled => Err(ApiError::user_disabled()),
        UserStatus::Confirmed => start_session(context, client, user).await,
        UserStatus::ForceChangePassword => {
            challenges::require_new_password(context, client, user).await
        }
        UserStatus::Unconfirmed => Err(ApiError::user_not_confirmed()),
    }
}

/// Starts a sign-in with its first refresh token, and answers with its tokens. It ends with the next
/// sign-out of the user after `user` was read, such as that of a password reset.
pub(super) async fn start_session(
    context: &PoolContext,
    client: &AppClient,
    user: &User,
) -> Answer {
    let now = context.clock.now();
    let lifetime = Duration::from_secs(REFRESH_TOKEN_S);
    let id = Uuid::new_v4().to_string();
    let (token, stored) = refresh::new_token(&id);
    let session = Session {
        id: id.clone(),
        pool_id: user.pool_id.clone(),
        client_id: client.client_id.clone(),
        username: user.username.clone(),
        sub: user.sub.clone(),
        sign_outs: user.sign_outs,
        auth_time: now.unix_seconds(),
        expires_at: now.plus(lifetime).0,
        is_revoked: false,
        tokens: vec![stored],
    };
    context.store.sessions.put(&id, session.clone()).await?;
    let mut result = issue_tokens(context, client, &session, user)?;
    result["RefreshToken"] = token.into();
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}
