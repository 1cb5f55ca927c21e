//! The selection of certificates by server name, and protocol versions, against `openssl s_client`.

use super::*;

const CERTIFICATES: [&str; 4] = ["default", "exact", "wild", "inner"];

/// Issues one certificate for each of [`CERTIFICATES`].
fn certificates() -> CertificateFolder {
    let files = CertificateFolder::new();
    files.issue("default", &["default.test"]);
    files.issue("exact", &["a.example.test"]);
    files.issue("wild", &["*.example.test"]);
    files.issue("inner", &["deep.a.example.test"]);
    files
}

fn further(files: &CertificateFolder) -> String {
    let entry = |name: &&str| format!("[[listen.tls.certificates]]\n{}", files.keys(name));
    CERTIFICATES[1..].iter().map(entry).collect()
}

#[tokio::test]
async fn certificate_is_selected_by_server_name() {
    let files = certificates();
    let gateway = files
        .gateway(&(files.keys("default") + &further(&files)))
        .await;
    // A wildcard matches one label, as clients accept it (RFC 9525 section 6.3). A trailing dot is
    // ignored.
    for (server_name, expected) in [
        (Some("default.test"), "default"),
        (Some("a.example.test"), "exact"),
        (Some("A.Example.TEST"), "exact"),
        (Some("a.example.test."), "exact"),
        (Some("b.example.test"), "wild"),
        (Some("B.EXAMPLE.test"), "wild"),
        (Some("deep.a.example.test"), "inner"),
        (Some("deep.b.example.test"), "default"),
        (Some("example.test"), "default"),
        (Some("elsewhere.test"), "default"),
        (None, "default"),
    ] {
        let port = gateway.address.port();
        let found = files.presented(port, server_name, &CERTIFICATES).await;
        assert_eq!(found, Some(expected), "{server_name:?}");
    }
}

#[tokio::test]
async fn only_suites_of_the_policy_are_negotiated() {
    let files = certificates();
    let connects = async |tls: &str, arguments: &[&str]| {
        let gateway = files
            .gateway(&format!("{tls}{}", files.keys("default")))
            .await;
        let output = s_client(gateway.address.port(), arguments, "").await;
        output.contains("-----BEGIN CERTIFICATE-----")
    };
    let tls12 = |cipher| ["-tls1_2", "-cipher", cipher];
    let gcm = tls12("ECDHE-ECDSA-AES128-GCM-SHA256");
    for (tls, arguments, expected) in [
        ("", gcm.as_slice(), true),
        ("", &tls12("ECDHE-ECDSA-CHACHA20-POLY1305"), true),
        ("", &tls12("ECDHE-ECDSA-AES128-SHA256"), false),
        ("", &tls12("ECDHE-ECDSA-AES256-SHA"), false),
        ("", &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], false),
        ("", &["-tls1_3"], true),
        ("min_version = \"1.3\"\n", &gcm, false),
        ("min_version = \"1.3\"\n", &["-tls1_3"], true),
    ] {
        assert_eq!(
            connects(tls, arguments).await,
            expected,
            "{tls} {arguments:?}"
        );
    }
}
