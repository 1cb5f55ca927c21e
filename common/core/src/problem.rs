//! Error responses: `application/problem+json` (RFC 9457) with a stable `code`.
//!
//! The same [`Code`] is written to the body, the access event and the metric label. This module
//! alone decides what a client may read: a problem contains no internal message, backtrace or
//! claim.
//!
//! Input: a code with details. Output: status, header fields and body of a response.

mod code;

use std::borrow::Cow;

use axum_core::response::{IntoResponse, Response};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

pub use code::Code;

use crate::decode::{Mistake, Weight};

const MEDIA_TYPE: &str = "application/problem+json";

/// An error response before rendering. The request layer adds the request id and logs it once.
#[derive(Clone, Debug)]
pub struct Problem(Box<ProblemData>);

/// Boxed, so that `Result<T, Problem>` stays small.
#[derive(Clone, Debug)]
struct ProblemData {
    code: Code,
    detail: Option<Cow<'static, str>>,
    errors: Vec<FieldError>,
    retry_after_s: Option<u32>,
    extra: Option<(&'static str, serde_json::Value)>,
    allow: Option<String>,
}

/// A mistake in one field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) into the request body, or `""` for the body as a whole.
    pub pointer: String,
    /// Stable name of the mistake.
    pub code: Cow<'static, str>,
    /// One sentence that explains the mistake.
    pub detail: String,
}

/// A rendered problem.
#[derive(Debug)]
pub struct Rendered {
    /// The HTTP status.
    pub status: StatusCode,
    /// `Content-Type`, `Cache-Control`, and `WWW-Authenticate`, `Retry-After` and `Allow` if they
    /// apply.
    pub headers: HeaderMap,
    /// The JSON body.
    pub body: Vec<u8>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProblemBody<'a> {
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

impl Problem {
    /// Creates a problem that its code describes completely.
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self(Box::new(ProblemData {
            code,
            detail: None,
            errors: Vec::new(),
            retry_after_s: None,
            extra: None,
            allow: None,
        }))
    }

    /// Sets a sentence that tells the client what to do. Must not contain internal information.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Sets `Retry-After`, in seconds (at least 1).
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after_s = Some(seconds.max(1));
        self
    }

    /// Adds an extension member to the body, such as `challenge`.
    #[must_use]
    pub fn member(mut self, name: &'static str, value: serde_json::Value) -> Self {
        self.0.extra = Some((name, value));
        self
    }

    /// Creates a 405 with the allowed methods (RFC 9110 section 15.5.6).
    #[must_use]
    pub fn method_not_allowed(allow: impl Into<String>) -> Self {
        let mut problem = Self::new(Code::MethodNotAllowed);
        problem.0.allow = Some(allow.into());
        problem
    }

    /// Creates a 400, or a 422 if every mistake is [`Weight::Unacceptable`], from the mistakes that
    /// [`crate::decode`] found.
    #[must_use]
    pub fn from_mistakes(mistakes: Vec<Mistake>) -> Self {
        let code = match mistakes.iter().map(|mistake| mistake.weight).max() {
            Some(Weight::Unacceptable) => Code::ValidationFailed,
            Some(Weight::Unreadable) | None => Code::InvalidRequest,
        };
        let mut problem = Self::new(code);
        let error = |mistake: Mistake| FieldError {
            pointer: mistake.pointer,
            code: mistake.code.into(),
            detail: mistake.detail,
        };
        problem.0.errors = mistakes.into_iter().map(error).collect();
        problem
    }

    /// Adds a field error.
    #[must_use]
    pub fn error(mut self, pointer: &str, code: &'static str, detail: impl Into<String>) -> Self {
        self.0.errors.push(FieldError {
            pointer: pointer.to_owned(),
            code: code.into(),
            detail: detail.into(),
        });
        self
    }

    /// Returns the stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the detail, or the title of the code if there is none.
    #[must_use]
    pub fn message(&self) -> &str {
        let detail = self.0.detail.as_deref();
        detail.unwrap_or_else(|| self.0.code.title())
    }

    /// Returns the problem as a JSON value, for batch results.
    #[must_use]
    pub fn to_json(&self, request_id: &str) -> serde_json::Value {
        serde_json::to_value(self.body(request_id)).unwrap_or_default()
    }

    /// Renders status, headers and body with a request id.
    #[must_use]
    pub fn render(&self, request_id: &str) -> Rendered {
        let (code, data) = (self.0.code, &*self.0);
        let retry_after_s = data.retry_after_s.or_else(|| code.default_retry_after_s());
        let allow = data.allow.as_deref().map(HeaderValue::from_str);
        let fields = [
            (CONTENT_TYPE, Some(HeaderValue::from_static(MEDIA_TYPE))),
            (CACHE_CONTROL, Some(HeaderValue::from_static("no-store"))),
            (
                WWW_AUTHENTICATE,
                code.challenge().map(HeaderValue::from_static),
            ),
            (RETRY_AFTER, retry_after_s.map(HeaderValue::from)),
            (ALLOW, allow.and_then(Result::ok)),
        ];
        let fields = fields.into_iter();
        Rendered {
            status: code.status(),
            headers: fields
                .filter_map(|(name, value)| Some((name, value?)))
                .collect(),
            body: serde_json::to_vec(&self.body(request_id)).unwrap_or_default(),
        }
    }

    fn body<'a>(&'a self, request_id: &'a str) -> ProblemBody<'a> {
        let (code, extra) = (self.0.code, self.0.extra.clone());
        let name = code.as_str().replace('_', "-");
        ProblemBody {
            r#type: format!("https://postern.dev/problems/{name}"),
            title: code.title(),
            status: code.status().as_u16(),
            code: code.as_str(),
            detail: self.0.detail.as_deref(),
            request_id,
            errors: &self.0.errors,
            extra: extra.map(|(name, value)| [(name.to_owned(), value)].into_iter().collect()),
        }
    }
}

impl From<Code> for Problem {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

impl IntoResponse for Problem {
    /// Attaches the problem as an extension; the request layer renders it with the request id.
    fn into_response(self) -> Response {
        let mut response = self.code().status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for Code {
    fn into_response(self) -> Response {
        Problem::new(self).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_renders_as_rfc_9457_with_a_challenge() {
        let rendered = Problem::new(Code::TokenExpired).render("id-1");
        let body: serde_json::Value = serde_json::from_slice(&rendered.body).expect("JSON");
        assert_eq!(body["type"], "https://postern.dev/problems/token-expired");
        assert_eq!(body["status"], 401);
        assert_eq!(body["code"], "token_expired");
        assert_eq!(body["requestId"], "id-1");
        let challenge = "Bearer error=\"invalid_token\"";
        assert_eq!(rendered.headers[WWW_AUTHENTICATE], challenge);
    }

    #[test]
    fn documented_table_matches_the_code() {
        let documented = include_str!("../../../docs/reference/problem-codes.md");
        let rows = documented.lines().filter(|line| line.starts_with("| `"));
        let row = |code: &Code| {
            let (name, status) = (code.as_str(), code.status().as_u16());
            format!("| `{name}` | {status} | {} |", code.title())
        };
        let expected: Vec<String> = Code::ALL.iter().map(row).collect();
        let rows: Vec<&str> = rows.collect();
        assert_eq!(rows, expected, "problem-codes.md and Code::ALL differ");
    }
}
