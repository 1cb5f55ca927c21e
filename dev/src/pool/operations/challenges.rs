//! Authentication challenges. The only one implemented is NEW_PASSWORD_REQUIRED.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{attributes, sign_in};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{
    AppClient, Challenge, User, UserAttribute, UserPool, UserStatus, user_id,
};

/// Lifetime of a challenge: Cognito's default for `AuthSessionValidity`.
const SESSION_LIFETIME: Duration = Duration::from_secs(180);

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
    let challenge = Challenge {
        client_id: client.id.clone(),
        pool_id: client.pool_id.clone(),
        username: user.username.clone(),
        expires_at: context.clock.now().plus(SESSION_LIFETIME).0,
    };
    let id = random::digest(&[&session]);
    context.store.challenges.put(&id, challenge).await?;
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
            "userAttributes": Value::Object(shown).to_string(),
        },
    }))
}

pub(super) async fn admin_respond(
    context: &PoolContext,
    request: AdminChallengeResponse,
) -> Result<Value, ApiError> {
    context.client_of(&request.user_pool_id, &request.respond.client_id)?;
    respond(context, request.respond).await
}

pub(super) async fn respond(
    context: &PoolContext,
    request: ChallengeResponse,
) -> Result<Value, ApiError> {
    let (client, pool) = context.client(&request.client_id)?;
    if request.challenge_name != NEW_PASSWORD_CHALLENGE {
        return Err(ApiError::invalid(format!(
            "{} is not a challenge of this pool",
            request.challenge_name
        )));
    }
    let session = request.session.as_deref();
    let (id, user) = pending_challenge(context, &client, session)?;
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
    let password = context.hasher.hash(&password).await?;
    if context.store.challenges.take(&id).await?.is_none() {
        return Err(ApiError::not_authorized(
            "Invalid session for the user, session can only be used once.",
        ));
    }
    let replace = |user: &mut User| {
        user.set_password(password);
        attributes::apply(&pool, user, &written);
        Ok(())
    };
    let user = context.update_user(&user, replace).await?;
    let result = sign_in::start_session(context, &client, &user).await?;
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}

/// Returns the id of the pending challenge of a session, and its user.
fn pending_challenge(
    context: &PoolContext,
    client: &AppClient,
    session: Option<&str>,
) -> Result<(String, User), ApiError> {
    let session = session.ok_or_else(|| ApiError::missing("session"))?;
    let invalid = || ApiError::not_authorized("Invalid session for the user.");
    let id = random::digest(&[session]);
    let challenge = context
        .store
        .challenges
        .get(&id)
        .filter(|challenge| challenge.client_id == client.id)
        .ok_or_else(invalid)?;
    if challenge.expires_at <= context.clock.now().0 {
        return Err(ApiError::not_authorized(
            "Invalid session for the user, session is expired.",
        ));
    }
    let user = user_id(&challenge.pool_id, &challenge.username);
    let user = context.store.users.get(&user).ok_or_else(invalid)?;
    if !user.is_enabled {
        return Err(ApiError::user_disabled());
    }
    if user.status != UserStatus::ForceChangePassword {
        return Err(invalid());
    }
    Ok((id, user))
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
