//! The parts of an end-entity certificate that the gateway evaluates.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{AccessDescription, GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_PKIX_ACCESS_DESCRIPTOR_OCSP, Oid};
use x509_parser::prelude::FromDer;

/// The TLS feature `status_request` (RFC 7633 section 4.2.3.1): the certificate is to be used with
/// a stapled OCSP response only.
const STATUS_REQUEST_FEATURE: u8 = 5;

/// The object identifier of the TLS feature extension, 1.3.6.1.5.5.7.1.24.
const TLS_FEATURE: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 1, 24];

/// The evaluated parts of a server certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The DNS names of the subject alternative names, in lower case.
    pub(super) names: Vec<String>,
    /// The validity period in Unix seconds.
    pub(super) not_before: i64,
    pub(super) not_after: i64,
    /// Whether the certificate requires a stapled OCSP response.
    pub(super) must_staple: bool,
    /// The URL of the OCSP responder.
    pub(super) ocsp_url: Option<String>,
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
        let mut leaf = Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            ..Self::default()
        };
        let feature = Oid::from(TLS_FEATURE).ok();
        for extension in certificate.extensions() {
            if feature.as_ref() == Some(&extension.oid) {
                leaf.must_staple |= has_status_request(extension.value);
            }
            let parsed = extension.parsed_extension();
            if let ParsedExtension::SubjectAlternativeName(names) = parsed {
                leaf.names
                    .extend(names.general_names.iter().filter_map(dns_name));
            }
            if let ParsedExtension::AuthorityInfoAccess(access) = parsed {
                leaf.ocsp_url = access.accessdescs.iter().find_map(responder_url);
            }
        }
        Ok(leaf)
    }
}

fn dns_name(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(name) = name {
        Some(name.to_ascii_lowercase())
    } else {
        None
    }
}

fn responder_url(access: &AccessDescription<'_>) -> Option<String> {
    if let GeneralName::URI(url) = &access.access_location
        && access.access_method == OID_PKIX_ACCESS_DESCRIPTOR_OCSP
    {
        return Some((*url).to_owned());
    }
    None
}

/// Returns whether a TLS feature extension, a SEQUENCE OF INTEGER, contains `status_request`.
fn has_status_request(value: &[u8]) -> bool {
    let Some(mut features) = value
        .strip_prefix(&[0x30])
        .and_then(|rest| rest.split_first())
        .map(|(_, features)| features)
    else {
        return false;
    };
    while let [0x02, length, rest @ ..] = features {
        let Some((feature, rest)) = rest.split_at_checked(usize::from(*length)) else {
            return false;
        };
        if feature == [STATUS_REQUEST_FEATURE] {
            return true;
        }
        features = rest;
    }
    false
}
