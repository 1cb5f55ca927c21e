//! Tests of names, certificates and OCSP responses.

use std::path::Path;
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::leaf::Leaf;
use super::names::{NameIndex, host_name};
use super::ocsp::{OcspError, Staple, Subject};

#[test]
fn wildcard_matches_one_label() {
    let mut index = NameIndex::<u8>::default();
    for (name, value) in [
        ("*.example.com", 1),
        ("a.example.com", 2),
        ("example.com.", 3),
    ] {
        *index.entry(name) = value;
    }
    for (host, expected) in [
        ("b.example.com", Some(1)),
        ("a.example.com", Some(2)),
        ("example.com", Some(3)),
        ("a.b.example.com", None),
        (".example.com", None),
        ("com", None),
        ("", None),
        ("*.example.com", Some(1)),
    ] {
        assert_eq!(index.get(host).copied(), expected, "{host}");
    }
}

#[test]
fn host_name_is_without_port_case_and_final_dot() {
    for (authority, expected) in [
        ("Example.COM", "example.com"),
        ("example.com:8443", "example.com"),
        ("example.com.:8443", "example.com"),
        ("[::1]:8443", "[::1]:8443"),
        ("", ""),
    ] {
        assert_eq!(host_name(authority), expected, "{authority}");
    }
}

/// An authority and its certificate `leaf.pem`, in a folder.
struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    leaf: CertificateDer<'static>,
}

const SERIAL: u64 = 0x8001;

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signs");
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: String| {
            std::fs::write(folder.path().join(name), text).expect("writes");
        };
        write("ca.pem", issuer.pem());
        write("ca.key", issuer.key().serialize_pem());
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
        params.serial_number = Some(SerialNumber::from(SERIAL));
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &issuer).expect("signs");
        write("leaf.pem", leaf.pem());
        let leaf = leaf.der().clone();
        Self {
            folder,
            issuer,
            leaf,
        }
    }

    /// Issues `signer.pem`, which may sign responses if `usage` says so.
    fn issue_signer(&self, usage: ExtendedKeyUsagePurpose) {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        let signer = params.signed_by(&key, &self.issuer).expect("signs");
        std::fs::write(self.path("signer.pem"), signer.pem()).expect("writes");
        std::fs::write(self.path("signer.key"), key.serialize_pem()).expect("writes");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Lets `openssl ocsp` answer the request of the gateway. `status` is a line of the index, and
    /// `signer` the file name of the certificate that signs.
    fn response(&self, status: &str, signer: (&Path, &str)) -> Vec<u8> {
        std::fs::write(self.path("index"), status).expect("writes");
        let subject = self.subject();
        std::fs::write(self.path("request"), subject.request().expect("short")).expect("writes");
        let (folder, signer) = signer;
        let output = Command::new("openssl")
            .args(["ocsp", "-ndays", "1", "-index"])
            .arg(self.path("index"))
            .arg("-CA")
            .arg(self.path("ca.pem"))
            .arg("-rsigner")
            .arg(folder.join(format!("{signer}.pem")))
            .arg("-rkey")
            .arg(folder.join(format!("{signer}.key")))
            .arg("-reqin")
            .arg(self.path("request"))
            .arg("-respout")
            .arg(self.path("response"))
            .output()
            .expect("openssl, which tests/run installs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        std::fs::read(self.path("response")).expect("reads")
    }

    fn subject(&self) -> Subject<'_> {
        Subject::new(&self.leaf, Some(self.issuer.der())).expect("certificates")
    }

    fn verify(&self, response: &[u8], after_s: i64) -> Result<Staple, OcspError> {
        let now = postern_common::Clock::system().now().unix_seconds();
        self.subject().verify(response, now + after_s)
    }

    fn good(&self) -> Vec<u8> {
        self.response(GOOD, (self.folder.path(), "ca"))
    }
}

const GOOD: &str = "V\t490101000000Z\t\t8001\tunknown\t/CN=x\n";
const REVOKED: &str = "R\t490101000000Z\t250101000000Z\t8001\tunknown\t/CN=x\n";
const OTHERS: &str = "V\t490101000000Z\t\t8002\tunknown\t/CN=x\n";
const DAY_S: i64 = 24 * 3600;

#[test]
fn response_is_current_until_its_next_update() {
    let authority = Authority::new();
    let response = authority.good();
    let staple = authority.verify(&response, 0).expect("good");
    assert_eq!(staple.next_update - staple.this_update, DAY_S);
    for after_s in [-200, 60, DAY_S - 60] {
        assert!(authority.verify(&response, after_s).is_ok(), "{after_s}");
    }
    for after_s in [-400, DAY_S + 60] {
        let verdict = authority.verify(&response, after_s);
        assert_eq!(verdict, Err(OcspError::NotCurrent), "{after_s}");
    }
}

#[test]
fn revoked_or_unknown_certificate_is_refused() {
    let authority = Authority::new();
    for (status, expected) in [(REVOKED, OcspError::Revoked), (OTHERS, OcspError::Unknown)] {
        let response = authority.response(status, (authority.folder.path(), "ca"));
        assert_eq!(authority.verify(&response, 0), Err(expected), "{status}");
    }
}

#[test]
fn response_for_another_certificate_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let verdict = authority.verify(&other.good(), 0);
    assert_eq!(verdict, Err(OcspError::OtherCertificate));
}

#[test]
fn responder_needs_the_authority_of_the_issuer() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.issue_signer(ExtendedKeyUsagePurpose::OcspSigning);
    let response = authority.response(GOOD, (authority.folder.path(), "signer"));
    assert!(authority.verify(&response, 0).is_ok());
    authority.issue_signer(ExtendedKeyUsagePurpose::ServerAuth);
    let response = authority.response(GOOD, (authority.folder.path(), "signer"));
    assert_eq!(authority.verify(&response, 0), Err(OcspError::Signature));
    other.issue_signer(ExtendedKeyUsagePurpose::OcspSigning);
    for signer in ["signer", "ca"] {
        let response = authority.response(GOOD, (other.folder.path(), signer));
        let verdict = authority.verify(&response, 0);
        assert_eq!(verdict, Err(OcspError::Signature), "{signer}");
    }
}

#[test]
fn modified_or_truncated_response_is_refused() {
    let authority = Authority::new();
    let response = authority.good();
    for at in 0..response.len() {
        let mut modified = response.clone();
        modified[at] ^= 1;
        // The certificates after the signature are not signed, and one is not needed.
        if let Ok(staple) = authority.verify(&modified, 0) {
            let signed = authority.verify(&response, 0).expect("good");
            assert_eq!(staple.next_update, signed.next_update, "byte {at}");
        }
        assert!(authority.verify(&response[..at], 0).is_err(), "{at} bytes");
    }
    for status in [1, 2, 3, 5, 6] {
        let error = [0x30, 3, 0x0a, 1, status];
        assert_eq!(authority.verify(&error, 0), Err(OcspError::Responder));
    }
}

#[test]
fn leaf_has_its_names_and_extensions() {
    let pem = include_str!("../tests/must_staple.pem");
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
    let leaf = Leaf::read(&der).expect("well-formed");
    assert_eq!(leaf.names, ["a.example.test", "*.example.test"]);
    assert_eq!(leaf.ocsp_url.as_deref(), Some("http://ocsp.example.test/"));
    assert!(leaf.must_staple);
    assert!(leaf.not_before < leaf.not_after);
}
