//! Access and ID tokens with Cognito's claims.

use postern_core::clock::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::pool::context::PoolContext;
use crate::pool::error::ApiError;
use crate::pool::model::{AppClient, User};

/// Scope of tokens that the API issues.
const SCOPE: &str = "aws.cognito.signin.user.admin";

/// The user and client that tokens are issued for.
pub(crate) struct TokenSubject<'a> {
    pub(crate) client: &'a AppClient,
    pub(crate) user: &'a User,
    /// Id of the sign-in: the claim `origin_jti`.
    pub(crate) session: &'a str,
    /// Time of the password authentication, in Unix seconds.
    pub(crate) auth_time: i64,
}

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

/// Signs an access and an ID token. Returns the `AuthenticationResultType` without a refresh token.
pub(crate) fn issue_tokens(
    context: &PoolContext,
    subject: &TokenSubject<'_>,
) -> Result<Value, ApiError> {
    let now = context.clock.now();
    let key = context.keys.key(&subject.client.pool_id)?;
    let settings = &subject.client.settings;
    let issuer = context.issuer(&subject.client.pool_id);
    let common = common_claims(subject, &issuer, now);
    let access = key.sign(None, &access_claims(subject, common.clone(), now));
    let id = key.sign(None, &id_claims(subject, common, now));
    Ok(json!({
        "AccessToken": access,
        "IdToken": id,
        "ExpiresIn": settings.access_token_s,
        "TokenType": "Bearer",
    }))
}

fn common_claims(subject: &TokenSubject<'_>, issuer: &str, now: Timestamp) -> Map<String, Value> {
    let mut claims = Map::new();
    claims.insert("sub".into(), subject.user.sub.as_str().into());
    if !subject.user.groups.is_empty() {
        claims.insert("cognito:groups".into(), json!(subject.user.groups));
    }
    claims.insert("iss".into(), issuer.into());
    claims.insert("origin_jti".into(), subject.session.into());
    claims.insert("event_id".into(), Uuid::new_v4().to_string().into());
    claims.insert("auth_time".into(), subject.auth_time.into());
    claims.insert("iat".into(), now.unix_seconds().into());
    claims
}

fn access_claims(
    subject: &TokenSubject<'_>,
    mut claims: Map<String, Value>,
    now: Timestamp,
) -> Value {
    claims.insert("client_id".into(), subject.client.id.as_str().into());
    claims.insert("token_use".into(), "access".into());
    claims.insert("scope".into(), SCOPE.into());
    claims.insert(
        "exp".into(),
        expiry(now, subject.client.settings.access_token_s),
    );
    claims.insert("jti".into(), Uuid::new_v4().to_string().into());
    claims.insert("username".into(), subject.user.username.as_str().into());
    Value::Object(claims)
}

/// Adds the user attributes that the client may read. Access tokens have none.
fn id_claims(subject: &TokenSubject<'_>, mut claims: Map<String, Value>, now: Timestamp) -> Value {
    for (name, value) in subject.user.attributes.iter() {
        if subject.client.may_read(name) {
            let flag = matches!(name.as_str(), "email_verified" | "phone_number_verified");
            let value = if flag {
                Value::Bool(value == "true")
            } else {
                value.as_str().into()
            };
            claims.insert(name.clone(), value);
        }
    }
    claims.insert("aud".into(), subject.client.id.as_str().into());
    claims.insert("token_use".into(), "id".into());
    claims.insert(
        "exp".into(),
        expiry(now, subject.client.settings.id_token_s),
    );
    claims.insert("jti".into(), Uuid::new_v4().to_string().into());
    claims.insert(
        "cognito:username".into(),
        subject.user.username.as_str().into(),
    );
    Value::Object(claims)
}

fn expiry(now: Timestamp, lifetime_s: u64) -> Value {
    now.unix_seconds()
        .saturating_add(i64::try_from(lifetime_s).unwrap_or(i64::MAX))
        .into()
}

/// Verifies an access token that this server issued: signature, issuer, use, expiry, and that its
/// sign-in was not revoked.
///
/// Returns the claims and the user.
pub(crate) fn verify(
    context: &PoolContext,
    token: &str,
) -> Result<(AccessTokenClaims, User), ApiError> {
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
