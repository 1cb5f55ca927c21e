//! `authorize` of a route: an external authorization service.

use std::time::Duration;

use http::HeaderName;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST};
use postern_core::decode::{Field, Object};
use postern_http::message::headers;
use url::Url;

use crate::config::nonzero_duration;

/// `authorize`: a service that decides on each request that the policy allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAuthorization {
    /// The URL that is called.
    pub url: Url,
    /// Time for a response; default 1 s.
    pub timeout: Duration,
    /// Maximum calls in flight; default 256.
    pub in_flight: usize,
    /// Header fields of the response that are added to the request. Those of the client are removed.
    pub forward_headers: Vec<HeaderName>,
}

// === impl ExternalAuthorization ===

impl ExternalAuthorization {
    /// Reads `{ url = "http://…", timeout = "1s", forward_headers = ["x-tenant"] }`.
    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let url = section.required("url", |field| match field.url()? {
            url if url.fragment().is_some() => {
                field.fail("invalid_format", "must have no fragment")
            }
            url => Some(url),
        });
        Some(Self {
            timeout: section.or("timeout", Duration::from_secs(1), nonzero_duration),
            in_flight: section.or("in_flight", 256, |field| field.integer(1..=100_000)),
            forward_headers: section.list("forward_headers", read_header),
            url: url?,
        })
    }
}

/// Reads the name of a field that the service may set: no credentials, identity or framing.
fn read_header(field: Field<'_>) -> Option<HeaderName> {
    let text = field.string()?;
    let is_own = |name: &HeaderName| {
        headers::is_filled(name.as_str())
            || headers::is_hop_by_hop(name.as_str())
            || [AUTHORIZATION, COOKIE, CONTENT_LENGTH, HOST].contains(name)
    };
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) if !is_own(&name) => Some(name),
        Ok(_) | Err(_) => field.fail(
            "invalid_format",
            "is not a header that an authorization service may set",
        ),
    }
}

#[cfg(test)]
mod tests {
    use postern_core::config::parse;

    use super::*;

    fn read(lines: &str) -> Result<ExternalAuthorization, String> {
        let text = format!("url = \"http://127.0.0.1:1/check\"\n{lines}\n");
        let read = parse("t.toml", &text, ExternalAuthorization::read);
        read.map_err(|exit| exit.message().to_owned())
    }

    #[test]
    fn service_cannot_set_credentials_identity_or_framing() {
        let names = |text: &str| read(&format!("forward_headers = [\"{text}\"]"));
        for name in ["X-Tenant", "Remote-User", "X-Forwarded-User"] {
            assert!(names(name).is_ok(), "{name}");
        }
        let refused = "Authorization Cookie Host Content-Length Transfer-Encoding Connection X-Postern-Kind \
            x_postern_subject X-Forwarded-For Forwarded X-Request-Id traceparent";
        for name in refused.split(' ').chain(["x tenant", ""]) {
            let said = names(name).expect_err(name);
            assert!(said.contains("is not a header that"), "{name}: {said}");
        }
    }
}
