//! HTTP calls to providers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

use postern_core::dependency::root_cause;

use super::codes::{classify, classify_http};
use super::{ProviderRefusal, SendResult};
use crate::address::is_public;
use postern_core::trace;

/// A client of the HTTP API of a provider.
pub(super) struct ApiClient {
    pub(super) http: reqwest::Client,
    /// The provider in the table of error codes.
    provider: &'static str,
}

/// The response of a provider.
pub(super) struct ApiResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Maximum duration of one call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Maximum delay that a provider can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Checks that a TLS client can be created, which requires the CA certificates of the system.
pub(crate) fn check_tls() -> Result<(), String> {
    build_client(builder()).map(drop)
}

fn build_client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, String> {
    builder.build().map_err(|error| {
        let causes = std::iter::successors(std::error::Error::source(&error), |&cause| cause.source());
        let cause = causes.last().map_or_else(|| error.to_string(), ToString::to_string);
        format!(
            "cannot set up TLS: {cause}; install CA certificates (package ca-certificates) or set SSL_CERT_FILE"
        )
    })
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(CALL_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("postern-notify/", env!("CARGO_PKG_VERSION")))
}

/// A resolver that returns public addresses only.
struct PublicAddressResolver;

impl reqwest::dns::Resolve for PublicAddressResolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async move {
            // The same for a name without addresses: the status tells nobody which names exist.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            let found = found.into_iter().flatten();
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err("resolves to no public address".into());
            }
            Ok(Box::new(public.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

// === impl ApiClient ===

impl ApiClient {
    /// Creates a client that does not follow redirects: the URL of a provider is configuration.
    pub(super) fn new(provider: &'static str) -> Result<Self, String> {
        let http = build_client(builder())?;
        Ok(Self { http, provider })
    }

    /// Creates a client for addresses that recipients supply: names that resolve to private
    /// addresses are not called.
    pub(super) fn guarded(provider: &'static str) -> Result<Self, String> {
        let http = build_client(builder().dns_resolver(Arc::new(PublicAddressResolver)))?;
        Ok(Self { http, provider })
    }

    /// Makes a call.
    ///
    /// # Errors
    /// No response, classified by the table of error codes: before a connection nothing was sent;
    /// after it the provider may have accepted the message.
    pub(super) async fn call(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<ApiResponse, ProviderRefusal> {
        let silent = |error: reqwest::Error| {
            let code = if error.is_connect() {
                "connect"
            } else if error.is_timeout() {
                "timeout"
            } else {
                "broken"
            };
            let cause = root_cause(&error.without_url());
            self.classify(code).with_detail(format!("{code}: {cause}"))
        };
        let mut response = trace::send(request).await.map_err(silent)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(silent)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_RESPONSE_BYTES {
                break;
            }
        }
        Ok(ApiResponse {
            status,
            headers,
            body,
        })
    }

    /// Sends a message to an API whose status says everything.
    pub(super) async fn send(&self, request: reqwest::RequestBuilder) -> SendResult {
        let answer = self.call(request).await?;
        if answer.is_success() {
            return Ok(Some(format!("http {}", answer.status)));
        }
        Err(answer.refusal(self.provider, &[]))
    }

    /// Makes a call without a message, whose good answers have a status for which `is_good`.
    pub(super) async fn probe(
        &self,
        request: reqwest::RequestBuilder,
        is_good: fn(u16) -> bool,
    ) -> Result<(), ProviderRefusal> {
        let answer = self.call(request).await?;
        if is_good(answer.status) {
            return Ok(());
        }
        let refusal = answer.refusal(self.provider, &[]);
        Err(refusal.with_detail(format!("status {}", answer.status)))
    }

    pub(super) fn classify(&self, code: &str) -> ProviderRefusal {
        classify(self.provider, code)
    }
}

// === impl ApiResponse ===

impl ApiResponse {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns a text of the JSON body.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.json().get(name)?.as_str().map(str::to_owned)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Creates the refusal of a response, from the provider's error codes, the most exact first, and
    /// from the status.
    pub(super) fn refusal(&self, provider: &str, named: &[&str]) -> ProviderRefusal {
        ProviderRefusal {
            retry_after: retry_after(&self.headers),
            ..classify_http(provider, self.status, named)
        }
    }
}

/// Parses `Retry-After`, in seconds or as a date (RFC 9110 section 10.2.3). A date is compared with
/// the `Date` of the response, so that the clock of the provider does not matter.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let value = text(RETRY_AFTER)?;
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let (until, now) = (
                httpdate::parse_http_date(value).ok()?,
                httpdate::parse_http_date(text(DATE)?).ok()?,
            );
            until.duration_since(now).ok()?
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_parsed_in_both_forms_and_capped() {
        let date = "Fri, 20 Nov 2026 07:30:00 GMT";
        let after = |value: &'static str, date: Option<&'static str>| {
            let mut headers =
                HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_static(value))]);
            headers.extend(date.map(|date| (DATE, http::HeaderValue::from_static(date))));
            retry_after(&headers).map(|wait| wait.as_secs())
        };
        for (value, date, expected) in [
            ("120", None, Some(120)),
            ("99999999", None, Some(86_400)),
            ("Fri, 20 Nov 2026 07:32:10 GMT", Some(date), Some(130)),
            ("Thu, 20 Nov 2036 07:32:10 GMT", Some(date), Some(86_400)),
            // In the past.
            ("Fri, 20 Nov 2026 07:29:00 GMT", Some(date), None),
            ("soon", Some(date), None),
            ("Fri, 20 Nov 2026 07:32:10 GMT", None, None),
        ] {
            assert_eq!(after(value, date), expected, "{value}");
        }
    }
}
