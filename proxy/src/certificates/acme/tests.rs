//! Tests of the store, of issued certificates and of tokens.

use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::issued;
use super::store::{AcmeStore, FailureRecord, StoreFile};

fn certificate(name: &str, key: &KeyPair, years: (i32, i32)) -> String {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.not_before = date_time_ymd(years.0, 1, 1);
    params.not_after = date_time_ymd(years.1, 1, 1);
    params.self_signed(key).expect("signs").pem()
}

#[test]
fn certificate_must_have_the_name_and_the_key() {
    let [key, other] = [(); 2].map(|()| KeyPair::generate().expect("a key"));
    let pem = |name: &str, key: &KeyPair| certificate(name, key, (2020, 2040));
    let error = |pem: String| {
        let parsed = issued::parse("a.test", pem.as_bytes());
        parsed.map(drop).expect_err("refused")
    };
    let own = key.serialize_pem();
    assert!(issued::parse("a.test", (own.clone() + &pem("a.test", &key)).as_bytes()).is_ok());
    assert!(issued::parse("a.test", (own.clone() + &pem("*.test", &key)).as_bytes()).is_ok());
    assert!(error(own.clone() + &pem("a.test", &other)).starts_with("certificate and key"));
    let wrong = error(own.clone() + &pem("b.test", &key));
    assert_eq!(wrong, "the certificate is not for a.test");
    assert_eq!(error(own.clone()), "no certificate");
    assert_eq!(error(pem("a.test", &key)), "no private key");
}

#[test]
fn certificate_must_be_valid_and_is_renewed_in_time() {
    let key = KeyPair::generate().expect("a key");
    let leaf = |years| {
        let pem = key.serialize_pem() + &certificate("a.test", &key, years);
        issued::parse("a.test", pem.as_bytes())
            .expect("parses")
            .leaf
    };
    let now = leaf((2030, 2031)).not_before;
    assert!(issued::check_validity(&leaf((2030, 2031)), now).is_ok());
    assert!(issued::check_validity(&leaf((2030, 2031)), now - 600).is_err());
    assert!(issued::check_validity(&leaf((2029, 2030)), now).is_err());
    let day = 24 * 3600;
    assert_eq!(leaf((2030, 2031)).renewal_window(), 30 * day);
    let mut short = leaf((2030, 2031));
    short.not_after = short.not_before + 6 * day;
    assert_eq!(short.renewal_window(), 2 * day);
    short.not_after = short.not_before - 1;
    assert_eq!(short.renewal_window(), 0);
}

#[test]
fn store_is_private_and_locked_by_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let [store, other] = [(); 2].map(|()| AcmeStore::open(&path).expect("opens"));
    let lock = store.try_lock().expect("a file").expect("free");
    assert!(other.try_lock().expect("a file").is_none());
    let read = || other.read(StoreFile::Challenge("a.test")).expect("reads");
    for name in ["a.test", "b.test"] {
        let challenge = StoreFile::Challenge(name);
        store.write(challenge, b"text").expect("writes");
    }
    assert_eq!(read().as_deref(), Some(&b"text"[..]));
    store.remove_challenges(&lock).expect("removes");
    assert_eq!(read(), None);
    drop(lock);
    // A process that another test starts has the lock as well, until it executes its program.
    while other.try_lock().expect("a file").is_none() {
        std::thread::yield_now();
    }
    let record = FailureRecord {
        failures: 3,
        retry_at: 9,
        error: "refused".to_owned(),
    };
    let text = serde_json::to_vec(&record).expect("JSON");
    for (text, found) in [(&text[..], record), (&b"{"[..], FailureRecord::default())] {
        let file = StoreFile::Failures("a.test");
        store.write(file, text).expect("writes");
        assert_eq!(other.failures("a.test"), found);
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let exit = AcmeStore::open(&path).expect_err("refused");
    assert!(exit.message().contains("must have at most 0770"), "{exit}");
}
