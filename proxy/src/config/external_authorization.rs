//! `authorize` of a route: an external authorization service.

use std::time::Duration;

use http::HeaderName;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST};
use postern_core::decode::Field;
use postern_core::settings;
use postern_http::message::headers;
use url::Url;

use crate::config::nonzero_duration;

settings! {
    /// [A service](../manual/gateway.md#external-authorization) decides as well.
    ///
    /// On each request that the policy allows.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ExternalAuthorization(table) {
        /// Address that is called.
        pub url: Url => |field| match field.url()? {
            url if url.fragment().is_some() => field.fail("invalid_format", "must have no fragment"),
            url => Some(url),
        },
        /// Time for a response.
        pub timeout: Duration = "1s" => nonzero_duration,
        /// Concurrent calls; more are 503. Beyond half, one client address has an eighth.
        pub in_flight: usize = 256 => |field| field.integer(1..=100_000),
        /// Fields of its response that replace those of the client.
        pub forward_headers: Vec<HeaderName> = [] => |field| field.array(read_header),
    }
}

/// Reads the name of a field that the service may set: no credentials, identity or framing.
fn read_header(field: Field<'_>) -> Option<HeaderName> {
    let text = field.typed("name").string()?;
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
