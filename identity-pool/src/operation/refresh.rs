//! Refresh tokens: new tokens for them, with rotation or without, and their end.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::clock::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::sign_in::parameter;
use super::{Call, nothing};
use crate::fault::{Fault, Kind};
use crate::pool::Client;
use crate::random;
use crate::store::{FamilyOfUser, Rotate as Rotation, SessionWrite, Written};
use crate::tokens::{self, SignIn};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Rotate {
    refresh_token: String,
    client_id: String,
    client_secret: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Revoke {
    token: String,
    client_id: String,
    client_secret: Option<String>,
}

/// REFRESH_TOKEN_AUTH. A client whose tokens rotate must use GetTokensFromRefreshToken, as at
/// Cognito.
pub(super) async fn without_rotation(
    call: &Call<'_>,
    client: &Client,
    parameters: &HashMap<String, String>,
) -> Result<Value, Fault> {
    if client.settings.rotation_grace_s.is_some() {
        return Err(Fault::invalid(
            "REFRESH_TOKEN_AUTH flow not enabled for this client",
        ));
    }
    client.require_flow("REFRESH_TOKEN_AUTH")?;
    let token = parameter(parameters, "REFRESH_TOKEN")?;
    let found = live(call, client, token).await?;
    // The caller does not say whose token it is: the hash must be over the real username.
    client.check_secret_hash(
        parameters.get("SECRET_HASH").map(String::as_str),
        &found.user.username,
    )?;
    let result = issue(call, client, &found).await?;
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}

/// GetTokensFromRefreshToken. With rotation the answer has a new refresh token, and the old one
/// works on only within its grace; after it, whoever shows it ends the whole sign-in.
pub(super) async fn rotate(call: &Call<'_>, request: Rotate) -> Result<Value, Fault> {
    let (client, _) = call.server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret(request.client_secret.as_deref())?;
    let Some(grace_s) = client.settings.rotation_grace_s else {
        let found = live(call, &client, &request.refresh_token).await?;
        let result = issue(call, &client, &found).await?;
        return Ok(json!({"AuthenticationResult": result}));
    };
    let now = call.server.clock.now();
    let grace = Duration::from_secs(grace_s);
    let grace_began = Timestamp(now.0 - i64::try_from(grace.as_millis()).unwrap_or(0));
    let fresh = random::token()?;
    let write = SessionWrite::Rotate(Rotation {
        old: random::digest(&[&request.refresh_token]),
        new: random::digest(&[&fresh]),
        client_id: client.id.clone(),
        now,
        grace_began,
    });
    let Written::Rotated(found) = call.server.store.write_session(write).await? else {
        return Err(refused(call, &client, &request.refresh_token, grace_began).await?);
    };
    call.note_user(&found.user);
    let mut result = issue(call, &client, &found).await?;
    result["RefreshToken"] = fresh.into();
    Ok(json!({"AuthenticationResult": result}))
}

/// Why a token was not rotated. One that should be gone, and is used, ends its sign-in.
async fn refused(
    call: &Call<'_>,
    client: &Client,
    token: &str,
    grace_began: Timestamp,
) -> Result<Fault, Fault> {
    let FamilyOfUser {
        family,
        user,
        rotated_at,
        ..
    } = live(call, client, token).await?;
    if rotated_at.is_none_or(|at| at > grace_began.0) {
        // It did not stand a moment ago, and does now.
        return Ok(Fault::not_authorized("Invalid Refresh Token"));
    }
    call.server
        .store
        .revoke_family(&family.family, call.server.clock.now())
        .await?;
    tracing::warn!(target: "audit", sub = user.sub, family = family.family, "refresh token reused");
    Ok(Fault::new(
        Kind::RefreshTokenReuse,
        "Refresh Token has been reused",
    ))
}

/// RevokeToken: ends the sign-in that the token belongs to. A token that is not known is no error
/// (RFC 7009 section 2.2).
pub(super) async fn revoke(call: &Call<'_>, request: Revoke) -> Result<Value, Fault> {
    let (client, _) = call.server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret(request.client_secret.as_deref())?;
    if !client.settings.token_revocation {
        return Err(Fault::new(
            Kind::UnsupportedTokenType,
            "Token revocation is not enabled for this client",
        ));
    }
    if request.token.split('.').count() == 3 {
        return Err(Fault::new(
            Kind::UnsupportedTokenType,
            "Only refresh tokens can be revoked",
        ));
    }
    let store = &call.server.store;
    if let Some(FamilyOfUser { family, user, .. }) = store
        .refresh_token(&random::digest(&[&request.token]))
        .await?
        && family.client_id == client.id
    {
        call.note_user(&user);
        store
            .revoke_family(&family.family, call.server.clock.now())
            .await?;
    }
    Ok(nothing())
}

/// The sign-in of a refresh token and its user, if both stand and the sign-in is this client's.
async fn live(call: &Call<'_>, client: &Client, token: &str) -> Result<FamilyOfUser, Fault> {
    let found = call
        .server
        .store
        .refresh_token(&random::digest(&[token]))
        .await?;
    let found = found
        .filter(|found| found.family.client_id == client.id)
        .ok_or_else(|| Fault::not_authorized("Invalid Refresh Token"))?;
    call.note_user(&found.user);
    if found.family.revoked_at.is_some() {
        return Err(Fault::not_authorized("Refresh Token has been revoked"));
    }
    if found.family.expires_at <= call.server.clock.now().0 {
        return Err(Fault::not_authorized("Refresh Token has expired"));
    }
    if found.user.is_enabled() {
        Ok(found)
    } else {
        Err(Fault::user_disabled())
    }
}

async fn issue(call: &Call<'_>, client: &Client, found: &FamilyOfUser) -> Result<Value, Fault> {
    let FamilyOfUser {
        family,
        user,
        groups,
        ..
    } = found;
    let sign_in = SignIn {
        client,
        user,
        groups,
        family: &family.family,
        auth_time: family.auth_time,
    };
    tokens::issue(call.server, &sign_in).await
}
