//! The token endpoint (RFC 6749 section 3.2, RFC 7636, OpenID Connect Core section 3.1.3) and
//! userinfo.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawForm, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderMap, PRAGMA, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use postern_common::http::{bearer, json, no_store};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Provider;
use super::grants::{Grant, Presented};
use super::people::Person;

/// Access and ID tokens, in seconds.
const LIFETIME_S: i64 = 3600;

/// The `typ` of access tokens (RFC 9068).
const ACCESS: &str = "at+jwt";

/// A refusal of RFC 6749 section 5.2.
#[derive(Debug)]
struct Refusal(&'static str, &'static str);

/// `POST /token`
pub(super) async fn exchange(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    RawForm(form): RawForm,
) -> Response {
    match tokens(&provider, &headers, &form).await {
        Ok(tokens) => with_no_store(json(StatusCode::OK, &tokens)),
        Err(Refusal(error, description)) => refuse(error, description),
    }
}

async fn tokens(provider: &Provider, headers: &HeaderMap, form: &[u8]) -> Result<Value, Refusal> {
    let mut parameters = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(form) {
        if parameters
            .insert(name.into_owned(), value.into_owned())
            .is_some()
        {
            return Err(Refusal(
                "invalid_request",
                "a parameter stands more than once",
            ));
        }
    }
    authenticate(provider, headers, &parameters)?;
    match parameters.get("grant_type").map(String::as_str) {
        Some("authorization_code") => by_code(provider, &parameters).await,
        Some("refresh_token") => by_refresh_token(provider, &parameters).await,
        Some(_) => Err(Refusal(
            "unsupported_grant_type",
            "authorization_code or refresh_token",
        )),
        None => Err(Refusal("invalid_request", "grant_type is missing")),
    }
}

async fn by_code(
    provider: &Provider,
    parameters: &BTreeMap<String, String>,
) -> Result<Value, Refusal> {
    let get = |name: &str| parameters.get(name).map_or("", String::as_str);
    let pending = match provider
        .grants
        .take_code(get("code"))
        .await
        .map_err(|error| failed(&error))?
    {
        Presented::Good(pending) => pending,
        Presented::Unknown => {
            return Err(Refusal(
                "invalid_grant",
                "the code is unknown or has expired",
            ));
        }
        Presented::Reused => return Err(Refusal("invalid_grant", "the code was used before")),
    };
    if pending.redirect_uri != get("redirect_uri") {
        return Err(Refusal(
            "invalid_grant",
            "redirect_uri differs from the authorization request",
        ));
    }
    if !is_verifier(get("code_verifier"), &pending.challenge) {
        return Err(Refusal(
            "invalid_grant",
            "code_verifier does not match the challenge",
        ));
    }
    answer(provider, &pending.grant, pending.nonce.as_deref()).await
}

async fn by_refresh_token(
    provider: &Provider,
    parameters: &BTreeMap<String, String>,
) -> Result<Value, Refusal> {
    let token = parameters.get("refresh_token").map_or("", String::as_str);
    let mut grant = match provider
        .grants
        .take_refresh_token(token)
        .await
        .map_err(|error| failed(&error))?
    {
        Presented::Good(grant) => grant,
        Presented::Unknown => {
            return Err(Refusal(
                "invalid_grant",
                "the refresh token is unknown or expired",
            ));
        }
        Presented::Reused => {
            return Err(Refusal(
                "invalid_grant",
                "the refresh token was used before",
            ));
        }
    };
    if let Some(narrower) = parameters.get("scope") {
        if !narrower
            .split(' ')
            .all(|scope| grant.scope.split(' ').any(|granted| granted == scope))
        {
            return Err(Refusal("invalid_scope", "more than was granted"));
        }
        grant.scope.clone_from(narrower);
    }
    answer(provider, &grant, None).await
}

async fn answer(provider: &Provider, grant: &Grant, nonce: Option<&str>) -> Result<Value, Refusal> {
    let now = provider.clock.now().unix_seconds();
    let subject = &grant.person.subject;
    let mut access = claims_of(&grant.person, &grant.scope);
    access.extend(object(json!({
        "iss": provider.issuer, "sub": subject, "aud": provider.issuer, "client_id": provider.client.id,
        "iat": now, "exp": now + LIFETIME_S, "scope": grant.scope, "jti": super::grants::random(),
    })));
    let access_token = provider.key.sign(ACCESS, &Value::Object(access));
    let refresh_token = provider
        .grants
        .issue_refresh_token(grant)
        .await
        .map_err(|error| failed(&error))?;
    let mut tokens = json!({
        "access_token": access_token, "token_type": "Bearer", "expires_in": LIFETIME_S,
        "refresh_token": refresh_token, "scope": grant.scope,
    });
    if grant.scope.split(' ').any(|scope| scope == "openid") {
        let half = &Sha256::digest(access_token.as_bytes())[..16];
        let mut id = claims_of(&grant.person, &grant.scope);
        id.extend(object(json!({
            "iss": provider.issuer, "sub": subject, "aud": provider.client.id, "iat": now,
            "exp": now + LIFETIME_S, "auth_time": grant.authenticated_at.unix_seconds(),
            "at_hash": URL_SAFE_NO_PAD.encode(half),
        })));
        id.extend(nonce.map(|nonce| ("nonce".to_owned(), Value::from(nonce))));
        tokens["id_token"] = provider.key.sign("JWT", &Value::Object(id)).into();
    }
    Ok(tokens)
}

/// `GET` or `POST /userinfo` with the access token.
pub(super) async fn userinfo(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Response {
    let claims = bearer(&headers)
        .ok()
        .and_then(|token| provider.key.verify(ACCESS, token));
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

/// The standard claims that the scopes open (OpenID Connect Core section 5.4).
fn claims_of(person: &Person, scope: &str) -> Map<String, Value> {
    let has = |wanted: &str| scope.split(' ').any(|scope| scope == wanted);
    let mut claims = Map::new();
    if let Some(email) = person.email.as_ref().filter(|_| has("email")) {
        claims.insert("email".to_owned(), email.as_str().into());
        claims.insert("email_verified".to_owned(), person.email_verified.into());
    }
    if has("profile") {
        let (given, family) = person.names();
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

/// `client_secret_basic` or `client_secret_post`, and not both (RFC 6749 section 2.3).
fn authenticate(
    provider: &Provider,
    headers: &HeaderMap,
    parameters: &BTreeMap<String, String>,
) -> Result<(), Refusal> {
    let basic = headers
        .get(AUTHORIZATION)
        .map(|value| value.to_str().unwrap_or_default());
    let posted = parameters.get("client_secret");
    let (id, secret) = match (basic, posted) {
        (Some(_), Some(_)) => {
            return Err(Refusal("invalid_request", "authenticate in one way only"));
        }
        (Some(basic), None) => {
            basic_credentials(basic).ok_or(Refusal("invalid_client", "not HTTP Basic"))?
        }
        (None, Some(secret)) => (
            parameters.get("client_id").cloned().unwrap_or_default(),
            secret.clone(),
        ),
        (None, None) => return Err(Refusal("invalid_client", "the client must authenticate")),
    };
    let named = parameters.get("client_id").is_none_or(|named| *named == id);
    let same = |left: &str, right: &str| {
        Sha256::digest(left.as_bytes()) == Sha256::digest(right.as_bytes())
    };
    if named && id == provider.client.id && same(&secret, provider.client.secret.expose()) {
        Ok(())
    } else {
        Err(Refusal("invalid_client", "unknown client or wrong secret"))
    }
}

/// Both halves are form-encoded before they are joined (RFC 6749 section 2.3.1).
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

/// RFC 7636 section 4.6, and the alphabet and length of section 4.1.
fn is_verifier(verifier: &str, challenge: &str) -> bool {
    (43..=128).contains(&verifier.len())
        && verifier
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        && URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())) == challenge
}

fn failed(error: &sqlx::Error) -> Refusal {
    tracing::error!(%error, "social provider store");
    Refusal("server_error", "the provider cannot reach its store")
}

fn refuse(error: &str, description: &str) -> Response {
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
