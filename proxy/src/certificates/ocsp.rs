//! OCSP requests and the verification of responses (RFC 6960).
//!
//! A response is stapled only if it is signed by the issuer of the certificate, or by a responder
//! that the issuer has authorized, is for this certificate, says that it is good, and has not
//! expired.

use std::path::Path;

use aws_lc_rs::digest;
use der::{Decode, Encode, Header, Reader, SliceReader};
use postern_common::exit::Exit;
use postern_common::files::read_regular;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm};
use x509_ocsp::{BasicOcspResponse, CertStatus, OcspResponse, OcspResponseStatus, SingleResponse};
use x509_parser::certificate::X509Certificate;

use crate::certificates::files::unreadable;
use crate::certificates::leaf;
use crate::certificates::slot::LoadedCertificate;

/// Maximum bytes of a file with a response, which has a few KiB.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Maximum difference between the clocks of gateway and responder, in seconds.
const MAX_CLOCK_SKEW_S: i64 = 300;

/// The DER of `AlgorithmIdentifier { sha1, NULL }`. Responders are required to support SHA-1 in
/// certificate ids (RFC 6960 section 4.3); it identifies, and secures nothing.
const SHA1_ALGORITHM: [u8; 11] = [
    0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00,
];
const SHA1_OID: &str = "1.3.14.3.2.26";
const SHA256_OID: &str = "2.16.840.1.101.3.4.2.1";
/// `id-pkix-ocsp-basic`.
const BASIC_RESPONSE_OID: &str = "1.3.6.1.5.5.7.48.1.1";

/// Maximum length of a serial number in bytes (RFC 5280 section 4.1.2.2).
const MAX_SERIAL_BYTES: usize = 20;

/// A verified response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staple {
    pub(super) der: Vec<u8>,
    /// The validity period in Unix seconds.
    pub(super) this_update: i64,
    pub(super) next_update: i64,
}

/// The reason why a response is not stapled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OcspError {
    #[error("is not a well-formed OCSP response")]
    Malformed,
    #[error("the responder answered with an error status")]
    Responder,
    #[error("is for another certificate")]
    OtherCertificate,
    #[error("says that the certificate is revoked")]
    Revoked,
    #[error("says that the certificate is not known to the responder")]
    Unknown,
    #[error("has expired, is not valid yet, or has no expiry")]
    NotCurrent,
    #[error("is not signed by the issuer of the certificate or its responder")]
    Signature,
    #[error("cannot be checked: the chain does not contain the issuer of the certificate")]
    NoIssuer,
}

/// The certificate whose status is asked for, and its issuer.
pub(super) struct Subject<'a> {
    certificate: X509Certificate<'a>,
    issuer: X509Certificate<'a>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(
        certificate: &'a CertificateDer<'_>,
        issuer: Option<&'a CertificateDer<'_>>,
    ) -> Result<Self, OcspError> {
        let parse = |der| leaf::parse(der).map_err(|_| OcspError::NoIssuer);
        Ok(Self {
            certificate: parse(certificate)?,
            issuer: parse(issuer.ok_or(OcspError::NoIssuer)?)?,
        })
    }

    /// Returns the DER of a request without nonce, so that the responder may answer from a cache.
    /// All lengths fit into one byte.
    ///
    /// # Errors
    /// The serial number is longer than RFC 5280 permits.
    pub(super) fn request(&self) -> Result<Vec<u8>, OcspError> {
        let serial = self.certificate.raw_serial();
        if serial.len() > MAX_SERIAL_BYTES + 1 {
            return Err(OcspError::Malformed);
        }
        let mut request = SHA1_ALGORITHM.to_vec();
        let hash = |data| digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data);
        append(
            &mut request,
            0x04,
            hash(self.issuer.subject().as_raw()).as_ref(),
        );
        append(&mut request, 0x04, hash(self.issuer_key()).as_ref());
        append(&mut request, 0x02, serial);
        // OCSPRequest { TBSRequest { requestList { Request { CertID } } } }
        for _ in 0..5 {
            let mut outer = Vec::with_capacity(request.len() + 2);
            append(&mut outer, 0x30, &request);
            request = outer;
        }
        Ok(request)
    }

    /// Verifies a response at a time in Unix seconds.
    ///
    /// # Errors
    /// The reason why it must not be stapled.
    pub(super) fn verify(&self, der: &[u8], now: i64) -> Result<Staple, OcspError> {
        let response = OcspResponse::from_der(der).map_err(|_| OcspError::Malformed)?;
        if response.response_status != OcspResponseStatus::Successful {
            return Err(OcspError::Responder);
        }
        let bytes = response.response_bytes.ok_or(OcspError::Malformed)?;
        if bytes.response_type.to_string() != BASIC_RESPONSE_OID {
            return Err(OcspError::Malformed);
        }
        let basic = bytes.response.as_bytes();
        let signed = signed_part(basic).map_err(|_| OcspError::Malformed)?;
        let basic = BasicOcspResponse::from_der(basic).map_err(|_| OcspError::Malformed)?;
        let mut responses = basic.tbs_response_data.responses.iter();
        let status = responses
            .find(|status| self.is_for(status))
            .ok_or(OcspError::OtherCertificate)?;
        if !self.is_signed(&basic, signed, now) {
            return Err(OcspError::Signature);
        }
        match status.cert_status {
            CertStatus::Good(_) => {}
            CertStatus::Revoked(_) => return Err(OcspError::Revoked),
            CertStatus::Unknown(_) => return Err(OcspError::Unknown),
        }
        let seconds = |time: &x509_ocsp::OcspGeneralizedTime| {
            i64::try_from(time.0.to_unix_duration().as_secs()).unwrap_or(i64::MAX)
        };
        let this_update = seconds(&status.this_update);
        let next_update = status.next_update.as_ref().map(seconds);
        match next_update {
            Some(next_update) if now < next_update && this_update <= now + MAX_CLOCK_SKEW_S => {
                Ok(Staple {
                    der: der.to_vec(),
                    this_update,
                    next_update,
                })
            }
            Some(_) | None => Err(OcspError::NotCurrent),
        }
    }

    /// Returns the `subjectPublicKey` of the issuer.
    fn issuer_key(&self) -> &[u8] {
        public_key(&self.issuer)
    }

    fn is_for(&self, status: &SingleResponse) -> bool {
        let id = &status.cert_id;
        let algorithm = match id.hash_algorithm.oid.to_string().as_str() {
            SHA1_OID => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            SHA256_OID => &digest::SHA256,
            _ => return false,
        };
        let is_hash = |hash: &[u8], data| digest::digest(algorithm, data).as_ref() == hash;
        without_zeros(id.serial_number.as_bytes()) == without_zeros(self.certificate.raw_serial())
            && is_hash(
                id.issuer_name_hash.as_bytes(),
                self.issuer.subject().as_raw(),
            )
            && is_hash(id.issuer_key_hash.as_bytes(), self.issuer_key())
    }

    /// Returns whether the issuer, or a responder that it has authorized, has signed the response
    /// (RFC 6960 section 4.2.2.2).
    fn is_signed(&self, response: &BasicOcspResponse, signed: &[u8], now: i64) -> bool {
        let Ok(algorithm) = response.signature_algorithm.to_der() else {
            return false;
        };
        let signature = response.signature.raw_bytes();
        if verifies(&self.issuer, &algorithm, signed, signature) {
            return true;
        }
        response.certs.iter().flatten().any(|responder| {
            let Ok(der) = responder.to_der().map(CertificateDer::from) else {
                return false;
            };
            leaf::parse(&der).is_ok_and(|responder| {
                self.is_authorized(&responder, now)
                    && verifies(&responder, &algorithm, signed, signature)
            })
        })
    }

    /// Returns whether the issuer has issued this certificate for signing responses.
    fn is_authorized(&self, responder: &X509Certificate<'_>, now: i64) -> bool {
        let usage = responder.extended_key_usage().ok().flatten();
        let validity = responder.validity();
        let is_valid =
            (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now);
        let Ok(algorithm) = algorithm_der(responder) else {
            return false;
        };
        responder.issuer().as_raw() == self.issuer.subject().as_raw()
            && usage.is_some_and(|usage| usage.value.ocsp_signing)
            && is_valid
            && verifies(
                &self.issuer,
                &algorithm,
                responder.tbs_certificate.as_ref(),
                &responder.signature_value.data,
            )
    }
}

/// Reads and verifies the response file of a certificate at a time in Unix seconds.
///
/// # Errors
/// The reason why it must not be stapled.
pub(super) fn read_staple(
    path: &Path,
    loaded: &LoadedCertificate,
    now: i64,
) -> Result<Staple, String> {
    let der = read_regular(path, MAX_RESPONSE_BYTES)
        .map_err(|error| format!("cannot be read: {error}"))?;
    let certificate = loaded.certified.cert.first().ok_or("no certificate")?;
    let subject = Subject::new(certificate, loaded.issuer());
    subject
        .and_then(|subject| subject.verify(&der, now))
        .map_err(|error| error.to_string())
}

/// Checks that a file contains a response, whether or not it can be stapled now.
///
/// # Errors
/// Status 64 with the path.
pub(super) fn check_file(path: &Path) -> Result<(), Exit> {
    let der = read_regular(path, MAX_RESPONSE_BYTES).map_err(|error| unreadable(path, &error))?;
    match OcspResponse::from_der(&der) {
        Ok(_) => Ok(()),
        Err(_) => Err(unreadable(path, &OcspError::Malformed)),
    }
}

/// Appends a value with a length below 128.
fn append(der: &mut Vec<u8>, tag: u8, value: &[u8]) {
    let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
    der.extend_from_slice(&[tag, length]);
    der.extend_from_slice(value);
}

/// Returns the encoding of `tbsResponseData` within a `BasicOCSPResponse`.
fn signed_part(basic: &[u8]) -> der::Result<&[u8]> {
    let mut reader = SliceReader::new(basic)?;
    let _outer = Header::decode(&mut reader)?;
    reader.tlv_bytes()
}

fn without_zeros(serial: &[u8]) -> &[u8] {
    let start = serial.iter().position(|byte| *byte != 0);
    &serial[start.unwrap_or(serial.len())..]
}

fn public_key<'c>(certificate: &'c X509Certificate<'_>) -> &'c [u8] {
    &certificate.public_key().subject_public_key.data
}

/// Returns the DER of the signature algorithm of a certificate.
fn algorithm_der(certificate: &X509Certificate<'_>) -> der::Result<Vec<u8>> {
    let mut reader = SliceReader::new(certificate.tbs_certificate.as_ref())?;
    let _outer = Header::decode(&mut reader)?;
    // version [0], serialNumber, signature
    let _version = reader.tlv_bytes()?;
    let _serial = reader.tlv_bytes()?;
    Ok(reader.tlv_bytes()?.to_vec())
}

/// Returns whether the key of `signer` has signed the data. `algorithm` is the DER of the signature
/// algorithm.
fn verifies(
    signer: &X509Certificate<'_>,
    algorithm: &[u8],
    signed: &[u8],
    signature: &[u8],
) -> bool {
    let key_algorithm = &signer.public_key().raw;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let fits = |candidate: &&&dyn SignatureVerificationAlgorithm| {
        is_sequence_of(algorithm, candidate.signature_alg_id().as_ref())
            && starts_with_sequence_of(key_algorithm, candidate.public_key_alg_id().as_ref())
    };
    let algorithms = provider.signature_verification_algorithms.all.iter();
    algorithms.filter(fits).any(|candidate| {
        let verified = candidate.verify_signature(public_key(signer), signed, signature);
        verified.is_ok()
    })
}

/// Returns whether `der` is a SEQUENCE with this content, which is short.
fn is_sequence_of(der: &[u8], content: &[u8]) -> bool {
    der.strip_prefix(&[0x30])
        .and_then(|rest| rest.split_first())
        .is_some_and(|(length, rest)| usize::from(*length) == rest.len() && rest == content)
}

/// Returns whether the first value of the SEQUENCE `spki` is a SEQUENCE with this content.
fn starts_with_sequence_of(spki: &[u8], content: &[u8]) -> bool {
    let first = SliceReader::new(spki).and_then(|mut reader| {
        let _outer = Header::decode(&mut reader)?;
        reader.tlv_bytes()
    });
    first.is_ok_and(|first| is_sequence_of(first, content))
}
