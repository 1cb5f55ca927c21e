//! Access and ID tokens with Cognito's claims.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::pool::context::PoolContext;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, Session, User};

/// Scope of tokens that the API issues.
const SCOPE: &str = "aws.cognito.signin.user.admin";

/// The claims of a verified access token.
#[derive(Debug, Deserialize)]
pub(crate) struct AccessTokenClaims {
    pub(crate) client_id: String,
    username: String,
    origin_jti: String,
    iss: String,
    token_use: String,
    exp: i64,
}

/// Signs an access and an ID token of a sign-in. Returns the `AuthenticationResultType` without a
/// refresh token.
pub(crate) fn issue_tokens(
    context: &PoolContext,
    client: &AppClient,
    session: &Session,
    user: &User,
) -> ApiResult<Value> {
    let (key, settings) = (context.keys.key(&client.pool_id)?, &client.settings);
    let now = context.clock.now().unix_seconds();
    let expiry = |lifetime_s: u64| now.saturating_add_unsigned(lifetime_s);
    let new_id = || Uuid::new_v4().to_string();
    let mut access = json!({
        "sub": user.sub, "iss": context.issuer(&client.pool_id), "origin_jti": session.id, "event_id": new_id(),
        "auth_time": session.auth_time, "iat": now,
    });
    if !user.groups.is_empty() {
        access["cognito:groups"] = json!(user.groups);
    }
    let mut id = access.clone();
    access["token_use"] = "access".into();
    access["client_id"] = client.id.as_str().into();
    access["scope"] = SCOPE.into();
    access["exp"] = expiry(settings.access_token_s).into();
    access["jti"] = new_id().into();
    access["username"] = user.username.as_str().into();
    // Access tokens have no attributes.
    let attributes = user.attributes.iter();
    for (name, value) in attributes.filter(|(name, _)| client.may_read(name)) {
        let is_flag = matches!(name.as_str(), "email_verified" | "phone_number_verified");
        id[name] = match is_flag {
            true => Value::Bool(value == "true"),
            false => value.as_str().into(),
        };
    }
    id["token_use"] = "id".into();
    id["aud"] = client.id.as_str().into();
    id["exp"] = expiry(settings.id_token_s).into();
    id["jti"] = new_id().into();
    id["cognito:username"] = user.username.as_str().into();
    Ok(json!({
        "AccessToken": key.sign(&access),
        "IdToken": key.sign(&id),
        "ExpiresIn": settings.access_token_s,
        "TokenType": "Bearer",
    }))
}

/// Verifies an access token that this server issued: signature, issuer, use, expiry, and that its
/// sign-in was not revoked.
///
/// Returns the claims and the user.
pub(crate) fn verify(context: &PoolContext, token: &str) -> ApiResult<(AccessTokenClaims, User)> {
    let invalid = || ApiError::not_authorized("Invalid Access Token");
    let (pool_id, claims) = context.keys.verify(token).ok_or_else(invalid)?;
    let claims: AccessTokenClaims = serde_json::from_value(claims).map_err(|_| invalid())?;
    if claims.token_use != "access" || claims.iss != context.issuer(&pool_id) {
        return Err(invalid());
    }
    if claims.exp <= context.clock.now().unix_seconds() {
        return Err(ApiError::not_authorized("Access Token has expired"));
    }
    let user = context.find_user(&pool_id, &claims.username)?;
    let session = context.store.sessions.get(&claims.origin_jti);
    if !session.is_some_and(|session| session.is_active(&user)) {
        return Err(ApiError::not_authorized("Access Token has been revoked"));
    }
    if user.is_enabled {
        Ok((claims, user))
    } else {
        Err(ApiError::user_disabled())
    }
}
