//! `cors` of a route or of `[defaults]`: cross-origin access to responses.

use std::time::Duration;

use postern_core::decode::Field;
use postern_core::settings;

use crate::config::short_texts;

settings! {
    /// Cross-origin rules (CORS protocol of the Fetch standard).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CorsPolicy(table) {
        /// `*`, an origin, one with any port (`http://localhost:*`), or any subdomain
        /// (`https://*.example.com`).
        ///
        /// Empty for none.
        pub origins: Vec<OriginPattern> => |field| field.array(OriginPattern::read),
        /// Request fields that scripts may send.
        pub headers: Vec<String> =
            ["authorization", "content-type", "idempotency-key", "if-none-match", "traceparent"]
            => short_texts,
        /// Response fields that scripts may read, besides those of the gateway and the upstream.
        pub exposed_headers: Vec<String> = [] => short_texts,
        /// Time for which a browser may cache a preflight.
        pub max_age: Duration = "10m" => |field| field.duration(),
    }
}

/// A pattern of origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// `*`.
    Any,
    /// A single origin, such as `https://app.example.com`.
    Exact(String),
    /// `http://localhost:*`: a scheme and host with any port. Stored without the colon and the
    /// star.
    AnyPort(String),
    /// `https://*.example.com`: any subdomain. Stored as the scheme with `://`, and the rest with the
    /// dot.
    Subdomains(String, String),
}

// === impl CorsPolicy ===

impl CorsPolicy {
    /// Returns whether pages of this origin may read responses.
    #[must_use]
    pub fn allows(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|pattern| pattern.matches(origin))
    }

    /// Returns whether pages of every origin are allowed.
    pub(crate) fn allows_any(&self) -> bool {
        self.origins.contains(&OriginPattern::Any)
    }
}

// === impl OriginPattern ===

impl OriginPattern {
    const FORMAT: &str = "must be *, an origin as browsers send it, such as https://app.example.com, one with any \
                          port, such as http://localhost:*, or any subdomain, such as https://*.example.com";

    fn read(field: Field<'_>) -> Option<Self> {
        let text = field.text(1..=300)?;
        if text == "*" {
            return Some(Self::Any);
        }
        if let Some((scheme, domain)) = text.split_once("://*.") {
            return match is_origin(&format!("{scheme}://{domain}")) {
                true => Some(Self::Subdomains(
                    format!("{scheme}://"),
                    format!(".{domain}"),
                )),
                false => field.fail("invalid_format", Self::FORMAT),
            };
        }
        let whole = text.strip_suffix(":*").unwrap_or(&text);
        if !is_origin(whole) || (whole != text && port(whole).is_some()) {
            return field.fail("invalid_format", Self::FORMAT);
        }
        Some(if whole == text {
            Self::Exact(text)
        } else {
            Self::AnyPort(whole.to_owned())
        })
    }

    fn matches(&self, origin: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(known) => known.as_bytes() == origin,
            Self::Subdomains(scheme, domain) => {
                let below = origin.strip_prefix(scheme.as_bytes());
                let below = below.and_then(|host| host.strip_suffix(domain.as_bytes()));
                let is_host_byte =
                    |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
                below.is_some_and(|labels| !labels.is_empty() && labels.iter().all(is_host_byte))
            }
            Self::AnyPort(known) => match origin.strip_prefix(known.as_bytes()) {
                Some([]) => true,
                Some([b':', port @ ..]) => !port.is_empty() && port.iter().all(u8::is_ascii_digit),
                Some(_) | None => false,
            },
        }
    }
}

/// Returns whether the text is an origin as browsers serialize it: lower case, without path and
/// default port.
fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return false;
    };
    let default = match scheme {
        "http" => Some("80"),
        "https" => Some("443"),
        _ => None,
    };
    let known =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    !scheme.is_empty()
        && scheme.bytes().all(known)
        && !authority.starts_with(':')
        && !authority.contains(|c: char| c.is_ascii_uppercase() || "/?#@*".contains(c))
        && postern_http::message::head::is_authority(authority.as_bytes())
        && (default.is_none() || port(text) != default)
}

/// Returns the port of an origin, if it names one.
fn port(origin: &str) -> Option<&str> {
    let (_, port) = origin.split_once("://")?.1.rsplit_once(':')?;
    port.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(port)
}

#[cfg(test)]
mod tests {
    use postern_core::config::parse;

    use super::*;

    fn read(origin: &str) -> Option<OriginPattern> {
        let text = format!("origins = [\"{origin}\"]\n");
        parse("x.toml", &text, CorsPolicy::read)
            .ok()
            .map(|mut cors| cors.origins.remove(0))
    }

    #[test]
    fn origin_pattern_matches_serialized_origins() {
        for (pattern, matching, others) in [
            ("*", "https://any", ""),
            (
                "https://app",
                "https://app",
                "https://app:8443 http://app https://app.evil",
            ),
            (
                "http://localhost:*",
                "http://localhost http://localhost:5173",
                "http://localhost: http://localhost:1.evil http://localhost.evil https://localhost",
            ),
            ("http://[::1]:*", "http://[::1]:5173", ""),
            ("tauri://localhost", "tauri://localhost", ""),
            (
                "https://*.example.com",
                "https://a.example.com https://a-1.b.example.com",
                "https://example.com https://.example.com http://a.example.com https://evil/.example.com \
                 https://aexample.com https://a.example.com:8443",
            ),
            ("https://*.a.test:8443", "https://x.a.test:8443", ""),
        ] {
            let rule = read(pattern).expect(pattern);
            for (origins, is_matched) in [(matching, true), (others, false)] {
                for origin in origins.split_whitespace() {
                    let matches = rule.matches(origin.as_bytes());
                    assert_eq!(matches, is_matched, "{pattern} {origin}");
                }
            }
        }
    }

    #[test]
    fn malformed_origin_is_rejected() {
        let origins = "app https:// https://app/ https://App https://app:443 http://app:80 null \
            https://*app https://*.app/ https://a.*.app https://*.app:443 https://*. \
            http://localhost:5173:* https://u@app ://app https://app?x";
        for wrong in origins.split(' ') {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
