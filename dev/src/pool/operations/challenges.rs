//! Authentication challenges: NEW_PASSWORD_REQUIRED, and CUSTOM_CHALLENGE in `custom_auth`.

use std::collections::HashMap;
use std::time::Duration;

use postern_core::Secret;
use serde::Deserialize;
use serde_json::json;

use super::{Answer, custom_auth, sign_in};
use crate::pool::context::PoolContext;
use crate::pool::crypto::{digest, hash_password};
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, Challenge, User, UserPool, check_password, user_id};
use crate::random;

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

/// Creates a challenge to replace a password that an administrator set.
pub(super) async fn require_new_password(
    context: &PoolContext,
    client: &AppClient,
    user: &User,
) -> Answer {
    let session = store(context, client, &user.username, Some(user), None).await?;
    let shown = user.attributes.iter();
    let shown: HashMap<_, _> = shown.filter(|(name, _)| client.may_read(name)).collect();
    Ok(json!({
        "ChallengeName": NEW_PASSWORD_CHALLENGE,
        "Session": session,
        "ChallengeParameters": {
            "USER_ID_FOR_SRP": user.username,
            "requiredAttributes": "[]",
            "userAttributes": json!(shown).to_string(),
        },
    }))
}

/// Stores a pending challenge and returns its session. `user` is `None` if it does not exist.
pub(super) async fn store(
    context: &PoolContext,
    client: &AppClient,
    username: &str,
    user: Option<&User>,
    nonce: Option<String>,
) -> ApiResult<String> {
    let session = random::token();
    let challenge = Challenge {
        client_id: client.client_id.clone(),
        pool_id: client.user_pool_id.clone(),
        username: username.to_owned(),
        user_version: user.map(User::version).unwrap_or_default(),
        nonce,
        expires_at: context.clock.now().plus(SESSION_LIFETIME).0,
    };
    let id = digest(&session);
    context.store.challenges.put(&id, challenge).await?;
    Ok(session)
}

pub(super) async fn respond(context: &PoolContext, request: ChallengeResponse) -> Answer {
    let (client, pool) = context.client(&request.client_id)?;
    if request.challenge_name == custom_auth::CUSTOM_CHALLENGE {
        let (session, responses) = (request.session.as_deref(), &request.challenge_responses);
        return custom_auth::answer(context, &client, &pool, session, responses).await;
    }
    if request.challenge_name != NEW_PASSWORD_CHALLENGE {
        return Err(ApiError::invalid(format!(
            "{} is not a challenge of this pool",
            request.challenge_name
        )));
    }
    let session = request.session.as_deref();
    let (id, user) = pending_challenge(context, &client, session)?;
    let responses = &request.challenge_responses;
    check_user(context, &pool, &client, &user, responses)?;
    // Cognito accepts attributes that the challenge requires, of which this pool has none.
    if responses.keys().any(|it| it.starts_with("userAttributes.")) {
        return Err(ApiError::invalid("Cannot modify attributes."));
    }
    let password = Secret::from(sign_in::parameter(responses, "NEW_PASSWORD")?);
    check_password(password.expose())?;
    let password = hash_password(&password).await?;
    if context.store.challenges.take(&id).await?.is_none() {
        return Err(ApiError::not_authorized(
            "Invalid session for the user, session can only be used once.",
        ));
    }
    let version = user.version();
    let replace = |user: &mut User| {
        if user.version() != version {
            return Err(invalid_session());
        }
        user.set_password(password);
        Ok(())
    };
    let user = context.update_user(&user, replace).await?;
    sign_in::start_session(context, &client, &user).await
}

/// Returns the id of the pending challenge of a session, and its user.
fn pending_challenge(
    context: &PoolContext,
    client: &AppClient,
    session: Option<&str>,
) -> ApiResult<(String, User)> {
    let session = session.ok_or_else(|| ApiError::missing("session"))?;
    let id = digest(session);
    let challenge = context
        .store
        .challenges
        .get(&id)
        .filter(|challenge| challenge.client_id == client.client_id && challenge.nonce.is_none())
        .ok_or_else(invalid_session)?;
    if challenge.expires_at <= context.clock.now().0 {
        return Err(ApiError::not_authorized(
            "Invalid session for the user, session is expired.",
        ));
    }
    let user = user_id(&challenge.pool_id, &challenge.username);
    let user = context.store.users.get(&user).ok_or_else(invalid_session)?;
    // What an operator has done to the user since ends the challenge.
    if user.version() != challenge.user_version {
        return Err(invalid_session());
    }
    Ok((id, user))
}

pub(super) fn invalid_session() -> ApiError {
    ApiError::not_authorized("Invalid session for the user.")
}

/// Verifies that a response names the user of the challenge, by user name, `sub` or address. The
/// secret hash is over the real user name or over the entered one.
pub(super) fn check_user(
    context: &PoolContext,
    pool: &UserPool,
    client: &AppClient,
    user: &User,
    responses: &HashMap<String, String>,
) -> ApiResult {
    let entered = sign_in::parameter(responses, "USERNAME")?;
    let hash = responses.get("SECRET_HASH").map(String::as_str);
    client
        .check_secret_hash(hash, &user.username)
        .or_else(|_| client.check_secret_hash(hash, entered))?;
    match context.find_entered_user(pool, entered) {
        Some(named) if named.sub == user.sub => Ok(()),
        Some(_) | None => Err(invalid_session()),
    }
}
