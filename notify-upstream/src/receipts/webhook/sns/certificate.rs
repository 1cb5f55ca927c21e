//! Signing certificates of Amazon SNS: fetching, caching and parsing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::network::{client_limit_key, read_body};
use url::Url;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use crate::receipts::webhook::WebhookRejection;

/// A cache of signing certificates by URL. A URL always names the same certificate: SNS publishes a
/// new one under a new name.
///
/// Anyone who knows a topic can send a message that names a certificate that does not exist, so
/// fetches per minute are limited, in total and per client network: a flood from one network leaves
/// the rest to Amazon. SNS repeats a genuine message for an hour.
#[derive(Debug)]
pub(crate) struct CertificateCache {
    client: CertificateSource,
    known: Mutex<HashMap<String, Arc<SigningCertificate>>>,
    /// Minutes since the Unix epoch, and the networks that caused the fetches of that minute.
    fetches: Mutex<(i64, Vec<Option<IpAddr>>)>,
}

/// A certificate that was issued to SNS.
#[derive(Debug)]
pub(in crate::receipts::webhook) struct SigningCertificate {
    /// The public key as `SubjectPublicKeyInfo`.
    pub(super) public_key: Vec<u8>,
    /// The first and the last valid second, in Unix time.
    validity: RangeInclusive<i64>,
}

#[derive(Debug)]
enum CertificateSource {
    Client(reqwest::Client),
    /// Scripted responses of a test.
    #[cfg(test)]
    Script(crate::receipts::webhook::tests::script::ScriptedFetches),
}

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CERTIFICATE_BYTES: usize = 64 << 10;
/// SNS has one certificate per region and year.
const MAX_CACHED_CERTIFICATES: usize = 100;
/// Maximum number of fetches per minute.
const MAX_FETCHES_PER_MINUTE: usize = 30;
/// Maximum number of fetches per minute caused by one network: an IPv4 address or a /64 of IPv6.
const MAX_FETCHES_PER_NETWORK: usize = 5;

impl CertificateCache {
    pub(crate) fn new(http: reqwest::Client) -> Self {
        Self {
            client: CertificateSource::Client(http),
            known: Mutex::default(),
            fetches: Mutex::default(),
        }
    }

    /// Creates a cache with scripted responses.
    #[cfg(test)]
    pub(in crate::receipts::webhook) fn scripted(
        script: crate::receipts::webhook::tests::script::ScriptedFetches,
    ) -> Self {
        Self {
            client: CertificateSource::Script(script),
            known: Mutex::default(),
            fetches: Mutex::default(),
        }
    }

    /// Returns a certificate that is valid now. `source` is the client that named the URL.
    pub(super) async fn certificate(
        &self,
        url: &Url,
        source: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Arc<SigningCertificate>, WebhookRejection> {
        let known = self.known.lock().get(url.as_str()).cloned();
        let certificate = match known {
            Some(certificate) => certificate,
            None => self.fetched(url, source, now).await?,
        };
        let is_valid = certificate.validity.contains(&now.unix_seconds());
        is_valid
            .then_some(certificate)
            .ok_or(WebhookRejection::Signature)
    }

    async fn fetched(
        &self,
        url: &Url,
        source: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Arc<SigningCertificate>, WebhookRejection> {
        if !self.try_count_fetch(source.map(client_limit_key), now) {
            return Err(WebhookRejection::Unavailable);
        }
        let pem = self.fetch_text(url).await?;
        let certificate = SigningCertificate::parse(&pem, url);
        let certificate = Arc::new(certificate.ok_or(WebhookRejection::Signature)?);
        let mut known = self.known.lock();
        if known.len() >= MAX_CACHED_CERTIFICATES {
            known.clear();
        }
        known.insert(url.to_string(), Arc::clone(&certificate));
        Ok(certificate)
    }

    #[cfg(test)]
    pub(in crate::receipts::webhook) fn insert(&self, url: &Url, certificate: SigningCertificate) {
        let certificate = Arc::new(certificate);
        self.known.lock().insert(url.to_string(), certificate);
    }

    fn try_count_fetch(&self, network: Option<IpAddr>, now: Timestamp) -> bool {
        let (counted, networks) = &mut *self.fetches.lock();
        let minute = now.unix_seconds().div_euclid(60);
        if *counted != minute {
            *counted = minute;
            networks.clear();
        }
        let own = networks.iter().filter(|of| **of == network).count();
        // A client of unknown address counts against the total only.
        let is_allowed = networks.len() < MAX_FETCHES_PER_MINUTE
            && (network.is_none() || own < MAX_FETCHES_PER_NETWORK);
        if is_allowed {
            networks.push(network);
        }
        is_allowed
    }

    /// Fetches the text at a URL of Amazon.
    pub(super) async fn fetch_text(&self, url: &Url) -> Result<String, WebhookRejection> {
        match &self.client {
            CertificateSource::Client(http) => {
                let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch(http, url)).await;
                fetched.unwrap_or(Err(WebhookRejection::Unavailable))
            }
            #[cfg(test)]
            CertificateSource::Script(script) => script.fetch_text(url),
        }
    }
}

async fn fetch(http: &reqwest::Client, url: &Url) -> Result<String, WebhookRejection> {
    let response = http.get(url.clone()).send().await;
    let response = response.map_err(|_| WebhookRejection::Unavailable)?;
    check_status(response.status().as_u16())?;
    let body = read_body(response, MAX_CERTIFICATE_BYTES).await;
    let body = body.ok().flatten().ok_or(WebhookRejection::Unavailable)?;
    String::from_utf8(body).map_err(|_| WebhookRejection::Signature)
}

/// Classifies a status. Client errors are final (RFC 9110 section 15.5), except those that ask for
/// a retry.
fn check_status(status: u16) -> Result<(), WebhookRejection> {
    match status {
        200..300 => Ok(()),
        408 | 429 => Err(WebhookRejection::Unavailable),
        400..500 => Err(WebhookRejection::Signature),
        _ => Err(WebhookRejection::Unavailable),
    }
}

impl SigningCertificate {
    /// Parses a certificate in PEM that was fetched from this URL. Returns `None` if it is malformed
    /// or not issued to SNS.
    ///
    /// SNS publishes the certificate alone, without its issuers. The chain of trust is that of the
    /// TLS connection to the host of the URL; the names are those that the AWS SDK for Java accepts.
    pub(in crate::receipts::webhook) fn parse(pem: &str, url: &Url) -> Option<Self> {
        let (_, pem) = parse_x509_pem(pem.as_bytes()).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let common = certificate.subject().iter_common_name();
        let common = common.filter_map(|name| name.as_str().ok());
        let alternative = certificate.subject_alternative_name().ok()?;
        let alternative = alternative.map_or(&[][..], |names| &names.value.general_names);
        let alternative = alternative.iter().filter_map(|name| {
            if let GeneralName::DNSName(name) = name {
                Some(*name)
            } else {
                None
            }
        });
        let mut names = common.chain(alternative);
        let expected = expected_names(url.host_str()?)?;
        let validity = certificate.validity();
        let is_of_sns = names.any(|name| expected.iter().any(|known| known == name));
        is_of_sns.then(|| Self {
            public_key: certificate.public_key().raw.to_vec(),
            validity: validity.not_before.timestamp()..=validity.not_after.timestamp(),
        })
    }
}

/// Returns the names of the certificates of SNS in the region of a host, `sns.{region}.{domain}`.
fn expected_names(host: &str) -> Option<[String; 4]> {
    let (region, domain) = host.strip_prefix("sns.")?.split_once('.')?;
    // Both regions of GovCloud use the certificate of one.
    let issued_for = match region {
        "us-gov-east-1" => "us-gov-west-1",
        _ => region,
    };
    Some([
        format!("sns.{domain}"),
        format!("sns.{region}.{domain}"),
        format!("sns-signing.{region}.{domain}"),
        format!("sns-{issued_for}.{domain}"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_names_follow_region() {
        for (region, domain, name) in [
            ("us-west-2", "amazonaws.com", "sns"),
            ("af-south-1", "amazonaws.com", "sns-signing.af-south-1"),
            ("us-gov-east-1", "amazonaws.com", "sns-us-gov-west-1"),
            ("cn-north-1", "amazonaws.com.cn", "sns-cn-north-1"),
        ] {
            let names = expected_names(&format!("sns.{region}.{domain}"));
            let names = names.expect("a host of SNS");
            assert!(names.contains(&format!("{name}.{domain}")), "{region}");
        }
    }

    #[tokio::test]
    async fn certificate_must_be_valid_and_issued_to_sns() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../vectors.json")).expect("JSON");
        let pem = vectors["sns"]["cert"].as_str().expect("PEM");
        let url = |host: &str| Url::parse(&format!("https://{host}/cert.pem")).expect("URL");
        let oregon = url("sns.us-west-2.amazonaws.com");
        let certificate = SigningCertificate::parse(pem, &oregon).expect("issued to SNS");
        assert!(SigningCertificate::parse(pem, &url("sns.cn-north-1.amazonaws.com.cn")).is_none());
        let cache = CertificateCache::new(reqwest::Client::new());
        cache.insert(&oregon, certificate);
        for (at, is_valid) in [
            ("2024-12-31T23:59:59Z", false),
            ("2025-01-01T00:00:00Z", true),
            ("2035-01-01T00:00:00Z", true),
            ("2035-01-01T00:00:01Z", false),
        ] {
            let now = Timestamp::parse(at).expect("a time");
            let outcome = cache.certificate(&oregon, None, now).await;
            assert_eq!(outcome.is_ok(), is_valid, "{at}");
        }
    }

    #[test]
    fn only_a_final_client_error_counts_as_not_found() {
        use WebhookRejection::{Signature, Unavailable};
        assert_eq!(check_status(200), Ok(()));
        for (expected, statuses) in [
            (Signature, &[404, 403][..]),
            (Unavailable, &[408, 429, 302, 503]),
        ] {
            for status in statuses {
                assert_eq!(check_status(*status), Err(expected), "{status}");
            }
        }
    }
}
