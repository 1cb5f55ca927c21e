//! Conversion of request bodies and queries into the types of the flows, or a list of all errors.

use std::collections::HashMap;

use postern_common::decode::{Field, Object};
use postern_common::email::EmailAddress;
use postern_common::http::Query;
use postern_common::{Problem, Secret};

use super::profile::profile;
use crate::flows::{
    ChallengeAnswer, ConfirmationRequest, LoginRequest, RegistrationRequest, ResetRequest,
    SocialCallback, is_code_challenge,
};

/// Maximum length of a sealed text. This service issues texts below 8 KiB.
const MAX_SEALED_BYTES: usize = 16 << 10;
/// Maximum length of a temporary token.
const MAX_TEMPORARY_TOKEN_BYTES: usize = 256;
/// Maximum length of a callback parameter.
const MAX_CALLBACK_PARAMETER_BYTES: usize = 4096;

/// The body of `POST /api/session`.
#[derive(Clone, Debug)]
pub(super) enum LegacySession {
    Login(LoginRequest),
    Refresh(String),
}

/// The body of `POST /auth/tokens/exchange`.
#[derive(Clone, Debug)]
pub(super) struct ExchangeRequest {
    pub(super) token: String,
    /// The PKCE verifier of the UI.
    pub(super) verifier: Option<String>,
}

pub(super) fn login(body: &Object<'_>) -> Option<LoginRequest> {
    let email = body.required("email", EmailAddress::read);
    let password = body.required("password", password);
    Some(LoginRequest {
        email: email?,
        password: password?,
    })
}

pub(super) fn registration(body: &Object<'_>) -> Option<RegistrationRequest> {
    let email = body.required("email", EmailAddress::read);
    let password = body.required("password", password);
    let profile = body.optional("profile", profile).unwrap_or_default();
    Some(RegistrationRequest {
        email: email?,
        password: password?,
        profile,
    })
}

pub(super) fn confirmation(body: &Object<'_>) -> Option<ConfirmationRequest> {
    let session = body.required("session", sealed);
    let code = body.required("code", code);
    let password = body.required("password", password);
    Some(ConfirmationRequest {
        session: session?,
        code: code?,
        password: password?,
    })
}

pub(super) fn challenge(body: &Object<'_>) -> Option<ChallengeAnswer> {
    let session = body.required("session", sealed);
    let new_password = body
        .optional("newPassword", password)
        .map(|secret| secret.expose().to_owned());
    let code = body.optional("code", code);
    let responses = body.section("responses", |responses| {
        Some(responses.entries(|name, value| Some((name.to_owned(), value.string()?.to_owned()))))
    });
    let responses: HashMap<String, String> = responses.unwrap_or_default().into_iter().collect();
    Some(ChallengeAnswer {
        session: session?,
        new_password,
        code,
        responses,
    })
}

pub(super) fn exchange(body: &Object<'_>) -> Option<ExchangeRequest> {
    let token = body.required("temporaryToken", temporary_token);
    // RFC 7636 section 4.1: 43 to 128 characters.
    let verifier = body.optional("codeVerifier", |field| field.text(43..=128));
    Some(ExchangeRequest {
        token: token?,
        verifier,
    })
}

pub(super) fn refresh_token(body: &Object<'_>) -> Option<String> {
    body.required("refreshToken", sealed)
}

pub(super) fn email(body: &Object<'_>) -> Option<EmailAddress> {
    body.required("email", EmailAddress::read)
}

pub(super) fn reset(body: &Object<'_>) -> Option<ResetRequest> {
    let email = body.required("email", EmailAddress::read);
    let code = body.required("code", code);
    let new_password = body.required("newPassword", password);
    Some(ResetRequest {
        email: email?,
        code: code?,
        new_password: new_password?,
    })
}

/// Reads either `email` and `password`, or `refreshToken`.
pub(super) fn legacy_session(body: &Object<'_>) -> Option<LegacySession> {
    if !body.has("refreshToken") {
        return login(body).map(LegacySession::Login);
    }
    let token = refresh_token(body);
    if body.has("email") || body.has("password") {
        body.fail(
            "conflicting_fields",
            "send `email` and `password`, or `refreshToken`, not both",
        );
    }
    token.map(LegacySession::Refresh)
}

fn sealed(field: Field<'_>) -> Option<String> {
    field.text(1..=MAX_SEALED_BYTES)
}

fn temporary_token(field: Field<'_>) -> Option<String> {
    field.text(1..=MAX_TEMPORARY_TOKEN_BYTES)
}

fn code(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=64)?;
    Some(text.trim().to_owned())
        .filter(|text| !text.is_empty())
        .or_else(|| field.fail("invalid_format", "is empty"))
}

/// Reads a password of 1 to 256 bytes. Its strength is checked by the pool. The maximum is
/// Cognito's and bounds the cost of hashing.
fn password(field: Field<'_>) -> Option<Secret> {
    let text = field.string()?;
    if (1..=256).contains(&text.len()) {
        return Some(Secret::from(text));
    }
    field.fail("invalid_length", "must be 1 to 256 bytes long")
}

/// Reads `code_challenge` from the query of `GET /auth/social/login`. The only supported method is
/// S256.
pub(super) fn social_query(query: &str, is_required: bool) -> Result<Option<String>, Problem> {
    let mut query = Query::parse(query, &["code_challenge", "code_challenge_method"]);
    if is_required && query.get("code_challenge").is_none() {
        query.fail("code_challenge", "missing_field", "is required");
    }
    let expected = "must be 32 bytes in base64url without padding";
    let challenge = query.read("code_challenge", expected, |text| {
        is_code_challenge(text).then(|| text.to_owned())
    });
    query.read("code_challenge_method", "must be S256", |method| {
        (method == "S256").then_some(())
    });
    query.finish().map(|()| challenge)
}

/// Reads the query of a callback. Unknown parameters are ignored; repeated ones count as absent.
pub(super) fn social_callback(query: &str) -> SocialCallback {
    let parameters: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
    let read = |wanted: &str| {
        let mut values = parameters.iter().filter(|(name, _)| name == wanted);
        let (Some((_, value)), None) = (values.next(), values.next()) else {
            return None;
        };
        let is_valid = !value.is_empty() && value.len() <= MAX_CALLBACK_PARAMETER_BYTES;
        is_valid.then(|| value.to_string())
    };
    SocialCallback {
        code: read("code"),
        state: read("state"),
        error: read("error"),
        issuer: read("iss"),
    }
}

#[cfg(test)]
mod tests {
    use postern_common::Code;

    use super::*;

    #[test]
    fn unknown_callback_parameters_are_ignored() {
        let read =
            social_callback("code=c&state=s&scope=openid&hd=example.com&iss=https%3A%2F%2Fa");
        assert_eq!(
            (read.code.as_deref(), read.state.as_deref()),
            (Some("c"), Some("s"))
        );
        assert_eq!(
            (read.issuer.as_deref(), read.error),
            (Some("https://a"), None)
        );
        assert_eq!(
            social_callback("code=a&code=b&state="),
            SocialCallback::default()
        );
    }

    #[test]
    fn invalid_code_challenge_is_rejected() {
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        let read = |query: &str| social_query(query, false).map_err(|problem| problem.code());
        assert_eq!(read(""), Ok(None));
        assert_eq!(
            read(&format!("code_challenge={challenge}")),
            Ok(Some(challenge.to_owned()))
        );
        for invalid in [
            "codeChallenge=x",
            "code_challenge=x",
            "code_challenge_method=plain",
        ] {
            assert_eq!(read(invalid), Err(Code::InvalidRequest), "{invalid}");
        }
        assert!(
            read(&format!(
                "code_challenge={challenge}&code_challenge={challenge}"
            ))
            .is_err()
        );
        let required = |query: &str| social_query(query, true).map_err(|problem| problem.code());
        assert_eq!(
            required(&format!("code_challenge={challenge}")),
            Ok(Some(challenge.to_owned()))
        );
        assert_eq!(
            required("code_challenge_method=S256"),
            Err(Code::InvalidRequest)
        );
    }
}
