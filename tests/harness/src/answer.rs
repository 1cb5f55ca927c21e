//! HTTP responses with the assertions that tests use.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

/// A complete response.
#[derive(Clone, Debug)]
#[must_use = "a response that is not checked proves nothing"]
pub struct Answer {
    /// The request, for messages: `POST /auth/login`.
    pub asked: String,
    /// HTTP status.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// The complete body.
    pub body: Bytes,
}

/// An error response whose status, code and media type have been checked.
#[derive(Clone, Debug)]
pub struct Refusal {
    asked: String,
    /// The problem as JSON.
    pub body: Value,
    /// The headers of the response.
    pub headers: HeaderMap,
}

// === impl Answer ===

impl Answer {
    /// Asserts the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status.as_u16(),
            status,
            "{}: {}",
            self.asked,
            self.text()
        );
        self
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!(
                "{}: {} is not JSON: {error}: {}",
                self.asked,
                self.status,
                self.text()
            ),
        }
    }

    /// Returns a string member of the JSON body, by pointer.
    #[must_use]
    #[track_caller]
    pub fn string(&self, pointer: &str) -> String {
        let body = self.json();
        match body.pointer(pointer).and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None => panic!("{}: no string at {pointer} in {body}", self.asked),
        }
    }

    /// Returns a header that must occur exactly once.
    #[must_use]
    #[track_caller]
    pub fn header(&self, name: &str) -> String {
        let values: Vec<_> = self.headers.get_all(name).iter().collect();
        match values[..] {
            [value] => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            _ => panic!(
                "{}: {} × {name} in {:?}",
                self.asked,
                values.len(),
                self.headers
            ),
        }
    }

    /// Asserts that the response is a problem (RFC 9457) with this status and code.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Refusal {
        let answer = self.expect(status);
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{}",
            answer.asked
        );
        let body = answer.json();
        assert_eq!(body["code"], code, "{}: {body}", answer.asked);
        assert_eq!(body["status"], status, "{}: {body}", answer.asked);
        assert_eq!(
            answer.headers.contains_key("www-authenticate"),
            status == 401 || code == "insufficient_scope"
        );
        Refusal {
            asked: answer.asked,
            body,
            headers: answer.headers,
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// Returns the pointers of `errors`, sorted.
    #[must_use]
    pub fn pointers(&self) -> Vec<String> {
        let errors = self.body["errors"].as_array().cloned().unwrap_or_default();
        let mut pointers: Vec<String> = errors
            .iter()
            .filter_map(|error| error["pointer"].as_str())
            .map(str::to_owned)
            .collect();
        pointers.sort();
        pointers
    }

    /// Asserts that `errors` names exactly these fields, in any order.
    #[track_caller]
    pub fn assert_pointers(&self, expected: &[&str]) {
        let mut expected: Vec<&str> = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(self.pointers(), expected, "{}: {}", self.asked, self.body);
    }
}
