//! Refusals: `application/problem+json` (RFC 9457) with a stable `code`.
//!
//! The same [`Code`] stands in the body, the access event and the metric label. What a client may
//! read is decided here alone: a problem carries no internal word, no stack, no claim.

mod code;

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

pub use code::Code;

use crate::decode::{Mistake, Weight};

/// A refusal before it is written out; the rim adds the request id and logs it once.
#[derive(Clone, Debug)]
pub struct Problem(Box<Refusal>);

/// Boxed, so that `Result<T, Problem>` stays small.
#[derive(Clone, Debug)]
struct Refusal {
    code: Code,
    detail: Option<Cow<'static, str>>,
    errors: Vec<FieldError>,
    retry_after_s: Option<u32>,
    extra: Option<(&'static str, serde_json::Value)>,
    allow: Option<String>,
}

/// One field that is wrong, as a client reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) into the request body, or `""` for the body as a whole.
    pub pointer: String,
    /// Stable name.
    pub code: Cow<'static, str>,
    /// One sentence.
    pub detail: String,
}

/// A problem as it goes over the wire.
#[derive(Debug)]
pub struct Rendered {
    /// The HTTP status.
    pub status: StatusCode,
    /// Content type, challenge and `Retry-After`, as far as they apply.
    pub headers: HeaderMap,
    /// The JSON body.
    pub body: Vec<u8>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    request_id: &'a str,
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    errors: &'a [FieldError],
    #[serde(flatten)]
    extra: Option<serde_json::Map<String, serde_json::Value>>,
}

// === impl Problem ===

impl Problem {
    /// A refusal that its code says all about.
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self(Box::new(Refusal {
            code,
            detail: None,
            errors: Vec::new(),
            retry_after_s: None,
            extra: None,
            allow: None,
        }))
    }

    /// With a sentence that tells the client what to do. Never internal words.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// With `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after_s = Some(seconds.max(1));
        self
    }

    /// With a member of its own beside the standard ones, such as `challenge`.
    #[must_use]
    pub fn member(mut self, name: &'static str, value: serde_json::Value) -> Self {
        self.0.extra = Some((name, value));
        self
    }

    /// 405 with the methods that are allowed there (RFC 9110 section 15.5.6).
    #[must_use]
    pub fn method_not_allowed(allow: impl Into<String>) -> Self {
        let mut problem = Self::new(Code::MethodNotAllowed);
        problem.0.allow = Some(allow.into());
        problem
    }

    /// 400 or 422 from what [`crate::decode`] found: unreadable weighs more than unacceptable.
    #[must_use]
    pub fn from_mistakes(mistakes: Vec<Mistake>) -> Self {
        let code = match mistakes.iter().map(|mistake| mistake.weight).max() {
            Some(Weight::Unacceptable) => Code::ValidationFailed,
            Some(Weight::Unreadable) | None => Code::InvalidRequest,
        };
        let mut problem = Self::new(code);
        problem.0.errors = mistakes
            .into_iter()
            .map(|mistake| FieldError {
                pointer: mistake.pointer,
                code: mistake.code.into(),
                detail: mistake.detail,
            })
            .collect();
        problem
    }

    /// With one more field error.
    #[must_use]
    pub fn error(mut self, pointer: &str, code: &'static str, detail: impl Into<String>) -> Self {
        self.0.errors.push(FieldError {
            pointer: pointer.to_owned(),
            code: code.into(),
            detail: detail.into(),
        });
        self
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// One sentence for people: the detail, or else the title of the code.
    #[must_use]
    pub fn message(&self) -> &str {
        self.0
            .detail
            .as_deref()
            .unwrap_or_else(|| self.0.code.title())
    }

    /// The problem as a JSON value, for batch results.
    #[must_use]
    pub fn to_json(&self, request_id: &str) -> serde_json::Value {
        serde_json::to_value(self.body(request_id)).unwrap_or_default()
    }

    /// Status, headers and body, for the request with this id.
    #[must_use]
    pub fn render(&self, request_id: &str) -> Rendered {
        let mut headers = HeaderMap::new();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(
            http::header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        );
        if let Some(challenge) = self.0.code.challenge() {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(seconds) = self
            .0
            .retry_after_s
            .or_else(|| self.0.code.default_retry_after_s())
        {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self
            .0
            .allow
            .as_deref()
            .and_then(|allow| HeaderValue::from_str(allow).ok())
        {
            headers.insert(HeaderName::from_static("allow"), allow);
        }
        let body = serde_json::to_vec(&self.body(request_id)).unwrap_or_default();
        Rendered {
            status: self.0.code.status(),
            headers,
            body,
        }
    }

    fn body<'a>(&'a self, request_id: &'a str) -> Body<'a> {
        let extra = self
            .0
            .extra
            .clone()
            .map(|(name, value)| [(name.to_owned(), value)].into_iter().collect());
        Body {
            r#type: format!(
                "https://postern.dev/problems/{}",
                self.0.code.as_str().replace('_', "-")
            ),
            title: self.0.code.title(),
            status: self.0.code.status().as_u16(),
            code: self.0.code.as_str(),
            detail: self.0.detail.as_deref(),
            request_id,
            errors: &self.0.errors,
            extra,
        }
    }
}

impl From<Code> for Problem {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_rfc_9457_with_a_challenge() {
        let rendered = Problem::new(Code::TokenExpired).render("id-1");
        let body: serde_json::Value = serde_json::from_slice(&rendered.body).expect("JSON");
        assert_eq!(body["type"], "https://postern.dev/problems/token-expired");
        assert_eq!(
            (&body["status"], &body["code"]),
            (&401.into(), &"token_expired".into())
        );
        assert_eq!(body["requestId"], "id-1");
        assert_eq!(
            rendered.headers[WWW_AUTHENTICATE],
            "Bearer error=\"invalid_token\""
        );
    }

    #[test]
    fn the_documented_table_is_the_code() {
        let documented = include_str!("../PROBLEMS.md");
        let rows: Vec<&str> = documented
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        let expected: Vec<String> = Code::ALL
            .iter()
            .map(|code| {
                format!(
                    "| `{}` | {} | {} |",
                    code.as_str(),
                    code.status().as_u16(),
                    code.title()
                )
            })
            .collect();
        assert_eq!(rows, expected, "PROBLEMS.md and Code::ALL differ");
    }
}
