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

impl Answer {
    /// Asserts the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        let (asked, text) = (&self.asked, self.text());
        assert_eq!(self.status.as_u16(), status, "{asked}: {text}");
        self
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        let Self { asked, status, .. } = self;
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{asked}: {status} is not JSON: {error}: {}", self.text())
        })
    }

    /// Returns a string member of the JSON body, by pointer.
    #[track_caller]
    pub fn string(&self, pointer: &str) -> String {
        let body = self.json();
        let text = body.pointer(pointer).and_then(Value::as_str);
        let text = text.unwrap_or_else(|| panic!("{}: no {pointer} in {body}", self.asked));
        text.to_owned()
    }

    /// Returns a header that must occur exactly once.
    #[track_caller]
    pub fn header(&self, name: &str) -> String {
        let values: Vec<_> = self.headers.get_all(name).iter().collect();
        let [value] = values[..] else {
            panic!("{}: {name} of {:?} is {values:?}", self.asked, self.headers);
        };
        String::from_utf8_lossy(value.as_bytes()).into_owned()
    }

    /// Asserts that the response is a problem (RFC 9457) with this status and code.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Refusal {
        let answer = self.expect(status);
        let (media, body) = (answer.header("content-type"), answer.json());
        let Self { asked, headers, .. } = answer;
        assert_eq!(media, "application/problem+json", "{asked}");
        assert_eq!(body["code"], code, "{asked}: {body}");
        assert_eq!(body["status"], status, "{asked}: {body}");
        let is_challenged = headers.contains_key("www-authenticate");
        let is_expected = status == 401 || code == "insufficient_scope";
        assert_eq!(is_challenged, is_expected, "{asked}: {body}");
        Refusal {
            asked,
            body,
            headers,
        }
    }
}

impl Refusal {
    /// Returns the pointers of `errors`, sorted.
    pub fn pointers(&self) -> Vec<String> {
        let errors = self.body["errors"].as_array().into_iter().flatten();
        let pointers = errors.filter_map(|error| error["pointer"].as_str());
        let mut pointers: Vec<String> = pointers.map(str::to_owned).collect();
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
