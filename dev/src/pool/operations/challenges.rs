//! Authentication challenges. The only one implemented is NEW_PASSWORD_REQUIRED.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{OperationCall, attributes, sign_in};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{AppClient, User, UserAttribute, UserPool, UserStatus, to_json_text};
use crate::pool::store::ChallengeRow;

const NEW_PASSWORD_CHALLENGE: &str = "NEW_PASSWORD_REQUIRED";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ChallengeResponse {
    challenge_name: String,
    client_id: String,
    session: Option<String>,
    #[serde(default)]
    challenge_responses: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AdminChallengeResponse {
    user_pool_id: String,
    #[serde(flatten)]
    respond: ChallengeResponse,
}

/// Creates a challenge to replace a password that an administrator set.
pub(super) async fn require_new_password(
    context: &PoolContext,
    client: &AppClient,
    user: &User,
) -> Result<Value, ApiError> {
    let session = random::token()?;
    let wait = Duration::from_secs(client.settings.auth_session_minutes * 60);
    let row = ChallengeRow {
        hash: random::digest(&[&session]),
        pool_id: client.pool_id.clone(),
        client_id: client.id.clone(),
        username: user.username.clone(),
        expires_at: context.clock.now().plus(wait).0,
    };
    context.store.put_challenge(&row).await?;
    let shown = user
        .attributes
        .iter()
        .filter(|(name, _)| client.may_read(name));
    let shown: Map<String, Value> = shown
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    Ok(json!({
        "ChallengeName": NEW_PASSWORD_CHALLENGE,
        "Session": session,
        "ChallengeParameters": {
            "USER_ID_FOR_SRP": user.username,
            "requiredAttributes": "[]",
            "userAttributes": to_json_text(&shown),
        },
    }))
}

pub(super) async fn admin_respond(
    call: &OperationCall<'_>,
    request: AdminChallengeResponse,
) -> Result<Value, ApiError> {
    call.context
        .directory
        .client_of(&request.user_pool_id, &request.respond.client_id)?;
    respond(call, request.respond).await
}

pub(super) async fn respond(
    call: &OperationCall<'_>,
    request: ChallengeResponse,
) -> Result<Value, ApiError> {
    let (client, pool) = call.context.client(&request.client_id)?;
    call.record_client(&client);
    if request.challenge_name != NEW_PASSWORD_CHALLENGE {
        return Err(ApiError::invalid(format!(
            "{} is not a challenge of this pool",
            request.challenge_name
        )));
    }
    let (hash, mut user) = pending_challenge(call, &client, request.session.as_deref()).await?;
    call.record_user(&user);
    let responses = &request.challenge_responses;
    let name = sign_in::parameter(responses, "USERNAME")?;
    client.check_secret_hash(
        responses.get("SECRET_HASH").map(String::as_str),
        &user.username,
    )?;
    if name != user.username {
        return Err(ApiError::not_authorized("Invalid session for the user."));
    }
    let password = Secret::from(sign_in::parameter(responses, "NEW_PASSWORD")?);
    pool.settings.password_policy.check(password.expose())?;
    let written = written_attributes(&pool, &client, responses)?;
    let password = call.context.hasher.hash(&password).await?;
    if !call.context.store.take_challenge(&hash).await? {
        return Err(ApiError::not_authorized(
            "Invalid session for the user, session can only be used once.",
        ));
    }
    let now = call.context.clock.now();
    user.password = Some(password);
    user.status = UserStatus::Confirmed;
    user.temporary_until = None;
    call.context.store.set_password(&user, now).await?;
    user.password_version += 1;
    if !written.is_empty() {
        attributes::apply(&pool, &mut user, &written);
        call.context.store.set_attributes(&user, now).await?;
    }
    let result = sign_in::start_session(call.context, &client, &user).await?;
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}

/// Returns the digest of a pending challenge's session, and its user.
async fn pending_challenge(
    call: &OperationCall<'_>,
    client: &AppClient,
    session: Option<&str>,
) -> Result<(String, User), ApiError> {
    let session = session.ok_or_else(|| ApiError::missing("session"))?;
    let invalid = || ApiError::not_authorized("Invalid session for the user.");
    let found = call
        .context
        .store
        .challenge(&random::digest(&[session]))
        .await?;
    let row = found
        .filter(|row| row.client_id == client.id)
        .ok_or_else(invalid)?;
    if row.expires_at <= call.context.clock.now().0 {
        return Err(ApiError::not_authorized(
            "Invalid session for the user, session is expired.",
        ));
    }
    let user = call
        .context
        .store
        .user(&row.pool_id, &row.username)
        .await?
        .ok_or_else(invalid)?;
    if !user.is_enabled() {
        return Err(ApiError::user_disabled());
    }
    if user.status != UserStatus::ForceChangePassword {
        return Err(invalid());
    }
    Ok((row.hash, user))
}

/// Returns the responses named `userAttributes.{name}`.
fn written_attributes(
    pool: &UserPool,
    client: &AppClient,
    responses: &HashMap<String, String>,
) -> Result<Vec<UserAttribute>, ApiError> {
    let written: Vec<UserAttribute> = responses
        .iter()
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("userAttributes.")?.to_owned();
            Some(UserAttribute {
                name,
                value: value.clone(),
            })
        })
        .collect();
    attributes::check_client(pool, client, &written)?;
    Ok(written)
}
