//! Warnings of `postern-proxy check` about files of listeners and upstreams that are well-formed and
//! soon, or already, make connections fail.

use std::path::Path;

use postern_core::clock::Timestamp;
use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::certificates::files::{certificates, revocation_lists};
use crate::certificates::leaf::Leaf;
use crate::certificates::names::NameIndex;
use crate::config::{CertificateConfig, CertificateSource, Config, HostPattern, Route};

const DAY_S: i64 = 86_400;

/// Time before the end of a validity period from which it is reported, in seconds.
const EXPIRES_SOON_S: i64 = 30 * DAY_S;

/// Returns warnings: certificates, certificate authorities and revocation lists that have expired, are
/// not valid yet or expire within 30 days, and routes that need a client certificate for some of
/// their hosts only. Files that cannot be read are left out, because they are errors.
#[must_use]
pub fn certificate_warnings(config: &Config, now: Timestamp) -> Vec<String> {
    let (mut all, now) = (Vec::new(), now.unix_seconds());
    let mut protected = NameIndex::<()>::default();
    for (at, listen) in config.listen.iter().enumerate() {
        for certificate in listen.tls.iter().flat_map(|tls| &tls.certificates) {
            let key = format!("listen.{at}.tls{}", certificate.key_prefix);
            let names = server_certificate(&key, certificate, now, &mut all);
            let Some(client_auth) = certificate.client_auth.as_deref() else {
                continue;
            };
            for name in names {
                protected.insert(&name, ());
            }
            authorities(&format!("{key}.client_ca"), &client_auth.ca, now, &mut all);
            if let Some(path) = &client_auth.crl {
                revocation_list(&format!("{key}.client_crl"), path, now, &mut all);
            }
        }
    }
    for upstream in &config.upstreams {
        let Some(tls) = &upstream.tls else { continue };
        let key = format!("upstream.{}.tls", upstream.name);
        if let Some(path) = &tls.ca {
            authorities(&format!("{key}.ca"), path, now, &mut all);
        }
        if let Some(path) = &tls.certificate {
            let chain = certificates(path).unwrap_or_default();
            let key = format!("{key}.certificate: {}", path.display());
            if let Some(Ok(leaf)) = chain.first().map(Leaf::read) {
                validity(&key, &leaf, now, &mut all);
            }
        }
    }
    all.dedup();
    let routes = config.routes.iter();
    all.extend(routes.filter_map(|route| partly_protected(route, &protected)));
    all
}

/// Returns a warning if the route needs a client certificate for some of its hosts and not for
/// others: `*.example.com` beside a certificate for `a.example.com`.
fn partly_protected(route: &Route, protected: &NameIndex<()>) -> Option<String> {
    let hosts = &route.pattern.hosts;
    let is_open = |host: &&HostPattern| protected.closest(&host.to_string()).is_none();
    let open = hosts.iter().find(is_open)?;
    let is_accepted = |name: &String| {
        let host = name.replacen('*', "x", 1);
        hosts.iter().any(|pattern| pattern.matches(&host))
    };
    let closed = protected.names().filter(is_accepted).min()?;
    let name = &route.name;
    Some(format!(
        "route {name}: needs a client certificate for {closed}, but not for all hosts of {open}"
    ))
}

/// Checks the certificate authorities of a file. One of several is named by its position, because
/// old and new authorities are often listed together.
fn authorities(key: &str, path: &Path, now: i64, all: &mut Vec<String>) {
    let found = certificates(path).unwrap_or_default();
    for (at, authority) in found.iter().enumerate() {
        let Ok(authority) = Leaf::read(authority) else {
            continue;
        };
        let position = match found.len() {
            1 => String::new(),
            count => format!(" (certificate {} of {count})", at + 1),
        };
        let key = format!("{key}: {}{position}", path.display());
        validity(&key, &authority, now, all);
    }
}

fn validity(key: &str, certificate: &Leaf, now: i64, all: &mut Vec<String>) {
    if now < certificate.not_before {
        let starts_at = Timestamp::from_unix_seconds(certificate.not_before);
        all.push(format!("{key}: is not valid before {starts_at}"));
    }
    all.extend(expiry(certificate.not_after, now).map(|text| format!("{key}: {text}")));
}

/// Checks a certificate of a listener, and returns the names for which it is offered.
fn server_certificate(
    key: &str,
    config: &CertificateConfig,
    now: i64,
    all: &mut Vec<String>,
) -> Vec<String> {
    let certificate = match &config.source {
        CertificateSource::Files { certificate, .. } => certificate,
        CertificateSource::Acme(domain) => return vec![domain.clone()],
    };
    let chain = certificates(certificate).unwrap_or_default();
    let Some(Ok(leaf)) = chain.first().map(Leaf::read) else {
        return Vec::new();
    };
    let key = format!("{key}.certificate: {}", certificate.display());
    validity(&key, &leaf, now, all);
    leaf.names
}

fn revocation_list(key: &str, path: &Path, now: i64, all: &mut Vec<String>) {
    for list in revocation_lists(path).unwrap_or_default() {
        if let Some(text) = next_update(&list).and_then(|at| expiry(at, now)) {
            all.push(format!("{key}: {}: {text}", path.display()));
        }
    }
}

/// Returns the time of the next update of a list, in Unix seconds.
fn next_update(list: &CertificateRevocationListDer<'_>) -> Option<i64> {
    let (_, list) = CertificateRevocationList::from_der(list.as_ref()).ok()?;
    list.next_update().map(|at| at.timestamp())
}

fn expiry(not_after: i64, now: i64) -> Option<String> {
    let at = Timestamp::from_unix_seconds(not_after);
    match not_after.saturating_sub(now) {
        left if left <= 0 => Some(format!("expired at {at}")),
        left if left <= EXPIRES_SOON_S => {
            Some(format!("expires at {at}, in {} days", left / DAY_S))
        }
        _ => None,
    }
}
