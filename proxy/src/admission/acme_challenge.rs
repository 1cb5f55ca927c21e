//! Responses to HTTP-01 challenges (RFC 8555 section 8.3).

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use pingora::http::RequestHeader;
use postern_core::{Code, Problem};

use crate::admission::answer::Answer;
use crate::certificates::{HTTP_CHALLENGE_PREFIX, PendingChallenges};

/// Returns the token of a request for a challenge response, before routing.
pub(super) fn token<'h>(
    challenges: &PendingChallenges,
    head: &'h RequestHeader,
) -> Option<&'h str> {
    let path = std::str::from_utf8(head.raw_path()).ok()?;
    path.strip_prefix(HTTP_CHALLENGE_PREFIX)
        .filter(|_| challenges.answers_http())
}

/// Returns the challenge response.
///
/// # Errors
/// 404 if the token is not pending: an ACME client behind the gateway has no path in common with it.
pub(super) async fn answer(
    challenges: &PendingChallenges,
    token: &str,
    method: &Method,
) -> Result<Answer, Problem> {
    let authorization = match *method {
        Method::GET | Method::HEAD => challenges.key_authorization(token).await,
        _ => None,
    };
    let mut answer = Answer::new(StatusCode::OK);
    answer.body = authorization.ok_or(Code::NotFound)?.into();
    answer.headers.extend([
        (
            CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ]);
    Ok(answer)
}
