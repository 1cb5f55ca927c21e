//! Signing certificates of Amazon SNS: fetching, caching and parsing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use postern_common::clock::Timestamp;
use url::Url;

use crate::receipts::webhook::WebhookRejection;

/// A cache of signing certificates by URL. A URL always names the same certificate: SNS publishes a
/// new one under a new name.
///
/// Anyone can send a message that names a certificate that does not exist. To bound the requests
/// that this causes, failures are cached too, each URL is fetched by one request at a time, and
/// fetches per minute are limited in total and per client network. A flood from one network leaves
/// the rest of the limit to Amazon.
#[derive(Debug)]
pub(crate) struct CertificateCache {
    client: CertificateSource,
    entries: Mutex<HashMap<String, Arc<CacheEntry>>>,
    fetches: Mutex<FetchCounts>,
}

/// Fetches in the current minute.
#[derive(Debug, Default)]
struct FetchCounts {
    /// Minutes since the Unix epoch.
    minute: i64,
    by_network: HashMap<Option<IpAddr>, u32>,
}

/// Locked while the certificate is fetched.
type CacheEntry = tokio::sync::Mutex<Option<(Timestamp, Result<Arc<[u8]>, WebhookRejection>)>>;

#[derive(Debug)]
enum CertificateSource {
    Client(reqwest::Client),
    /// Scripted responses of a test.
    #[cfg(test)]
    Script(super::script::ScriptedFetches),
}

/// The reason why a URL of Amazon could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::receipts::webhook) enum FetchError {
    /// The server answered that it does not exist.
    NotFound,
    /// The server did not give a definite answer.
    Unavailable,
}

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CERTIFICATE_BYTES: usize = 64 << 10;
/// SNS has one certificate per region and year.
const MAX_CACHED_CERTIFICATES: usize = 100;
/// Time for which a missing or malformed certificate is not fetched again.
const NOT_FOUND_TTL: Duration = Duration::from_secs(300);
/// Time for which a certificate is not fetched again after the server did not answer. Shorter than
/// the 20 seconds after which SNS repeats a delivery.
const UNAVAILABLE_TTL: Duration = Duration::from_secs(10);
/// Maximum number of fetches per minute.
const MAX_FETCHES_PER_MINUTE: u32 = 30;
/// Maximum number of fetches per minute caused by one network: an IPv4 address or a /64 of IPv6.
const MAX_FETCHES_PER_NETWORK: u32 = 5;

impl CertificateCache {
    /// Creates an empty cache. `http` must not follow redirects.
    #[must_use]
    pub(crate) fn new(http: reqwest::Client) -> Self {
        Self {
            client: CertificateSource::Client(http),
            entries: Mutex::default(),
            fetches: Mutex::default(),
        }
    }

    /// Creates a cache with scripted responses.
    #[cfg(test)]
    pub(in crate::receipts::webhook) fn scripted(script: super::script::ScriptedFetches) -> Self {
        Self {
            client: CertificateSource::Script(script),
            entries: Mutex::default(),
            fetches: Mutex::default(),
        }
    }

    /// Returns the public key of a certificate as `SubjectPublicKeyInfo`. `source` is the client
    /// that named the URL.
    pub(super) async fn public_key(
        &self,
        url: &Url,
        source: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Arc<[u8]>, WebhookRejection> {
        let entry = self.entry(url);
        let mut entry = entry.lock().await;
        match &*entry {
            Some((_, Ok(key))) => return Ok(Arc::clone(key)),
            Some((at, Err(WebhookRejection::Unavailable))) if now.since(*at) < UNAVAILABLE_TTL => {
                return Err(WebhookRejection::Unavailable);
            }
            Some((at, Err(rejection)))
                if *rejection != WebhookRejection::Unavailable
                    && now.since(*at) < NOT_FOUND_TTL =>
            {
                return Err(*rejection);
            }
            _ => {}
        }
        if !self.try_count_fetch(source.map(network), now) {
            return Err(WebhookRejection::Unavailable);
        }
        let key = match self.fetch_text(url).await {
            Ok(pem) => public_key(&pem)
                .map(Arc::from)
                .ok_or(WebhookRejection::Signature),
            Err(FetchError::NotFound) => Err(WebhookRejection::Signature),
            Err(FetchError::Unavailable) => Err(WebhookRejection::Unavailable),
        };
        *entry = Some((now, key.clone()));
        key
    }

    #[cfg(test)]
    pub(in crate::receipts::webhook) fn insert(&self, url: &Url, key: &Arc<[u8]>) {
        let entry = CacheEntry::new(Some((Timestamp(0), Ok(Arc::clone(key)))));
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(url.to_string(), Arc::new(entry));
    }

    /// Returns the entry of a URL. If the cache is full, failures are evicted first.
    fn entry(&self, url: &Url) -> Arc<CacheEntry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_CACHED_CERTIFICATES && !entries.contains_key(url.as_str()) {
            entries.retain(|_, entry| {
                entry
                    .try_lock()
                    .is_ok_and(|entry| matches!(&*entry, Some((_, Ok(_)))))
            });
            if entries.len() >= MAX_CACHED_CERTIFICATES {
                entries.clear();
            }
        }
        Arc::clone(entries.entry(url.to_string()).or_default())
    }

    fn try_count_fetch(&self, network: Option<IpAddr>, now: Timestamp) -> bool {
        let mut fetches = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = now.unix_seconds().div_euclid(60);
        if fetches.minute != minute {
            *fetches = FetchCounts {
                minute,
                by_network: HashMap::new(),
            };
        }
        let total: u32 = fetches.by_network.values().sum();
        let by_network = fetches.by_network.get(&network).copied().unwrap_or(0);
        // A client of unknown address counts against the total only.
        let allowed = total < MAX_FETCHES_PER_MINUTE
            && (network.is_none() || by_network < MAX_FETCHES_PER_NETWORK);
        if allowed {
            fetches.by_network.insert(network, by_network + 1);
        }
        allowed
    }

    /// Fetches the text at a URL of Amazon.
    pub(super) async fn fetch_text(&self, url: &Url) -> Result<String, FetchError> {
        match &self.client {
            CertificateSource::Client(http) => {
                tokio::time::timeout(FETCH_TIMEOUT, fetch(http, url))
                    .await
                    .unwrap_or(Err(FetchError::Unavailable))
            }
            #[cfg(test)]
            CertificateSource::Script(script) => script.fetch_text(url).await,
        }
    }
}

/// Returns the network whose addresses count together.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(long) => IpAddr::V6(Ipv6Addr::from_bits(long.to_bits() >> 64 << 64)),
    }
}

async fn fetch(http: &reqwest::Client, url: &Url) -> Result<String, FetchError> {
    let mut response = http
        .get(url.clone())
        .send()
        .await
        .map_err(|_| FetchError::Unavailable)?;
    check_status(response.status())?;
    let mut body = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|_| FetchError::Unavailable)?
    {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_CERTIFICATE_BYTES {
            return Err(FetchError::NotFound);
        }
    }
    String::from_utf8(body).map_err(|_| FetchError::NotFound)
}

/// Classifies a status. Client errors are final (RFC 9110 section 15.5), except those that ask for
/// a retry.
fn check_status(status: StatusCode) -> Result<(), FetchError> {
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    match status {
        _ if status.is_success() => Ok(()),
        _ if status.is_client_error() && !later.contains(&status) => Err(FetchError::NotFound),
        _ => Err(FetchError::Unavailable),
    }
}

/// Returns the `subjectPublicKeyInfo` of the first certificate in PEM (RFC 5280 section 4.1: the
/// seventh field of `tbsCertificate`, or the sixth if the version is omitted).
pub(in crate::receipts::webhook) fn public_key(pem: &str) -> Option<Vec<u8>> {
    let begin = pem.split("-----BEGIN CERTIFICATE-----").nth(1)?;
    let encoded: String = begin.split("-----END").next()?.split_whitespace().collect();
    let der = STANDARD.decode(encoded).ok()?;
    let (_, certificate, _) = element(&der)?;
    let (_, tbs, _) = element(certificate)?;
    let mut rest = tbs;
    let (tag, _, _) = element(rest)?;
    let before = if tag == 0xa0 { 6 } else { 5 };
    for _ in 0..before {
        rest = element(rest)?.2;
    }
    let (tag, content, after) = element(rest)?;
    let length = rest.len() - after.len();
    (tag == 0x30 && !content.is_empty()).then(|| rest[..length].to_vec())
}

/// Returns tag, content and remainder of a DER element (X.690 sections 8.1.2 and 8.1.3).
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let count = usize::from(first & 0x7f);
            let digits = rest.get(..count)?;
            (
                digits
                    .iter()
                    .fold(0, |length, digit| length << 8 | usize::from(*digit)),
                rest.get(count..)?,
            )
        }
        _ => return None,
    };
    Some((tag, rest.get(..length)?, rest.get(length..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_final_client_error_counts_as_not_found() {
        for (status, told) in [
            (200, Ok(())),
            (404, Err(FetchError::NotFound)),
            (403, Err(FetchError::NotFound)),
            (408, Err(FetchError::Unavailable)),
            (429, Err(FetchError::Unavailable)),
            (302, Err(FetchError::Unavailable)),
            (503, Err(FetchError::Unavailable)),
        ] {
            assert_eq!(
                check_status(StatusCode::from_u16(status).expect("status")),
                told,
                "{status}"
            );
        }
    }
}
