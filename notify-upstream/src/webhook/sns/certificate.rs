use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use crate::webhook::Unheard;

/// Signing certificates, by URL. A URL names one certificate for ever: SNS publishes a new one under a new name.
#[derive(Debug)]
pub struct Certificates {
    http: reqwest::Client,
    known: Mutex<HashMap<String, Arc<[u8]>>>,
}

const DEADLINE: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 64 << 10;
/// There is one a region and a year.
const MAX_KNOWN: usize = 100;

impl Certificates {
    /// None known yet. `http` follows no redirect.
    #[must_use]
    pub fn new(http: reqwest::Client) -> Self {
        Self { http, known: Mutex::default() }
    }

    /// The public key in a certificate, as `SubjectPublicKeyInfo`.
    pub(super) async fn public_key(&self, url: &Url) -> Result<Arc<[u8]>, Unheard> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(url.as_str()).cloned();
        if let Some(key) = known {
            return Ok(key);
        }
        let pem = self.visit(url).await?;
        let key: Arc<[u8]> = public_key(&pem).ok_or(Unheard::Signature)?.into();
        self.learn(url, &key);
        Ok(key)
    }

    pub(in crate::webhook) fn learn(&self, url: &Url, key: &Arc<[u8]>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(url.to_string(), Arc::clone(key));
    }

    /// The text at a URL of Amazon's.
    pub(super) async fn visit(&self, url: &Url) -> Result<String, Unheard> {
        let fetched = async {
            let mut response = self.http.get(url.clone()).send().await.ok()?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.ok()? {
                body.extend_from_slice(&chunk);
                if body.len() > MAX_BYTES {
                    return None;
                }
            }
            response.status().is_success().then_some(body)
        };
        let body =
            tokio::time::timeout(DEADLINE, fetched).await.ok().flatten().ok_or(Unheard::Unavailable)?;
        String::from_utf8(body).map_err(|_| Unheard::Unavailable)
    }
}

/// The `subjectPublicKeyInfo` of the first certificate in PEM (RFC 5280 section 4.1: the seventh field of
/// `tbsCertificate`, or the sixth where the version is left out).
pub(in crate::webhook) fn public_key(pem: &str) -> Option<Vec<u8>> {
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

/// Tag, content and what follows (X.690 sections 8.1.2 and 8.1.3).
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let count = usize::from(first & 0x7f);
            let digits = rest.get(..count)?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest.get(count..)?)
        }
        _ => return None,
    };
    Some((tag, rest.get(..length)?, rest.get(length..)?))
}
