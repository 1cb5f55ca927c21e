//! Conversion of request bodies and queries into the types of the flows, or a list of all errors.

use std::collections::HashMap;

use postern_core::decode::{Field, Object};
use postern_core::email::EmailAddress;
use postern_core::{Problem, Secret};
use postern_service::http::Query;
use url::form_urlencoded;

use super::profile::profile;
use crate::flows::{
    ChallengeAnswer, ConfirmationRequest, LoginRequest, RegistrationRequest, ResetRequest,
    SocialCallback, is_code_challenge,
};

/// Maximum length of a sealed text. This service issues texts below 8 KiB.
const MAX_SEALED_BYTES: usize = 16 << 10;
const MAX_TEMPORARY_TOKEN_BYTES: usize = 256;
const MAX_CALLBACK_PARAMETER_BYTES: usize = 4096;

#[derive(Clone, Debug)]
pub(super) enum LegacySession {
    Login(LoginRequest),
    Refresh(String),
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

/// Reads a temporary token, and the PKCE verifier of the UI if there is one.
pub(super) fn exchange(body: &Object<'_>) -> Option<(String, Option<String>)> {
    let token = body.required("temporaryToken", temporary_token);
    // RFC 7636 section 4.1: 43 to 128 characters.
    let verifier = body.optional("codeVerifier", |field| field.text(43..=128));
    Some((token?, verifier))
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

/// Reads a password of 1 to 256 characters. Its strength is checked by the pool. The maximum is
/// Cognito's and bounds the cost of hashing.
pub(super) fn password(field: Field<'_>) -> Option<Secret> {
    field.sized(1..=256).map(Secret::from)
}

/// Reads the query of `GET /auth/social/login`: the index of `provider` in `names`, and
/// `code_challenge`. The only supported method is S256.
pub(super) fn social_query(
    query: &str,
    names: &[&str],
    is_required: bool,
) -> Result<(usize, Option<String>), Problem> {
    let known = ["provider", "code_challenge", "code_challenge_method"];
    let mut query = Query::parse(query, &known);
    let expected = format!("must be one of {}", names.join(", "));
    let provider = query.read("provider", &expected, |wanted| {
        names.iter().position(|name| *name == wanted)
    });
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
    query.finish().map(|()| (provider.unwrap_or(0), challenge))
}

/// Reads query and form of a callback. Unknown parameters are ignored; repeated ones count as absent.
pub(super) fn social_callback(parts: &[&[u8]]) -> SocialCallback {
    let parameters = parts.iter().flat_map(|part| form_urlencoded::parse(part));
    let parameters: Vec<_> = parameters.collect();
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
        provider: read("provider"),
        user: read("user"),
    }
}

#[cfg(test)]
mod tests {
    use postern_core::Code;

    use super::*;

    #[test]
    fn unknown_callback_parameters_are_ignored() {
        let query = b"code=c&state=s&scope=openid&hd=example.com&iss=https%3A%2F%2Fa";
        let read = social_callback(&[query, b"user=%7B%7D"]);
        assert_eq!(read.user.as_deref(), Some("{}"));
        assert_eq!(
            (read.code.as_deref(), read.state.as_deref()),
            (Some("c"), Some("s"))
        );
        assert_eq!(
            (read.issuer.as_deref(), read.error),
            (Some("https://a"), None)
        );
        assert_eq!(
            social_callback(&[b"code=a&state=", b"code=b"]),
            SocialCallback::default()
        );
    }

    #[test]
    fn invalid_code_challenge_is_rejected() {
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        let read = |query: &str, is_required| {
            let read = social_query(query, &["google", "apple"], is_required);
            read.map_err(|problem| problem.code())
        };
        assert_eq!(read("", false), Ok((0, None)));
        assert_eq!(read("provider=apple", false), Ok((1, None)));
        let sent = format!("code_challenge={challenge}");
        for is_required in [false, true] {
            assert_eq!(
                read(&sent, is_required),
                Ok((0, Some(challenge.to_owned())))
            );
        }
        for invalid in [
            "codeChallenge=x",
            "code_challenge=x",
            "code_challenge_method=plain",
            "provider=",
            "provider=Google",
            &format!("{sent}&{sent}"),
        ] {
            assert_eq!(read(invalid, false), Err(Code::InvalidRequest), "{invalid}");
        }
        let absent = read("code_challenge_method=S256", true);
        assert_eq!(absent, Err(Code::InvalidRequest));
    }
}
