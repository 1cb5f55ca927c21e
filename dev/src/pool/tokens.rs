//! Access and ID tokens with Cognito's claims.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::pool::context::PoolContext;
use crate::pool::crypto::signing_key;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, Session, User, UserPool};

const SCOPE: &str = "aws.cognito.signin.user.admin";

/// Lifetime of access and ID tokens in seconds: Cognito's default.
pub(crate) const TOKEN_S: u64 = 3600;

/// Lifetime of a refresh token and all its rotations in seconds: Cognito's default, 30 days.
pub(crate) const REFRESH_TOKEN_S: u64 = 30 * 86_400;

#[derive(Deserialize)]
struct AccessTokenClaims {
    client_id: String,
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
    let pool = context.pool(&client.user_pool_id)?;
    let key = signing_key(&pool)?;
    let access_token_s = context.access_token_s(&pool);
    let now = context.clock.now().unix_seconds();
    let expiry = |lifetime_s: u64| now.saturating_add_unsigned(lifetime_s);
    let new_id = || Uuid::new_v4().to_string();
    let mut access = json!({
        "sub": user.sub, "iss": context.issuer(&pool.id), "origin_jti": session.id, "event_id": new_id(),
        "auth_time": session.auth_time, "iat": now,
    });
    if !user.groups.is_empty() {
        access["cognito:groups"] = json!(user.groups);
    }
    let mut id = access.clone();
    access["token_use"] = "access".into();
    access["client_id"] = client.client_id.as_str().into();
    access["scope"] = SCOPE.into();
    access["exp"] = expiry(access_token_s).into();
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
    id["aud"] = client.client_id.as_str().into();
    id["exp"] = expiry(TOKEN_S).into();
    id["jti"] = new_id().into();
    id["cognito:username"] = user.username.as_str().into();
    Ok(json!({
        "AccessToken": key.sign(&access),
        "IdToken": key.sign(&id),
        "ExpiresIn": access_token_s,
        "TokenType": "Bearer",
    }))
}

/// Verifies an access token that this server issued: signature, issuer, use, expiry, and that its
/// sign-in was not revoked.
///
/// Returns the id of the client and the user.
pub(crate) fn verify(context: &PoolContext, token: &str) -> ApiResult<(String, User)> {
    let invalid = || ApiError::not_authorized("Invalid Access Token");
    let verify = |pool: UserPool| Some((signing_key(&pool).ok()?.verify(token)?, pool.id));
    let mut pools = context.store.pools.all().into_iter();
    let (claims, pool_id) = pools.find_map(verify).ok_or_else(invalid)?;
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
        Ok((claims.client_id, user))
    } else {
        Err(ApiError::user_disabled())
    }
}
