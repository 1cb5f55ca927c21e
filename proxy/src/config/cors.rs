//! `cors` of a route or of `[defaults]`: cross-origin access to responses.

use std::time::Duration;

use postern_core::decode::Field;
use postern_core::settings;
use url::Url;

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

impl CorsPolicy {
    /// Returns whether pages of this origin may read responses.
    #[must_use]
    pub fn allows(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|pattern| pattern.matches(origin))
    }

    pub(crate) fn allows_any(&self) -> bool {
        self.origins.contains(&OriginPattern::Any)
    }
}

impl OriginPattern {
    const FORMAT: &str = "must be *, an origin as browsers send it, such as https://app.example.com, one with any \
                          port, such as http://localhost:*, or any subdomain, such as https://*.example.com";

    fn read(field: Field<'_>) -> Option<Self> {
        let text = field.text(1..=300)?;
        if text == "*" {
            return Some(Self::Any);
        }
        if let Some((scheme, domain)) = text.split_once("://*.") {
            return match parse_origin(&format!("{scheme}://{domain}")) {
                Some(_) => Some(Self::Subdomains(
                    format!("{scheme}://"),
                    format!(".{domain}"),
                )),
                None => field.fail("invalid_format", Self::FORMAT),
            };
        }
        let whole = text.strip_suffix(":*").unwrap_or(&text);
        match parse_origin(whole) {
            Some(_) if whole == text => Some(Self::Exact(text)),
            Some(url) if url.port().is_none() => Some(Self::AnyPort(whole.to_owned())),
            Some(_) | None => field.fail("invalid_format", Self::FORMAT),
        }
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

/// Parses an origin as browsers serialize it: in lower case, without path and default port.
fn parse_origin(text: &str) -> Option<Url> {
    let (_, authority) = text.split_once("://")?;
    let url = Url::parse(text).ok()?;
    // Of schemes that browsers know, the serialized URL has a path.
    let is_same = [text, &format!("{text}/")].contains(&url.as_str());
    let is_other = |it: char| "/?#@*,".contains(it) || it.is_ascii_uppercase();
    let is_origin = is_same && url.has_host() && !authority.contains(is_other);
    is_origin.then_some(url)
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
