//! The token endpoint (RFC 6749 section 3.2, RFC 7636, OpenID Connect Core section 3.1.3).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawForm, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::StatusCode;
use http::header::{AUTHORIZATION, HeaderMap};
use postern_service::http::json as json_response;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::SocialProvider;
use super::codes::IssuedCode;
use crate::random;

const TOKEN_LIFETIME_S: i64 = 3600;

/// An error response (RFC 6749 section 5.2): error code and description.
#[derive(Debug)]
struct OAuthError(&'static str, &'static str);

pub(super) async fn exchange(
    State(provider): State<Arc<SocialProvider>>,
    headers: HeaderMap,
    RawForm(form): RawForm,
) -> Response {
    match issue_for_request(&provider, &headers, &form) {
        Ok(tokens) => json_response(StatusCode::OK, &tokens),
        Err(OAuthError(error, description)) => {
            let status = match error {
                "invalid_client" => StatusCode::UNAUTHORIZED,
                _ => StatusCode::BAD_REQUEST,
            };
            let body = json!({ "error": error, "error_description": description });
            json_response(status, &body)
        }
    }
}

fn issue_for_request(
    provider: &SocialProvider,
    headers: &HeaderMap,
    form: &[u8],
) -> Result<Value, OAuthError> {
    let parameters = url::form_urlencoded::parse(form).into_owned().collect();
    authenticate(provider, headers, &parameters)?;
    match parameters.get("grant_type").map(String::as_str) {
        Some("authorization_code") => exchange_code(provider, &parameters),
        _ => Err(OAuthError("unsupported_grant_type", "authorization_code")),
    }
}

fn exchange_code(
    provider: &SocialProvider,
    parameters: &BTreeMap<String, String>,
) -> Result<Value, OAuthError> {
    let get = |name: &str| parameters.get(name).map_or("", String::as_str);
    let invalid = |reason| Err(OAuthError("invalid_grant", reason));
    let Some(issued) = provider.redeem(get("code")) else {
        return invalid("the code is unknown, used or expired");
    };
    if issued.request.redirect_uri != get("redirect_uri") {
        return invalid("redirect_uri differs from the authorization request");
    }
    if !is_verifier(get("code_verifier"), &issued.request.challenge) {
        return invalid("code_verifier does not match the challenge");
    }
    Ok(issue_tokens(provider, &issued))
}

fn issue_tokens(provider: &SocialProvider, issued: &IssuedCode) -> Value {
    let now = provider.clock.now().unix_seconds();
    let mut tokens = json!({
        "access_token": random::token(), "token_type": "Bearer", "expires_in": TOKEN_LIFETIME_S,
        "refresh_token": random::token(), "scope": issued.request.scope,
    });
    if issued.request.has_scope("openid") {
        let mut claims = json!({
            "iss": provider.issuer, "sub": issued.person.subject, "aud": provider.client.id, "iat": now,
            "exp": now + TOKEN_LIFETIME_S,
        });
        if let Some(nonce) = &issued.request.nonce {
            claims["nonce"] = nonce.as_str().into();
        }
        add_claims(&mut claims, issued);
        tokens["id_token"] = provider.key.sign(&claims).into();
    }
    tokens
}

/// Adds the standard claims that the scopes grant (OpenID Connect Core section 5.4).
fn add_claims(
    claims: &mut Value,
    IssuedCode {
        person, request, ..
    }: &IssuedCode,
) {
    let email = person.email.as_deref();
    if let Some(email) = email.filter(|_| request.has_scope("email")) {
        claims["email"] = email.into();
        claims["email_verified"] = person.email_verified.into();
    }
    if request.has_scope("profile") {
        let (given, family) = person.split_name();
        claims["name"] = person.name.as_str().into();
        claims["given_name"] = given.into();
        if let Some(family) = family {
            claims["family_name"] = family.into();
        }
    }
}

/// Authenticates the client by `client_secret_basic` or `client_secret_post` (RFC 6749 section 2.3).
fn authenticate(
    provider: &SocialProvider,
    headers: &HeaderMap,
    parameters: &BTreeMap<String, String>,
) -> Result<(), OAuthError> {
    let basic = headers
        .get(AUTHORIZATION)
        .map(|value| value.to_str().unwrap_or_default());
    let get = |name: &str| parameters.get(name).cloned().unwrap_or_default();
    let (id, secret) = match basic {
        Some(basic) => {
            basic_credentials(basic).ok_or(OAuthError("invalid_client", "not HTTP Basic"))?
        }
        None => (get("client_id"), get("client_secret")),
    };
    if id == provider.client.id && secret == provider.client.secret.expose() {
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

/// Verifies a code verifier (RFC 7636 section 4.6).
fn is_verifier(verifier: &str, challenge: &str) -> bool {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())) == challenge
}
