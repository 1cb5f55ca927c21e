//! The parts of an end-entity certificate that the gateway evaluates.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The evaluated parts of a server certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The DNS names of the subject alternative names, in lower case.
    pub(super) names: Vec<String>,
    /// The validity period in Unix seconds.
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

/// Parses a certificate.
///
/// # Errors
/// The certificate is malformed, or followed by other data.
pub(super) fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, &'static str> {
    match X509Certificate::from_der(der.as_ref()) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err("is not a well-formed X.509 certificate"),
    }
}

impl Leaf {
    /// Reads a certificate.
    ///
    /// # Errors
    /// As [`parse`].
    pub(super) fn read(der: &CertificateDer<'_>) -> Result<Self, &'static str> {
        let certificate = parse(der)?;
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.map(|it| it.value.general_names.iter().filter_map(dns_name).collect());
        Ok(Self {
            names: names.unwrap_or_default(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// Returns the time before the expiry at which a certificate should be replaced, in seconds: 30
    /// days, or a third of the lifetime if that is shorter.
    pub(super) fn renewal_window(&self) -> i64 {
        let lifetime = self.not_after.saturating_sub(self.not_before).max(0);
        (lifetime / 3).min(30 * 24 * 3600)
    }

    /// Returns whether the certificate is for a name, or for the wildcard above it (RFC 6125 section
    /// 6.4.3).
    pub(super) fn covers(&self, name: &str) -> bool {
        let parent = name.split_once('.').map(|(_, parent)| parent);
        self.names.iter().any(|own| {
            own == name || (own.strip_prefix("*.").is_some() && own.strip_prefix("*.") == parent)
        })
    }
}

fn dns_name(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(name) = name {
        Some(name.to_ascii_lowercase())
    } else {
        None
    }
}
