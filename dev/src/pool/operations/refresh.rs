//! Operations on refresh tokens: exchange, with or without rotation, and revocation.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::clock::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::sign_in::parameter;
use super::{OperationCall, empty_response};
use crate::pool::crypto::random;
use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::AppClient;
use crate::pool::store::{RefreshSession, RotateToken};
use crate::pool::tokens::{self, TokenSubject};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GetTokensRequest {
    refresh_token: String,
    client_id: String,
    client_secret: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct RevokeTokenRequest {
    token: String,
    client_id: String,
    client_secret: Option<String>,
}

/// REFRESH_TOKEN_AUTH. As in Cognito, clients with rotation must use GetTokensFromRefreshToken
/// instead.
pub(super) async fn refresh_token_auth(
    call: &OperationCall<'_>,
    client: &AppClient,
    parameters: &HashMap<String, String>,
) -> Result<Value, ApiError> {
    if client.settings.rotation_grace_s.is_some() {
        return Err(ApiError::invalid(
            "REFRESH_TOKEN_AUTH flow not enabled for this client",
        ));
    }
    client.require_flow("REFRESH_TOKEN_AUTH")?;
    let token = parameter(parameters, "REFRESH_TOKEN")?;
    let found = find_active(call, client, token).await?;
    // The request names no user, so the hash must be over the real username.
    client.check_secret_hash(
        parameters.get("SECRET_HASH").map(String::as_str),
        &found.user.username,
    )?;
    let result = issue_tokens(call, client, &found)?;
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}

/// GetTokensFromRefreshToken. With rotation, the response has a new refresh token, and the old one
/// works only within the grace period. Its use after that is treated as theft and revokes the
/// sign-in.
pub(super) async fn get_tokens(
    call: &OperationCall<'_>,
    request: GetTokensRequest,
) -> Result<Value, ApiError> {
    let (client, _) = call.context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret(request.client_secret.as_deref())?;
    let Some(grace_s) = client.settings.rotation_grace_s else {
        let found = find_active(call, &client, &request.refresh_token).await?;
        let result = issue_tokens(call, &client, &found)?;
        return Ok(json!({"AuthenticationResult": result}));
    };
    let now = call.context.clock.now();
    let grace = Duration::from_secs(grace_s);
    let grace_start = Timestamp(now.0 - i64::try_from(grace.as_millis()).unwrap_or(0));
    let new_token = random::token()?;
    let rotation = RotateToken {
        old: random::digest(&[&request.refresh_token]),
        new: random::digest(&[&new_token]),
        client_id: client.id.clone(),
        now,
        grace_start,
    };
    let Some(found) = call.context.store.rotate_token(&rotation).await? else {
        return Err(rejection(call, &client, &request.refresh_token, grace_start).await?);
    };
    call.record_user(&found.user);
    let mut result = issue_tokens(call, &client, &found)?;
    result["RefreshToken"] = new_token.into();
    Ok(json!({"AuthenticationResult": result}))
}

/// Returns the reason why a token was not rotated. Reuse after the grace period revokes the
/// sign-in.
async fn rejection(
    call: &OperationCall<'_>,
    client: &AppClient,
    token: &str,
    grace_start: Timestamp,
) -> Result<ApiError, ApiError> {
    let RefreshSession {
        family,
        user,
        rotated_at,
        ..
    } = find_active(call, client, token).await?;
    if rotated_at.is_none_or(|at| at > grace_start.0) {
        // The token was rejected before but is valid now: its state changed in between.
        return Ok(ApiError::not_authorized("Invalid Refresh Token"));
    }
    call.context
        .store
        .revoke_family(&family.family, call.context.clock.now())
        .await?;
    tracing::warn!(target: "audit", sub = user.sub, family = family.family, "refresh token reused");
    Ok(ApiError::new(
        ExceptionKind::RefreshTokenReuse,
        "Refresh Token has been reused",
    ))
}

/// RevokeToken. Revokes the sign-in of the token. An unknown token is not an error (RFC 7009
/// section 2.2).
pub(super) async fn revoke(
    call: &OperationCall<'_>,
    request: RevokeTokenRequest,
) -> Result<Value, ApiError> {
    let (client, _) = call.context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret(request.client_secret.as_deref())?;
    if !client.settings.token_revocation {
        return Err(ApiError::new(
            ExceptionKind::UnsupportedTokenType,
            "Token revocation is not enabled for this client",
        ));
    }
    if request.token.split('.').count() == 3 {
        return Err(ApiError::new(
            ExceptionKind::UnsupportedTokenType,
            "Only refresh tokens can be revoked",
        ));
    }
    let store = &call.context.store;
    if let Some(RefreshSession { family, user, .. }) = store
        .refresh_token(&random::digest(&[&request.token]))
        .await?
        && family.client_id == client.id
    {
        call.record_user(&user);
        store
            .revoke_family(&family.family, call.context.clock.now())
            .await?;
    }
    Ok(empty_response())
}

/// Returns the sign-in of a refresh token if the sign-in belongs to the client and is active, and
/// the user is enabled.
async fn find_active(
    call: &OperationCall<'_>,
    client: &AppClient,
    token: &str,
) -> Result<RefreshSession, ApiError> {
    let found = call
        .context
        .store
        .refresh_token(&random::digest(&[token]))
        .await?;
    let found = found
        .filter(|found| found.family.client_id == client.id)
        .ok_or_else(|| ApiError::not_authorized("Invalid Refresh Token"))?;
    call.record_user(&found.user);
    if found.family.revoked_at.is_some() {
        return Err(ApiError::not_authorized("Refresh Token has been revoked"));
    }
    if found.family.expires_at <= call.context.clock.now().0 {
        return Err(ApiError::not_authorized("Refresh Token has expired"));
    }
    if found.user.is_enabled() {
        Ok(found)
    } else {
        Err(ApiError::user_disabled())
    }
}

fn issue_tokens(
    call: &OperationCall<'_>,
    client: &AppClient,
    found: &RefreshSession,
) -> Result<Value, ApiError> {
    let RefreshSession {
        family,
        user,
        groups,
        ..
    } = found;
    let subject = TokenSubject {
        client,
        user,
        groups,
        family: &family.family,
        auth_time: family.auth_time,
    };
    tokens::issue_tokens(call.context, &subject)
}
