//! InitiateAuth and AdminInitiateAuth.

use std::collections::HashMap;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::lockout::LockoutKey;
use super::{OperationCall, challenges, refresh};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::{AppClient, User, UserPool, UserStatus};
use crate::pool::store::{StartSession, TokenFamily};
use crate::pool::tokens::{self, TokenSubject};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InitiateAuthRequest {
    auth_flow: String,
    client_id: String,
    #[serde(default)]
    auth_parameters: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AdminInitiateAuthRequest {
    user_pool_id: String,
    auth_flow: String,
    client_id: String,
    #[serde(default)]
    auth_parameters: HashMap<String, String>,
}

pub(super) async fn initiate(
    call: &OperationCall<'_>,
    request: InitiateAuthRequest,
) -> Result<Value, ApiError> {
    let (client, pool) = call.context.client(&request.client_id)?;
    call.record_client(&client);
    let parameters = &request.auth_parameters;
    match request.auth_flow.as_str() {
        "USER_PASSWORD_AUTH" => {
            password_auth(call, &client, &pool, "USER_PASSWORD_AUTH", parameters).await
        }
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => {
            refresh::refresh_token_auth(call, &client, parameters).await
        }
        "USER_SRP_AUTH"
        | "CUSTOM_AUTH"
        | "USER_AUTH"
        | "ADMIN_USER_PASSWORD_AUTH"
        | "ADMIN_NO_SRP_AUTH" => Err(ApiError::invalid(format!(
            "{} flow not enabled for this client",
            request.auth_flow
        ))),
        other => Err(ApiError::invalid(format!(
            "{other} is not a flow of InitiateAuth"
        ))),
    }
}

pub(super) async fn admin_initiate(
    call: &OperationCall<'_>,
    request: AdminInitiateAuthRequest,
) -> Result<Value, ApiError> {
    let pool = call.context.directory.pool(&request.user_pool_id)?;
    let client = call
        .context
        .directory
        .client_of(&pool.id, &request.client_id)?;
    call.record_client(&client);
    let parameters = &request.auth_parameters;
    match request.auth_flow.as_str() {
        "ADMIN_USER_PASSWORD_AUTH" | "ADMIN_NO_SRP_AUTH" => {
            password_auth(call, &client, &pool, "ADMIN_USER_PASSWORD_AUTH", parameters).await
        }
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => {
            refresh::refresh_token_auth(call, &client, parameters).await
        }
        "USER_SRP_AUTH" | "CUSTOM_AUTH" | "USER_AUTH" | "USER_PASSWORD_AUTH" => {
            Err(ApiError::invalid(format!(
                "{} flow not enabled for this client",
                request.auth_flow
            )))
        }
        other => Err(ApiError::invalid(format!(
            "{other} is not a flow of AdminInitiateAuth"
        ))),
    }
}

pub(super) fn parameter<'a>(
    parameters: &'a HashMap<String, String>,
    name: &str,
) -> Result<&'a str, ApiError> {
    let value = parameters
        .get(name)
        .map(String::as_str)
        .filter(|value| !value.is_empty());
    value.ok_or_else(|| ApiError::invalid(format!("Missing required parameter {name}")))
}

async fn password_auth(
    call: &OperationCall<'_>,
    client: &AppClient,
    pool: &UserPool,
    flow: &str,
    parameters: &HashMap<String, String>,
) -> Result<Value, ApiError> {
    client.require_flow(flow)?;
    let entered = parameter(parameters, "USERNAME")?;
    let password = Secret::from(parameter(parameters, "PASSWORD")?);
    // At sign-in the hash is over the name that was entered; elsewhere it is over the real
    // username.
    client.check_secret_hash(parameters.get("SECRET_HASH").map(String::as_str), entered)?;
    let context = call.context;
    let found = context.find_entered_user(pool, entered).await?;
    if let Some(user) = &found {
        call.record_user(user);
    }
    let key = found.as_ref().map_or_else(
        || LockoutKey::of_unknown(pool, entered),
        LockoutKey::of_user,
    );
    context.lockouts.check(&key, context.clock.now())?;
    let stored = found.as_ref().and_then(|user| user.password.as_deref());
    let is_match = context.hasher.verify(&password, stored).await?;
    let now = context.clock.now();
    match found {
        Some(user) if is_match => {
            context.lockouts.record_success(&key, now)?;
            complete_password_auth(call, client, &user).await
        }
        found => {
            context.lockouts.record_failure(&key, now)?;
            // Known and unknown names take the same time.
            if found.is_some() || client.settings.prevent_user_existence_errors {
                Err(ApiError::wrong_password())
            } else {
                Err(ApiError::user_not_found())
            }
        }
    }
}

/// Returns the response to a correct password: tokens or a challenge, or the error that prevents
/// both.
async fn complete_password_auth(
    call: &OperationCall<'_>,
    client: &AppClient,
    user: &User,
) -> Result<Value, ApiError> {
    let now = call.context.clock.now();
    let reason = match user.status {
        _ if !user.is_enabled() => ApiError::user_disabled(),
        UserStatus::Confirmed => {
            let result = start_session(call.context, client, user).await?;
            return Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}));
        }
        UserStatus::ForceChangePassword
            if user.temporary_until.is_none_or(|until| until >= now.0) =>
        {
            return challenges::require_new_password(call.context, client, user).await;
        }
        UserStatus::ForceChangePassword => ApiError::not_authorized(
            "Temporary password has expired and must be reset by an administrator.",
        ),
        UserStatus::Unconfirmed => {
            ApiError::new(ExceptionKind::UserNotConfirmed, "User is not confirmed.")
        }
        UserStatus::ResetRequired => ApiError::new(
            ExceptionKind::PasswordResetRequired,
            "Password reset required for the user",
        ),
    };
    Err(reason)
}

/// Starts a sign-in: creates a token family and returns its first refresh token with an access and
/// an ID token. Fails if the password changed or the user was disabled since the user was read.
pub(super) async fn start_session(
    context: &PoolContext,
    client: &AppClient,
    user: &User,
) -> Result<Value, ApiError> {
    let now = context.clock.now();
    let token = random::token()?;
    let (family, auth_time) = (Uuid::new_v4().to_string(), now.unix_seconds());
    let session = StartSession {
        pool_id: user.pool_id.clone(),
        username: user.username.clone(),
        password_version: user.password_version,
        family: TokenFamily {
            family: family.clone(),
            client_id: client.id.clone(),
            auth_time,
            expires_at: now.plus(client.refresh_lifetime()).0,
            revoked_at: None,
        },
        hash: random::digest(&[&token]),
    };
    let Some(groups) = context.store.start_session(&session).await? else {
        return Err(ApiError::wrong_password());
    };
    let subject = TokenSubject {
        client,
        user,
        groups: &groups,
        family: &family,
        auth_time,
    };
    let mut result = tokens::issue_tokens(context, &subject)?;
    result["RefreshToken"] = token.into();
    Ok(result)
}
