//! `[listen.tls]`: certificates, protocol versions and client authentication of a listener.

use std::path::PathBuf;
use std::sync::Arc;

use postern_core::decode::{Field, Object};
use postern_core::settings;
use postern_http::message::host::is_host_name;
use serde_json::json;

use crate::config::{file_path, short_texts};

/// `[listen.tls]`: files are PEM, and reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTlsConfig {
    /// The certificates, at least one. A client is offered the first certificate for the name that
    /// it requests (SNI), or the first of the list.
    pub certificates: Vec<CertificateConfig>,
    /// Whether TLS 1.3 is required: the cipher suites are then those of Mozilla's "modern"
    /// recommendation, otherwise "intermediate"; default false.
    pub requires_tls13: bool,
    /// Whether HTTP/2 is offered in addition to HTTP/1.1; default true.
    pub http2: bool,
}

/// A certificate, which is offered for its DNS names, and what it asks of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateConfig {
    /// The position of its keys below `listen.tls`: empty, or such as `.certificates.0`.
    pub key_prefix: String,
    /// The origin of the certificate.
    pub source: CertificateSource,
    /// Authentication of clients that request one of the names; default none.
    pub client_auth: Option<Arc<ClientAuthConfig>>,
}

/// The origin of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// PEM files.
    Files {
        /// The certificate chain, leaf first.
        certificate: PathBuf,
        /// The private key of the certificate.
        key: PathBuf,
    },
    /// Obtained from the ACME server for this name.
    Acme(String),
}

/// Authentication of clients by certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuthConfig {
    /// Certificate authorities that may have issued a client certificate.
    pub ca: PathBuf,
    /// Certificate revocation lists of these authorities; default none.
    pub crl: Option<PathBuf>,
    /// Whether a handshake without a client certificate fails; default true.
    pub required: bool,
    /// The services that certificates identify, in the order of precedence.
    pub principals: Vec<CertificatePrincipal>,
}

/// A service that a client certificate identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePrincipal {
    /// The name that the certificate must contain.
    pub name: CertificateName,
    /// The name of the service, as policies list it.
    pub service: String,
    /// The scopes of the service.
    pub scopes: Vec<String>,
}

/// A name in a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// A URI in the subject alternative names, such as a SPIFFE id; compared exactly.
    Uri(String),
    /// A DNS name in the subject alternative names; compared without case.
    Dns(String),
}

impl CertificateName {
    /// Returns the text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Uri(name) | Self::Dns(name) => name,
        }
    }
}

settings! {
    struct TlsKeys(table, client_auth: Option<&Arc<ClientAuthConfig>>) {
        /// Further certificates; without `certificate` the first is the default. They have the client
        /// authentication of the listener, unless they have their own.
        further as certificates: Vec<CertificateConfig> = []
            => |field| read_further(field, client_auth),
        /// Names for each of which a certificate is obtained.
        domains as acme: Vec<String> = [] => |field| field.array(read_domain),
        /// Lowest version, see [cipher suites](../manual/gateway.md#cipher-suites).
        requires_tls13 as min_version: bool = "1.2"
            => |field| field.one_of(&[("1.2", false), ("1.3", true)]),
        /// Offer HTTP/2 by ALPN.
        http2: bool = true => |field| field.boolean(),
    }
}

settings! {
    struct ClientAuthKeys(table) {
        /// Authorities of client certificates, PEM; without it none is requested.
        client_ca: Option<PathBuf> = None => file_path,
        /// Their revocation lists, PEM; each status must be known, and no list expired.
        client_crl: Option<PathBuf> = None => file_path,
        /// `required` fails a handshake without a client certificate; `off` requests none.
        client_auth: Option<Option<bool>> = None ("`required`") => |field| {
            field.one_of(&[
                ("required", Some(true)),
                ("optional", Some(false)),
                ("off", None),
            ])
        },
        /// Services that client certificates identify; the first match.
        client_certificates: Vec<CertificatePrincipal> = []
            => |field| field.array(|item| item.object(read_principal)),
    }
}

settings! {
    fn read_files(table) -> CertificateSource {
        /// Certificate and chain, PEM; reloaded when modified.
        ///
        /// Of the listener: required without `certificates` and `acme`.
        certificate = None ("") => file_path,
        /// Its private key, PEM.
        key = None ("") => file_path,
    } => CertificateSource::Files { certificate: certificate?, key: key? }
}

settings! {
    /// Reads `{ uri = "spiffe://…", service = "partner", scopes = […] }`.
    fn read_principal(table) -> CertificatePrincipal {
        /// The name in the certificate; exactly one of the two.
        uri = None ("") => visible,
        /// The name in the certificate; exactly one of the two.
        dns = None ("") => visible,
        /// Name of the service, as in policies.
        service => visible,
        /// Its scopes.
        scopes = [] => short_texts,
        name = (certificate_name(table, uri.as_ref()?.as_ref(), dns.as_ref()?.as_ref())),
    } => CertificatePrincipal { name, service, scopes }
}

impl ListenerTlsConfig {
    pub(super) fn read(table: &Object<'_>) -> Option<Self> {
        let client_auth = read_client_auth(table, None);
        let inherited = client_auth.as_ref().and_then(Option::as_ref);
        let is_first_given = table.has("certificate") || table.has("key");
        let first = match is_first_given {
            true => CertificateConfig::read(table, String::new(), inherited.cloned()),
            false => None,
        };
        let keys = TlsKeys::read(table, inherited)?;
        let of_domains = keys.domains.into_iter().map(|domain| CertificateConfig {
            key_prefix: ".acme".to_owned(),
            source: CertificateSource::Acme(domain),
            client_auth: inherited.cloned(),
        });
        let certificates = first.into_iter().chain(keys.further).chain(of_domains);
        let certificates: Vec<_> = certificates.collect();
        let is_given = is_first_given || table.has("certificates") || table.has("acme");
        if !is_given || certificates.is_empty() && table.is_good() {
            table.fail("missing_field", "certificate and key are required");
        }
        client_auth?;
        (!certificates.is_empty()).then_some(Self {
            certificates,
            requires_tls13: keys.requires_tls13,
            http2: keys.http2,
        })
    }

    /// Returns the names for which certificates are obtained from the ACME server.
    pub fn acme_domains(&self) -> impl Iterator<Item = &str> {
        self.certificates
            .iter()
            .filter_map(|certificate| match &certificate.source {
                CertificateSource::Acme(domain) => Some(domain.as_str()),
                CertificateSource::Files { .. } => None,
            })
    }
}

impl CertificateConfig {
    fn read(
        section: &Object<'_>,
        key_prefix: String,
        client_auth: Option<Arc<ClientAuthConfig>>,
    ) -> Option<Self> {
        if !(section.has("certificate") && section.has("key")) {
            section.fail("missing_field", "certificate and key are required");
        }
        Some(Self {
            key_prefix,
            source: read_files(section)?,
            client_auth,
        })
    }
}

/// Reads `[[listen.tls.certificates]]`.
fn read_further(
    field: Field<'_>,
    inherited: Option<&Arc<ClientAuthConfig>>,
) -> Option<Vec<CertificateConfig>> {
    let mut index = 0_usize..;
    field.array(|item| {
        let key_prefix = format!(".certificates.{}", index.next().unwrap_or_default());
        item.object(|table| {
            let client_auth = read_client_auth(table, inherited)?;
            CertificateConfig::read(table, key_prefix, client_auth)
        })
    })
}

/// Reads the client authentication of a table. A table without any of its keys has that of the
/// listener; `client_auth = "off"` has none. Returns `None` if it is invalid, which is recorded.
fn read_client_auth(
    table: &Object<'_>,
    inherited: Option<&Arc<ClientAuthConfig>>,
) -> Option<Option<Arc<ClientAuthConfig>>> {
    let keys = ClientAuthKeys::read(table)?;
    let has_others = table.has("client_crl") || table.has("client_certificates");
    if !table.has("client_ca") {
        return match keys.client_auth {
            None if !has_others => Some(inherited.cloned()),
            Some(None) if !has_others => Some(None),
            Some(Some(_) | None) | None => {
                table.fail(
                    "missing_field",
                    "client_crl, client_auth and client_certificates require client_ca",
                );
                None
            }
        };
    }
    let Some(required) = keys.client_auth.unwrap_or(Some(true)) else {
        table.fail("conflicting_fields", "client_auth is off, with a client_ca");
        return None;
    };
    let mut seen = Vec::new();
    for principal in &keys.client_certificates {
        if seen.contains(&&principal.name) {
            let name = principal.name.as_str();
            table.fail(
                "duplicate",
                format!("client_certificates: {name} occurs twice"),
            );
        }
        seen.push(&principal.name);
    }
    Some(Some(Arc::new(ClientAuthConfig {
        ca: keys.client_ca?,
        crl: keys.client_crl,
        required,
        principals: keys.client_certificates,
    })))
}

fn certificate_name(
    table: &Object<'_>,
    uri: Option<&String>,
    dns: Option<&String>,
) -> Option<CertificateName> {
    match (uri, dns) {
        (Some(uri), None) => Some(CertificateName::Uri(uri.clone())),
        (None, Some(dns)) => Some(CertificateName::Dns(dns.to_ascii_lowercase())),
        (Some(_), Some(_)) | (None, None) => {
            let detail = "exactly one of uri and dns is required";
            table.fail("conflicting_fields", detail);
            None
        }
    }
}

/// Reads visible ASCII, which a header field can carry.
fn visible(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=256)?;
    match text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Some(text),
        false => field.fail("invalid_format", "must be visible ASCII without spaces"),
    }
}

/// Reads a name for which the gateway can prove control over HTTP or TLS: no wildcard, no address.
fn read_domain(field: Field<'_>) -> Option<String> {
    let text = field.string_as(|| json!({ "type": "string", "pattern": "^[^*]+$" }))?;
    let last = text.rsplit_once('.').map_or("", |(_, last)| last);
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    // RFC 1123 section 2.1.
    let is_hyphenated = |label: &str| label.starts_with('-') || label.ends_with('-');
    let is_named = is_host_name(text.as_bytes()) && !text.split('.').any(is_hyphenated);
    match is_named && !is_number {
        true => Some(text.to_ascii_lowercase()),
        false => field.fail(
            "invalid_format",
            "must be a host name such as example.com; wildcards need the challenge dns-01, which the gateway does not have",
        ),
    }
}
