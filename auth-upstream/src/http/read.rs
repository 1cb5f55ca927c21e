//! Requests become types here, or a list of every mistake in them.

use std::collections::{BTreeMap, HashMap};

use postern_common::decode::{Field, Object};
use postern_common::{Code, Problem};

use crate::challenge::Answer;
use crate::email::{Email, password};
use crate::login::Login;
use crate::password::Reset;
use crate::profile;
use crate::register::{Confirmation, Registration};
use crate::session::Older;
use crate::social::Callback;
use crate::temporary_token;

/// Sealed texts that we gave out: our own are below 8 KiB.
const SEALED_BYTES: usize = 16 << 10;

pub(super) fn login(body: &Object<'_>) -> Option<Login> {
    let email = body.required("email", Email::read);
    let password = body.required("password", password);
    Some(Login {
        email: email?,
        password: password?,
    })
}

pub(super) fn registration(body: &Object<'_>) -> Option<Registration> {
    let email = body.required("email", Email::read);
    let password = body.required("password", password);
    let profile = body.optional("profile", profile::read).unwrap_or_default();
    Some(Registration {
        email: email?,
        password: password?,
        profile,
    })
}

pub(super) fn confirmation(body: &Object<'_>) -> Option<Confirmation> {
    let session = body.required("session", sealed);
    let code = body.required("code", code);
    let password = body.required("password", password);
    Some(Confirmation {
        session: session?,
        code: code?,
        password: password?,
    })
}

pub(super) fn challenge(body: &Object<'_>) -> Option<Answer> {
    let session = body.required("session", sealed);
    let new_password = body
        .optional("newPassword", password)
        .map(|secret| secret.expose().to_owned());
    let code = body.optional("code", code);
    let responses = body.section("responses", |responses| {
        Some(responses.entries(|name, value| Some((name.to_owned(), value.string()?.to_owned()))))
    });
    let responses: HashMap<String, String> = responses.unwrap_or_default().into_iter().collect();
    Some(Answer {
        session: session?,
        new_password,
        code,
        responses,
    })
}

pub(super) fn exchange(body: &Object<'_>) -> Option<(String, Option<String>)> {
    let token = body.required("temporaryToken", opaque);
    // RFC 7636 section 4.1: 43 to 128 characters.
    let verifier = body.optional("codeVerifier", |field| field.text(43..=128));
    Some((token?, verifier))
}

pub(super) fn refresh_token(body: &Object<'_>) -> Option<String> {
    body.required("refreshToken", sealed)
}

pub(super) fn email(body: &Object<'_>) -> Option<Email> {
    body.required("email", Email::read)
}

pub(super) fn reset(body: &Object<'_>) -> Option<Reset> {
    let email = body.required("email", Email::read);
    let code = body.required("code", code);
    let new_password = body.required("newPassword", password);
    Some(Reset {
        email: email?,
        code: code?,
        new_password: new_password?,
    })
}

/// `email` and `password`, or `refreshToken`; not both.
pub(super) fn session(body: &Object<'_>) -> Option<Older> {
    if !body.has("refreshToken") {
        return login(body).map(Older::Login);
    }
    let token = refresh_token(body);
    if body.has("email") || body.has("password") {
        body.fail(
            "conflicting_fields",
            "send `email` and `password`, or `refreshToken`, not both",
        );
    }
    token.map(Older::Refresh)
}

fn sealed(field: Field<'_>) -> Option<String> {
    field.text(1..=SEALED_BYTES)
}

fn opaque(field: Field<'_>) -> Option<String> {
    field.text(1..=256)
}

fn code(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=64)?;
    Some(text.trim().to_owned())
        .filter(|text| !text.is_empty())
        .or_else(|| field.fail("invalid_format", "is empty"))
}

/// So many wrong parameters are told at once.
const MOST_MISTAKES: usize = 100;

/// `?code_challenge=…`, and the method if it is S256.
pub(super) fn social_query(query: &str, is_required: bool) -> Result<Option<String>, Problem> {
    let mut problem = None;
    let mut room = MOST_MISTAKES;
    let mut refuse = |name: &str, code: &'static str, detail: &str| {
        if room > 0 {
            room -= 1;
            let so_far = problem
                .take()
                .unwrap_or_else(|| Problem::new(Code::InvalidRequest));
            problem = Some(so_far.error(&format!("?{name}"), code, detail));
        }
    };
    let mut challenge = None;
    let parameters = parameters(query);
    if is_required && !parameters.contains_key("code_challenge") {
        refuse("code_challenge", "missing_field", "is required");
    }
    for (name, values) in parameters {
        match (name.as_str(), values.as_slice()) {
            ("code_challenge", [value]) if temporary_token::is_challenge(value) => {
                challenge = Some(value.clone());
            }
            ("code_challenge", [_]) => {
                refuse(
                    &name,
                    "invalid_format",
                    "must be 32 bytes in base64url without padding",
                );
            }
            ("code_challenge_method", [value]) if value == "S256" => {}
            ("code_challenge_method", [_]) => refuse(&name, "invalid_choice", "must be S256"),
            ("code_challenge" | "code_challenge_method", _) => {
                refuse(&name, "duplicate_field", "stands more than once");
            }
            _ => refuse(&name, "unknown_field", "is not a known parameter"),
        }
    }
    problem.map_or(Ok(challenge), Err)
}

/// What the provider sends. It may send more than we ask for; what stands twice counts as absent.
pub(super) fn callback(query: &str) -> Callback {
    let mut all = parameters(query);
    let mut take = |name: &str| {
        let [value]: [String; 1] = all.remove(name)?.try_into().ok()?;
        Some(value).filter(|value| !value.is_empty() && value.len() <= 4096)
    };
    Callback {
        code: take("code"),
        state: take("state"),
        error: take("error"),
        issuer: take("iss"),
    }
}

fn parameters(query: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        all.entry(name.into_owned())
            .or_default()
            .push(value.into_owned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_may_send_more_than_we_ask_for() {
        let read = callback("code=c&state=s&scope=openid&hd=example.com&iss=https%3A%2F%2Fa");
        assert_eq!(
            (read.code.as_deref(), read.state.as_deref()),
            (Some("c"), Some("s"))
        );
        assert_eq!(
            (read.issuer.as_deref(), read.error),
            (Some("https://a"), None)
        );
    }

    #[test]
    fn a_misspelt_challenge_never_passes_for_an_absent_one() {
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        let read = |query: &str| social_query(query, false).map_err(|problem| problem.code());
        assert_eq!(read(""), Ok(None));
        assert_eq!(
            read(&format!("code_challenge={challenge}")),
            Ok(Some(challenge.to_owned()))
        );
        for bad in [
            "codeChallenge=x",
            "code_challenge=x",
            "code_challenge_method=plain",
        ] {
            assert_eq!(read(bad), Err(Code::InvalidRequest), "{bad}");
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
