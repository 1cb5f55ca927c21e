//! Operations on refresh tokens: exchange, with or without rotation, and revocation.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::json;

use super::sign_in::parameter;
use super::{Answer, empty_response};
use crate::pool::context::PoolContext;
use crate::pool::crypto::digest;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, RefreshToken, Session, User, user_id};
use crate::pool::tokens::issue_tokens;
use crate::random;

/// Tokens of a sign-in for which reuse is detected. Older ones are unknown.
const MAX_TOKENS: usize = 100;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct TokenRequest {
    #[serde(alias = "RefreshToken")]
    token: String,
    client_id: String,
    client_secret: Option<String>,
}

/// Returns a new refresh token, which begins with the id of its sign-in, and its stored form.
pub(super) fn new_token(session_id: &str) -> (String, RefreshToken) {
    let token = format!("{session_id}{}", random::token());
    let stored = RefreshToken {
        hash: digest(&token),
        rotated_at: None,
    };
    (token, stored)
}

/// Returns the id of the sign-in of a refresh token.
fn session_id(token: &str) -> &str {
    token.get(..36).unwrap_or_default()
}

fn invalid_token() -> ApiError {
    ApiError::not_authorized("Invalid Refresh Token")
}

/// REFRESH_TOKEN_AUTH. As in Cognito, clients with rotation must use GetTokensFromRefreshToken
/// instead.
pub(super) async fn refresh_token_auth(
    context: &PoolContext,
    client: &AppClient,
    parameters: &HashMap<String, String>,
) -> Answer {
    if client.rotation_grace_s().is_some() {
        return Err(ApiError::invalid(
            "REFRESH_TOKEN_AUTH flow not enabled for this client",
        ));
    }
    client.require_flow("REFRESH_TOKEN_AUTH")?;
    let token = parameter(parameters, "REFRESH_TOKEN")?;
    let (session, user) = find_active(context, client, token)?;
    // The request names no user, so the hash must be over the real username.
    let hash = parameters.get("SECRET_HASH").map(String::as_str);
    client.check_secret_hash(hash, &user.username)?;
    let result = issue_tokens(context, client, &session, &user)?;
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}

/// GetTokensFromRefreshToken. With rotation, the response has a new refresh token, and the old one
/// works only within the grace period. Its use after that is treated as theft and revokes the
/// sign-in.
pub(super) async fn get_tokens(context: &PoolContext, request: TokenRequest) -> Answer {
    let (client, _) = context.client(&request.client_id)?;
    client.check_secret(request.client_secret.as_deref())?;
    let Some(grace_s) = client.rotation_grace_s() else {
        let (session, user) = find_active(context, &client, &request.token)?;
        let result = issue_tokens(context, &client, &session, &user)?;
        return Ok(json!({"AuthenticationResult": result}));
    };
    let now = context.clock.now().0;
    let grace_start = now - i64::try_from(grace_s * 1000).unwrap_or(0);
    let id = session_id(&request.token);
    let (new_token, new) = new_token(id);
    let rotate = |stored: &mut Option<Session>| {
        let session = stored.as_mut().ok_or_else(invalid_token)?;
        let user = ensure_active(context, &client, session)?;
        let hash = digest(&request.token);
        let mut tokens = session.tokens.iter_mut();
        let token = tokens.find(|token| token.hash == hash);
        let token = token.ok_or_else(invalid_token)?;
        if token.rotated_at.is_some_and(|at| at <= grace_start) {
            session.is_revoked = true;
            return Ok(None);
        }
        token.rotated_at.get_or_insert(now);
        session.tokens.push(new);
        let surplus = session.tokens.len().saturating_sub(MAX_TOKENS);
        session.tokens.drain(..surplus);
        Ok(Some((session.clone(), user)))
    };
    let Some((session, user)) = context.store.sessions.update(id, rotate).await? else {
        return Err(ApiError::new(
            "RefreshTokenReuseException",
            "Refresh Token has been reused",
        ));
    };
    let mut result = issue_tokens(context, &client, &session, &user)?;
    result["RefreshToken"] = new_token.into();
    Ok(json!({"AuthenticationResult": result}))
}

/// RevokeToken. Revokes the sign-in of the token. An unknown token is not an error (RFC 7009
/// section 2.2).
pub(super) async fn revoke(context: &PoolContext, request: TokenRequest) -> Answer {
    let (client, _) = context.client(&request.client_id)?;
    client.check_secret(request.client_secret.as_deref())?;
    if request.token.split('.').count() == 3 {
        return Err(ApiError::new(
            "UnsupportedTokenTypeException",
            "Only refresh tokens can be revoked",
        ));
    }
    if let Some(session) = find(context, &client, &request.token) {
        let revoke = |stored: &mut Option<Session>| {
            if let Some(session) = stored {
                session.is_revoked = true;
            }
            Ok(())
        };
        context.store.sessions.update(&session.id, revoke).await?;
    }
    Ok(empty_response())
}

/// Returns the sign-in of a client's refresh token.
fn find(context: &PoolContext, client: &AppClient, token: &str) -> Option<Session> {
    let hash = digest(token);
    let found = context.store.sessions.get(session_id(token))?;
    let is_known = found.tokens.iter().any(|token| token.hash == hash);
    (is_known && found.client_id == client.client_id).then_some(found)
}

/// Returns the sign-in of a refresh token and its user, if the sign-in is active.
fn find_active(
    context: &PoolContext,
    client: &AppClient,
    token: &str,
) -> ApiResult<(Session, User)> {
    let session = find(context, client, token).ok_or_else(invalid_token)?;
    let user = ensure_active(context, client, &session)?;
    Ok((session, user))
}

/// Returns the user of a sign-in that belongs to the client and is active.
fn ensure_active(context: &PoolContext, client: &AppClient, session: &Session) -> ApiResult<User> {
    let user = user_id(&session.pool_id, &session.username);
    let user = context.store.users.get(&user).ok_or_else(invalid_token)?;
    if session.client_id != client.client_id {
        Err(invalid_token())
    } else if !user.is_enabled {
        Err(ApiError::user_disabled())
    } else if !session.is_active(&user) {
        Err(ApiError::not_authorized("Refresh Token has been revoked"))
    } else if session.expires_at <= context.clock.now().0 {
        Err(ApiError::not_authorized("Refresh Token has expired"))
    } else {
        Ok(user)
    }
}
