//! `[listen.tls]`: certificates, protocol versions and client authentication of a listener.

use std::path::PathBuf;
use std::sync::Arc;

use postern_core::decode::{Field, Object};
use serde_json::json;

use crate::config::short_texts;

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

impl ListenerTlsConfig {
    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let (client_auth, is_good) = match read_client_auth(section, None) {
            Ok(client_auth) => (client_auth, true),
            Err(Invalid) => (None, false),
        };
        let mut certificates = Vec::new();
        let is_first_given = section.has("certificate") || section.has("key");
        if is_first_given {
            let first = CertificateConfig::read(section, String::new(), client_auth.clone());
            certificates.extend(first);
        }
        let mut index = 0_usize..;
        let further = section.list("certificates", |field| {
            let key_prefix = format!(".certificates.{}", index.next().unwrap_or_default());
            field.object(|entry| {
                let client_auth = read_client_auth(entry, client_auth.as_ref()).ok()?;
                CertificateConfig::read(entry, key_prefix, client_auth)
            })
        });
        certificates.extend(further);
        let domains = section.list("acme", read_domain);
        certificates.extend(domains.into_iter().map(|domain| CertificateConfig {
            key_prefix: ".acme".to_owned(),
            source: CertificateSource::Acme(domain),
            client_auth: client_auth.clone(),
        }));
        if !(is_first_given || section.has("certificates") || section.has("acme")) {
            section.fail("missing_field", "certificate and key are required");
        }
        let requires_tls13 = section.or("min_version", false, |field| {
            field.one_of(&[("1.2", false), ("1.3", true)])
        });
        let http2 = section.or("http2", true, |field| field.boolean());
        (is_good && !certificates.is_empty()).then_some(Self {
            certificates,
            requires_tls13,
            http2,
        })
    }
}

impl ListenerTlsConfig {
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
    /// Reads the keys of one certificate.
    fn read(
        section: &Object<'_>,
        key_prefix: String,
        client_auth: Option<Arc<ClientAuthConfig>>,
    ) -> Option<Self> {
        if !(section.has("certificate") && section.has("key")) {
            section.fail("missing_field", "certificate and key are required");
        }
        let certificate = section.optional("certificate", |field| field.text(1..=4096));
        let key = section.optional("key", |field| field.text(1..=4096));
        Some(Self {
            key_prefix,
            source: CertificateSource::Files {
                certificate: certificate?.into(),
                key: key?.into(),
            },
            client_auth,
        })
    }
}

/// The client authentication of a table is invalid, which has been recorded.
struct Invalid;

/// Reads the client authentication of a table. A table without any of its keys has that of the
/// listener; `client_auth = "off"` has none.
fn read_client_auth(
    section: &Object<'_>,
    inherited: Option<&Arc<ClientAuthConfig>>,
) -> Result<Option<Arc<ClientAuthConfig>>, Invalid> {
    let modes = [
        ("required", Some(true)),
        ("optional", Some(false)),
        ("off", None),
    ];
    let is_given = section.has("client_ca");
    let ca = section.optional("client_ca", |field| field.text(1..=4096));
    let crl = section.optional("client_crl", |field| field.text(1..=4096));
    let mode = section.optional("client_auth", |field| field.one_of(&modes));
    let principals = section.list("client_certificates", read_principal);
    let has_others = section.has("client_crl") || section.has("client_certificates");
    if !is_given {
        return match mode {
            None if !has_others => Ok(inherited.cloned()),
            Some(None) if !has_others => Ok(None),
            Some(Some(_) | None) | None => {
                section.fail(
                    "missing_field",
                    "client_crl, client_auth and client_certificates require client_ca",
                );
                Err(Invalid)
            }
        };
    }
    let required = match mode.unwrap_or(Some(true)) {
        Some(required) => required,
        None => {
            section.fail("conflicting_fields", "client_auth is off, with a client_ca");
            return Err(Invalid);
        }
    };
    let mut seen = Vec::new();
    for principal in &principals {
        if seen.contains(&&principal.name) {
            let name = principal.name.as_str();
            section.fail(
                "duplicate",
                format!("client_certificates: {name} occurs twice"),
            );
        }
        seen.push(&principal.name);
    }
    Ok(Some(Arc::new(ClientAuthConfig {
        ca: ca.ok_or(Invalid)?.into(),
        crl: crl.map(PathBuf::from),
        required,
        principals,
    })))
}

/// Reads `{ uri = "spiffe://…", service = "partner", scopes = […] }`.
fn read_principal(field: Field<'_>) -> Option<CertificatePrincipal> {
    field.object(|entry| {
        let uri = entry.optional("uri", visible);
        let dns = entry.optional("dns", visible);
        let service = entry.required("service", visible);
        let scopes = entry.or("scopes", Vec::new(), short_texts);
        let name = match (uri, dns) {
            (Some(uri), None) => CertificateName::Uri(uri),
            (None, Some(dns)) => CertificateName::Dns(dns.to_ascii_lowercase()),
            (Some(_), Some(_)) | (None, None) => {
                let detail = "exactly one of uri and dns is required";
                entry.fail("conflicting_fields", detail);
                return None;
            }
        };
        Some(CertificatePrincipal {
            name,
            service: service?,
            scopes,
        })
    })
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
    let name = text.to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    match is_dns_name(&name) && name.contains('.') && !is_number {
        true => Some(name),
        false => field.fail(
            "invalid_format",
            "must be a host name such as example.com; wildcards need the challenge dns-01, which the gateway does not have",
        ),
    }
}

/// Returns whether the text is a host name (RFC 1123 section 2.1), in lower case.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}
