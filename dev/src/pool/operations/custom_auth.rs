//! CUSTOM_AUTH as the triggers of `conf/cognito/triggers` define it: one CUSTOM_CHALLENGE, answered
//! by a proof of the authentication service.

use std::collections::HashMap;

use postern_core::identity::{SocialAccount, SocialProofKey, SocialStatement};
use serde_json::json;

use super::{Answer, challenges, sign_in};
use crate::pool::context::PoolContext;
use crate::pool::crypto::digest;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, User, UserPool, UserStatus};
use crate::random;

pub(super) const CUSTOM_CHALLENGE: &str = "CUSTOM_CHALLENGE";

/// Creates the challenge of a sign-in. An unknown user gets one as well, unless the client reveals
/// who exists.
pub(super) async fn start(
    context: &PoolContext,
    client: &AppClient,
    pool: &UserPool,
    parameters: &HashMap<String, String>,
) -> Answer {
    client.require_flow("CUSTOM_AUTH")?;
    let entered = sign_in::parameter(parameters, "USERNAME")?;
    client.check_secret_hash(parameters.get("SECRET_HASH").map(String::as_str), entered)?;
    let key = proof_key(context)?;
    let user = context.find_entered_user(pool, entered);
    match &user {
        None if !client.hides_users() => {
            return Err(ApiError::user_not_found());
        }
        Some(user) => ensure_active(user)?,
        None => {}
    }
    let username = user.as_ref().map_or(entered, |user| &user.username);
    let nonce = random::token();
    let (found, given) = (user.as_ref(), Some(nonce.clone()));
    let session = challenges::store(context, client, username, found, given).await?;
    let account = user
        .as_ref()
        .map(|user| SocialAccount::new(user.sub.clone(), user.email(), user.email_verified()));
    Ok(json!({
        "ChallengeName": CUSTOM_CHALLENGE,
        "Session": session,
        "ChallengeParameters": {
            "USERNAME": username,
            "account": key.seal_account(account.as_ref(), &nonce),
            "nonce": nonce,
        },
    }))
}

/// Signs in a user of whom the answer is a proof. A session has one answer.
pub(super) async fn answer(
    context: &PoolContext,
    client: &AppClient,
    pool: &UserPool,
    session: Option<&str>,
    responses: &HashMap<String, String>,
) -> Answer {
    let session = session.ok_or_else(|| ApiError::missing("session"))?;
    let answer = sign_in::parameter(responses, "ANSWER")?;
    let challenge = context.store.challenges.take(&digest(session)).await?;
    let (id, now) = (&client.client_id, context.clock.now());
    let challenge = challenge.filter(|it| it.client_id == *id && it.expires_at > now.0);
    let challenge = challenge.ok_or_else(challenges::invalid_session)?;
    // Unlike that of a password, this challenge outlives a reset: the proof names the subject.
    let nonce = challenge.nonce.ok_or_else(challenges::invalid_session)?;
    let user = context.find_user(&pool.id, &challenge.username);
    let user = user.map_err(|_| ApiError::wrong_password())?;
    challenges::check_user(context, pool, client, &user, responses)?;
    let (subject, nonce) = (user.sub.as_str(), nonce.as_str());
    let statement = SocialStatement::SignIn { subject, nonce };
    if !proof_key(context)?.verify(answer, statement, id, now) {
        return Err(ApiError::wrong_password());
    }
    ensure_active(&user)?;
    sign_in::start_session(context, client, &user).await
}

/// Confirms a new user whose address the service proves, as the trigger PreSignUp does.
pub(super) fn confirm_proven(
    context: &PoolContext,
    client: &AppClient,
    user: &mut User,
    proof: &str,
) -> ApiResult {
    let email = user.email().unwrap_or_default();
    let statement = SocialStatement::SignUp { email };
    if !proof_key(context)?.verify(proof, statement, &client.client_id, context.clock.now()) {
        return Err(ApiError::new(
            "UserLambdaValidationException",
            "PreSignUp failed with error invalid social_proof.",
        ));
    }
    user.status = UserStatus::Confirmed;
    user.verify_email();
    Ok(())
}

fn ensure_active(user: &User) -> ApiResult {
    match user.status {
        _ if !user.is_enabled => Err(ApiError::user_disabled()),
        UserStatus::Unconfirmed => Err(ApiError::user_not_confirmed()),
        UserStatus::Confirmed | UserStatus::ForceChangePassword => Ok(()),
    }
}

fn proof_key(context: &PoolContext) -> ApiResult<&SocialProofKey> {
    let missing =
        || ApiError::invalid("Custom auth lambda trigger is not configured for the user pool.");
    context.social_proof_key.as_ref().ok_or_else(missing)
}
