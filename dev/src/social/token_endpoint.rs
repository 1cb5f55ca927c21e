//! The token endpoint (RFC 6749 section 3.2, RFC 7636, OpenID Connect Core section 3.1.3) and the
//! userinfo endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawForm, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderMap, PRAGMA, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use postern_service::http::{bearer, json, no_store};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::SocialProvider;
use super::grants::PersonGrant;
use super::persons::SocialPerson;

/// Lifetime of access and ID tokens in seconds.
const TOKEN_LIFETIME_S: i64 = 3600;

/// `typ` of access tokens (RFC 9068).
const ACCESS_TOKEN_TYPE: &str = "at+jwt";

/// An error response (RFC 6749 section 5.2): error code and description.
#[derive(Debug)]
struct OAuthError(&'static str, &'static str);

/// `POST /token`
pub(super) async fn exchange(
    State(provider): State<Arc<SocialProvider>>,
    headers: HeaderMap,
    RawForm(form): RawForm,
) -> Response {
    match issue_for_request(&provider, &headers, &form).await {
        Ok(tokens) => with_no_store(json(StatusCode::OK, &tokens)),
        Err(OAuthError(error, description)) => error_response(error, description),
    }
}

async fn issue_for_request(
    provider: &SocialProvider,
    headers: &HeaderMap,
    form: &[u8],
) -> Result<Value, OAuthError> {
    let mut parameters = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(form) {
        if parameters
            .insert(name.into_owned(), value.into_owned())
            .is_some()
        {
            return Err(OAuthError("invalid_request", "a parameter is repeated"));
        }
    }
    authenticate(provider, headers, &parameters)?;
    match parameters.get("grant_type").map(String::as_str) {
        Some("authorization_code") => exchange_code(provider, &parameters).await,
        Some("refresh_token") => exchange_refresh_token(provider, &parameters).await,
        Some(_) => Err(OAuthError(
            "unsupported_grant_type",
            "authorization_code or refresh_token",
        )),
        None => Err(OAuthError("invalid_request", "grant_type is missing")),
    }
}

async fn exchange_code(
    provider: &SocialProvider,
    parameters: &BTreeMap<String, String>,
) -> Result<Value, OAuthError> {
    let get = |name: &str| parameters.get(name).map_or("", String::as_str);
    let pending = provider.grants.redeem_code(get("code"));
    let Some(pending) = pending else {
        return Err(OAuthError(
            "invalid_grant",
            "the code is unknown, used or expired",
        ));
    };
    if pending.redirect_uri != get("redirect_uri") {
        return Err(OAuthError(
            "invalid_grant",
            "redirect_uri differs from the authorization request",
        ));
    }
    if !is_verifier(get("code_verifier"), &pending.challenge) {
        return Err(OAuthError(
            "invalid_grant",
            "code_verifier does not match the challenge",
        ));
    }
    issue_tokens(provider, &pending.grant, pending.nonce.as_deref()).await
}

async fn exchange_refresh_token(
    provider: &SocialProvider,
    parameters: &BTreeMap<String, String>,
) -> Result<Value, OAuthError> {
    let token = parameters.get("refresh_token").map_or("", String::as_str);
    let found = provider.grants.redeem_refresh_token(token).await;
    let Some(mut grant) = found.map_err(|error| store_error(&error))? else {
        return Err(OAuthError(
            "invalid_grant",
            "the refresh token is unknown, used or expired",
        ));
    };
    if let Some(narrower) = parameters.get("scope") {
        if !narrower
            .split(' ')
            .all(|scope| grant.scope.split(' ').any(|granted| granted == scope))
        {
            return Err(OAuthError("invalid_scope", "more than was granted"));
        }
        grant.scope.clone_from(narrower);
    }
    issue_tokens(provider, &grant, None).await
}

async fn issue_tokens(
    provider: &SocialProvider,
    grant: &PersonGrant,
    nonce: Option<&str>,
) -> Result<Value, OAuthError> {
    let now = provider.clock.now().unix_seconds();
    let subject = &grant.person.subject;
    let mut access = claims_of(&grant.person, &grant.scope);
    access.extend(object(json!({
        "iss": provider.issuer, "sub": subject, "aud": provider.issuer, "client_id": provider.client.id,
        "iat": now, "exp": now + TOKEN_LIFETIME_S, "scope": grant.scope, "jti": super::grants::random_token(),
    })));
    let access_token = provider
        .key
        .sign(Some(ACCESS_TOKEN_TYPE), &Value::Object(access));
    let refresh_token = provider
        .grants
        .issue_refresh_token(grant)
        .await
        .map_err(|error| store_error(&error))?;
    let mut tokens = json!({
        "access_token": access_token, "token_type": "Bearer", "expires_in": TOKEN_LIFETIME_S,
        "refresh_token": refresh_token, "scope": grant.scope,
    });
    if grant.scope.split(' ').any(|scope| scope == "openid") {
        let half = &Sha256::digest(access_token.as_bytes())[..16];
        let mut id = claims_of(&grant.person, &grant.scope);
        id.extend(object(json!({
            "iss": provider.issuer, "sub": subject, "aud": provider.client.id, "iat": now,
            "exp": now + TOKEN_LIFETIME_S, "auth_time": grant.authenticated_at.unix_seconds(),
            "at_hash": URL_SAFE_NO_PAD.encode(half),
        })));
        id.extend(nonce.map(|nonce| ("nonce".to_owned(), Value::from(nonce))));
        tokens["id_token"] = provider.key.sign(Some("JWT"), &Value::Object(id)).into();
    }
    Ok(tokens)
}

/// `GET` or `POST /userinfo` with the access token.
pub(super) async fn userinfo(
    State(provider): State<Arc<SocialProvider>>,
    headers: HeaderMap,
) -> Response {
    let claims = bearer(&headers)
        .ok()
        .and_then(|token| provider.key.verify(Some(ACCESS_TOKEN_TYPE), token));
    let now = provider.clock.now().unix_seconds();
    let claims = claims.filter(|claims| claims["exp"].as_i64().is_some_and(|exp| exp > now));
    let Some(Value::Object(mut claims)) = claims else {
        let challenge = [(
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer error=\"invalid_token\""),
        )];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    };
    for own in ["iss", "aud", "client_id", "iat", "exp", "scope", "jti"] {
        claims.remove(own);
    }
    no_store(json(StatusCode::OK, &claims))
}

/// Returns the standard claims that the scopes grant (OpenID Connect Core section 5.4).
fn claims_of(person: &SocialPerson, scope: &str) -> Map<String, Value> {
    let has = |wanted: &str| scope.split(' ').any(|scope| scope == wanted);
    let mut claims = Map::new();
    if let Some(email) = person.email.as_ref().filter(|_| has("email")) {
        claims.insert("email".to_owned(), email.as_str().into());
        claims.insert("email_verified".to_owned(), person.email_verified.into());
    }
    if has("profile") {
        let (given, family) = person.split_name();
        claims.insert("name".to_owned(), person.name.as_str().into());
        claims.insert("given_name".to_owned(), given.into());
        claims.extend(family.map(|family| ("family_name".to_owned(), family.into())));
    }
    claims
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// Authenticates the client by `client_secret_basic` or `client_secret_post`, but not both (RFC
/// 6749 section 2.3).
fn authenticate(
    provider: &SocialProvider,
    headers: &HeaderMap,
    parameters: &BTreeMap<String, String>,
) -> Result<(), OAuthError> {
    let basic = headers
        .get(AUTHORIZATION)
        .map(|value| value.to_str().unwrap_or_default());
    let posted = parameters.get("client_secret");
    let (id, secret) = match (basic, posted) {
        (Some(_), Some(_)) => {
            return Err(OAuthError(
                "invalid_request",
                "only one authentication method is permitted",
            ));
        }
        (Some(basic), None) => {
            basic_credentials(basic).ok_or(OAuthError("invalid_client", "not HTTP Basic"))?
        }
        (None, Some(secret)) => (
            parameters.get("client_id").cloned().unwrap_or_default(),
            secret.clone(),
        ),
        (None, None) => return Err(OAuthError("invalid_client", "the client must authenticate")),
    };
    let named = parameters.get("client_id").is_none_or(|named| *named == id);
    let same = |left: &str, right: &str| {
        Sha256::digest(left.as_bytes()) == Sha256::digest(right.as_bytes())
    };
    if named && id == provider.client.id && same(&secret, provider.client.secret.expose()) {
        Ok(())
    } else {
        Err(OAuthError(
            "invalid_client",
            "unknown client or wrong secret",
        ))
    }
}

/// Parses HTTP Basic credentials, both parts of which are form-encoded (RFC 6749 section 2.3.1).
fn basic_credentials(header: &str) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_once(' ')?;
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (id, secret) = text.split_once(':')?;
    let decode = |text: &str| {
        url::form_urlencoded::parse(text.as_bytes())
            .next()
            .map(|(name, _)| name.into_owned())
            .unwrap_or_default()
    };
    scheme
        .eq_ignore_ascii_case("basic")
        .then(|| (decode(id), decode(secret)))
}

/// Verifies a code verifier: RFC 7636 section 4.6, with the alphabet and length of section 4.1.
fn is_verifier(verifier: &str, challenge: &str) -> bool {
    (43..=128).contains(&verifier.len())
        && verifier
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        && URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())) == challenge
}

fn store_error(error: &sqlx::Error) -> OAuthError {
    tracing::error!(%error, "social provider store failed");
    OAuthError("server_error", "the provider's store failed")
}

fn error_response(error: &str, description: &str) -> Response {
    let status = match error {
        "invalid_client" => StatusCode::UNAUTHORIZED,
        "server_error" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    };
    let mut response = json(
        status,
        &json!({ "error": error, "error_description": description }),
    );
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"token\""),
        );
    }
    with_no_store(response)
}

fn with_no_store(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
        .headers_mut()
        .insert(PRAGMA, HeaderValue::from_static("no-cache"));
    response
}
