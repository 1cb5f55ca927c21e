//! Fetching of a JWKS over HTTP.

use std::time::Duration;

use http::StatusCode;
use http::header::CACHE_CONTROL;
use url::Url;

use crate::network::{is_https_or_loopback, read_body};

/// Fetches one JWKS without redirects or proxy, within a time and size limit.
pub(super) struct JwksFetcher {
    pub(super) url: Url,
    /// An error if the TLS backend could not be initialized, for example without CA certificates.
    client: Result<reqwest::Client, &'static str>,
}

/// A fetched JWKS.
pub(super) struct FetchedKeySet {
    pub(super) body: Vec<u8>,
    /// `Cache-Control: max-age` (RFC 9111 section 5.2.2.1), if present.
    pub(super) max_age: Option<Duration>,
}

/// Maximum size of a response body.
const MAX_BODY_BYTES: usize = 256 * 1024;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl JwksFetcher {
    pub(super) fn new(url: Url, timeout: Duration) -> Self {
        let client = client(&url, timeout);
        Self { url, client }
    }

    /// Fetches the key set.
    pub(super) async fn fetch(&self) -> Result<FetchedKeySet, &'static str> {
        let client = self.client.as_ref().map_err(|reason| *reason)?;
        let response = client.get(self.url.clone()).send().await;
        let response = response.map_err(|error| describe_error(&error))?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err("the server answered with a redirect"),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err("the server denied access (401 or 403)");
            }
            StatusCode::NOT_FOUND => return Err("the server has no such document (404)"),
            status if status.is_server_error() => return Err("the server failed (5xx)"),
            _ => return Err("the server answered with another status than 200"),
        }
        let max_age = max_age(response.headers());
        let body = read_body(response, MAX_BODY_BYTES).await;
        let body = body.map_err(|error| describe_error(&error))?;
        let body = body.ok_or("the answer is larger than 256 KiB")?;
        Ok(FetchedKeySet { body, max_age })
    }
}

fn client(url: &Url, timeout: Duration) -> Result<reqwest::Client, &'static str> {
    if !is_https_or_loopback(url) {
        return Err("the address of the JWKS is neither HTTPS nor on a loopback host");
    }
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT.min(timeout))
        .timeout(timeout)
        .pool_max_idle_per_host(0);
    if url.scheme() == "http" {
        // Avoids loading the system's certificates, and works without them.
        builder = builder.tls_certs_only([]);
    }
    let built = builder.build();
    built.map_err(|_| "the TLS client could not be built")
}

fn describe_error(error: &reqwest::Error) -> &'static str {
    match () {
        () if error.is_timeout() => "the server did not answer in time",
        () if error.is_connect() => "the server cannot be reached",
        () => "the exchange with the server failed",
    }
}

fn max_age(headers: &http::HeaderMap) -> Option<Duration> {
    headers
        .get_all(CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|directive| directive.trim().strip_prefix("max-age="))
        .find_map(|seconds| seconds.trim_matches('"').parse().ok())
        .map(Duration::from_secs)
}
