use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use postern_common::clock::Timestamp;
use url::Url;

use crate::receipts::webhook::Unheard;

/// Signing certificates, by URL. A URL names one certificate for ever: SNS publishes a new one
/// under a new name.
///
/// Anyone may send a message that names a certificate which is not there, so what did not come is
/// remembered too, one request at a time asks for a URL, and so many a minute are asked for in all,
/// and because of one network: whoever floods us from there leaves the rest to Amazon's own.
#[derive(Debug)]
pub(crate) struct Certificates {
    web: Web,
    known: Mutex<HashMap<String, Arc<Entry>>>,
    /// The minute, and how many certificates were asked for in it because of each network.
    asked: Mutex<(i64, HashMap<Option<IpAddr>, u32>)>,
}

/// Held while it is asked for.
type Entry = tokio::sync::Mutex<Option<(Timestamp, Result<Arc<[u8]>, Unheard>)>>;

#[derive(Debug)]
enum Web {
    Client(reqwest::Client),
    /// What a test tells it.
    #[cfg(test)]
    Script(super::script::Script),
}

/// Why there is no text at a URL of Amazon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::receipts::webhook) enum Absent {
    /// Amazon says that there is none.
    Missing,
    /// Amazon does not say.
    Away,
}

const DEADLINE: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 64 << 10;
/// There is one a region and a year.
const MAX_KNOWN: usize = 100;
/// How long one that is not there, or is no certificate, is not asked for again.
const MISSING_FOR: Duration = Duration::from_secs(300);
/// The same where Amazon did not answer: shorter than the 20 seconds after which SNS repeats a
/// delivery.
const AWAY_FOR: Duration = Duration::from_secs(10);
/// How many certificates are asked for in a minute, whatever their names.
const A_MINUTE: u32 = 30;
/// How many of them because of one network, which is an address of IPv4 or 64 bits of IPv6.
const A_NETWORK: u32 = 5;

impl Certificates {
    /// None known yet. `http` follows no redirect.
    #[must_use]
    pub(crate) fn new(http: reqwest::Client) -> Self {
        Self {
            web: Web::Client(http),
            known: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Ones that a test tells.
    #[cfg(test)]
    pub(in crate::receipts::webhook) fn scripted(script: super::script::Script) -> Self {
        Self {
            web: Web::Script(script),
            known: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// The public key in a certificate, as `SubjectPublicKeyInfo`.
    /// `source` is who names it.
    pub(super) async fn public_key(
        &self,
        url: &Url,
        source: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Arc<[u8]>, Unheard> {
        let entry = self.entry(url);
        let mut entry = entry.lock().await;
        match &*entry {
            Some((_, Ok(key))) => return Ok(Arc::clone(key)),
            Some((at, Err(Unheard::Unavailable))) if now.since(*at) < AWAY_FOR => {
                return Err(Unheard::Unavailable);
            }
            Some((at, Err(unheard)))
                if *unheard != Unheard::Unavailable && now.since(*at) < MISSING_FOR =>
            {
                return Err(*unheard);
            }
            _ => {}
        }
        if !self.may_ask(source.map(network), now) {
            return Err(Unheard::Unavailable);
        }
        let key = match self.visit(url).await {
            Ok(pem) => public_key(&pem).map(Arc::from).ok_or(Unheard::Signature),
            Err(Absent::Missing) => Err(Unheard::Signature),
            Err(Absent::Away) => Err(Unheard::Unavailable),
        };
        *entry = Some((now, key.clone()));
        key
    }

    #[cfg(test)]
    pub(in crate::receipts::webhook) fn learn(&self, url: &Url, key: &Arc<[u8]>) {
        let entry = Entry::new(Some((Timestamp(0), Ok(Arc::clone(key)))));
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(url.to_string(), Arc::new(entry));
    }

    /// What is known of a URL. When there is no room, what did not come is forgotten first.
    fn entry(&self, url: &Url) -> Arc<Entry> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN && !known.contains_key(url.as_str()) {
            known.retain(|_, entry| {
                entry
                    .try_lock()
                    .is_ok_and(|entry| matches!(&*entry, Some((_, Ok(_)))))
            });
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
        }
        Arc::clone(known.entry(url.to_string()).or_default())
    }

    fn may_ask(&self, network: Option<IpAddr>, now: Timestamp) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = now.unix_seconds().div_euclid(60);
        if asked.0 != minute {
            *asked = (minute, HashMap::new());
        }
        let in_all: u32 = asked.1.values().sum();
        let by_it = asked.1.get(&network).copied().unwrap_or(0);
        // Who is not known by address, as behind no gateway, is held to the whole alone.
        let may = in_all < A_MINUTE && (network.is_none() || by_it < A_NETWORK);
        if may {
            asked.1.insert(network, by_it + 1);
        }
        may
    }

    /// The text at a URL of Amazon's.
    pub(super) async fn visit(&self, url: &Url) -> Result<String, Absent> {
        match &self.web {
            Web::Client(http) => tokio::time::timeout(DEADLINE, fetch(http, url))
                .await
                .unwrap_or(Err(Absent::Away)),
            #[cfg(test)]
            Web::Script(script) => script.visit(url).await,
        }
    }
}

/// What one holder has many addresses of.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(long) => IpAddr::V6(Ipv6Addr::from_bits(long.to_bits() >> 64 << 64)),
    }
}

async fn fetch(http: &reqwest::Client, url: &Url) -> Result<String, Absent> {
    let mut response = http
        .get(url.clone())
        .send()
        .await
        .map_err(|_| Absent::Away)?;
    judge(response.status())?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| Absent::Away)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_BYTES {
            return Err(Absent::Missing);
        }
    }
    String::from_utf8(body).map_err(|_| Absent::Missing)
}

/// A refusal stands (RFC 9110 section 15.5), but for those that ask to come again.
fn judge(status: StatusCode) -> Result<(), Absent> {
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    match status {
        _ if status.is_success() => Ok(()),
        _ if status.is_client_error() && !later.contains(&status) => Err(Absent::Missing),
        _ => Err(Absent::Away),
    }
}

/// The `subjectPublicKeyInfo` of the first certificate in PEM (RFC 5280 section 4.1: the seventh
/// field of `tbsCertificate`, or the sixth where the version is left out).
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

/// Tag, content and what follows (X.690 sections 8.1.2 and 8.1.3).
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
    fn only_a_refusal_that_stands_counts_as_missing() {
        for (status, told) in [
            (200, Ok(())),
            (404, Err(Absent::Missing)),
            (403, Err(Absent::Missing)),
            (408, Err(Absent::Away)),
            (429, Err(Absent::Away)),
            (302, Err(Absent::Away)),
            (503, Err(Absent::Away)),
        ] {
            assert_eq!(
                judge(StatusCode::from_u16(status).expect("status")),
                told,
                "{status}"
            );
        }
    }
}
