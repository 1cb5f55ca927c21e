//! Tokens in the shape that Cognito gives them.

use jsonwebtoken::{Algorithm, Validation};
use postern_common::clock::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::fault::Fault;
use crate::pool::Client;
use crate::server::Server;
use crate::user::User;

/// The one scope of tokens that the API gives out.
const SCOPE: &str = "aws.cognito.signin.user.admin";

/// A user signed in through a client.
#[derive(Debug)]
pub(crate) struct SignIn<'a> {
    pub(crate) client: &'a Client,
    pub(crate) user: &'a User,
    /// The names of its groups, the one with the lowest precedence number first.
    pub(crate) groups: &'a [String],
    /// The family of refresh tokens that this sign-in began: the claim `origin_jti`.
    pub(crate) family: &'a str,
    /// When the password was given, in Unix seconds.
    pub(crate) auth_time: i64,
}

/// An access token that was verified.
#[derive(Debug, Deserialize)]
pub(crate) struct AccessToken {
    pub(crate) client_id: String,
    pub(crate) username: String,
    pub(crate) origin_jti: String,
    iss: String,
    token_use: String,
    exp: i64,
}

/// Signs an access and an ID token: the `AuthenticationResultType` without a refresh token.
pub(crate) async fn issue(server: &Server, sign_in: &SignIn<'_>) -> Result<Value, Fault> {
    let now = server.clock.now();
    server.keys.wait().await?;
    let key = server.keys.current(&sign_in.client.pool_id, now)?;
    let settings = &sign_in.client.settings;
    let issuer = server.issuer(&sign_in.client.pool_id);
    let common = common_claims(sign_in, &issuer, now);
    let access = key.sign(&access_claims(sign_in, common.clone(), now))?;
    let id = key.sign(&id_claims(sign_in, common, now))?;
    Ok(json!({
        "AccessToken": access,
        "IdToken": id,
        "ExpiresIn": settings.access_token_s,
        "TokenType": "Bearer",
    }))
}

fn common_claims(sign_in: &SignIn<'_>, issuer: &str, now: Timestamp) -> Map<String, Value> {
    let mut claims = Map::new();
    claims.insert("sub".into(), sign_in.user.sub.as_str().into());
    if !sign_in.groups.is_empty() {
        claims.insert("cognito:groups".into(), sign_in.groups.into());
    }
    claims.insert("iss".into(), issuer.into());
    claims.insert("origin_jti".into(), sign_in.family.into());
    claims.insert("event_id".into(), Uuid::new_v4().to_string().into());
    claims.insert("auth_time".into(), sign_in.auth_time.into());
    claims.insert("iat".into(), now.unix_seconds().into());
    claims
}

fn access_claims(sign_in: &SignIn<'_>, mut claims: Map<String, Value>, now: Timestamp) -> Value {
    claims.insert("client_id".into(), sign_in.client.id.as_str().into());
    claims.insert("token_use".into(), "access".into());
    claims.insert("scope".into(), SCOPE.into());
    claims.insert(
        "exp".into(),
        expiry(now, sign_in.client.settings.access_token_s),
    );
    claims.insert("jti".into(), Uuid::new_v4().to_string().into());
    claims.insert("username".into(), sign_in.user.username.as_str().into());
    Value::Object(claims)
}

/// Attributes stand here alone, and only those that the client may read.
fn id_claims(sign_in: &SignIn<'_>, mut claims: Map<String, Value>, now: Timestamp) -> Value {
    for (name, value) in sign_in.user.attributes.iter() {
        if sign_in.client.may_read(name) {
            let flag = matches!(name.as_str(), "email_verified" | "phone_number_verified");
            let value = if flag {
                Value::Bool(value == "true")
            } else {
                value.as_str().into()
            };
            claims.insert(name.clone(), value);
        }
    }
    claims.insert("aud".into(), sign_in.client.id.as_str().into());
    claims.insert("token_use".into(), "id".into());
    claims.insert(
        "exp".into(),
        expiry(now, sign_in.client.settings.id_token_s),
    );
    claims.insert("jti".into(), Uuid::new_v4().to_string().into());
    claims.insert(
        "cognito:username".into(),
        sign_in.user.username.as_str().into(),
    );
    Value::Object(claims)
}

fn expiry(now: Timestamp, lifetime_s: u64) -> Value {
    now.unix_seconds()
        .saturating_add(i64::try_from(lifetime_s).unwrap_or(i64::MAX))
        .into()
}

/// Verifies an access token of ours: signature, issuer, use, expiry, and that its sign-in still
/// stands.
///
/// Returns the token and the pool that signed it.
pub(crate) async fn verify(server: &Server, token: &str) -> Result<(AccessToken, String), Fault> {
    let invalid = || Fault::not_authorized("Invalid Access Token");
    let kid = jsonwebtoken::decode_header(token)
        .ok()
        .and_then(|header| header.kid)
        .ok_or_else(invalid)?;
    let pools = server.directory.pool_ids();
    let found = pools
        .into_iter()
        .find_map(|pool| Some((server.keys.find(&pool, &kid)?, pool)));
    let (key, pool_id) = found.ok_or_else(invalid)?;
    let mut validation = Validation::new(Algorithm::RS256);
    // Expiry is checked below against the server's own clock.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let claims = jsonwebtoken::decode::<AccessToken>(token, &key.decoding_key()?, &validation)
        .map_err(|_| invalid())?
        .claims;
    if claims.token_use != "access" || claims.iss != server.issuer(&pool_id) {
        return Err(invalid());
    }
    if claims.exp <= server.clock.now().unix_seconds() {
        return Err(Fault::not_authorized("Access Token has expired"));
    }
    if !server.store.family_lives(&claims.origin_jti).await? {
        return Err(Fault::not_authorized("Access Token has been revoked"));
    }
    Ok((claims, pool_id))
}
