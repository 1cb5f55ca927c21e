//! The selection of certificates by server name, and protocol versions, against `openssl s_client`.

use super::*;

const CERTIFICATES: [&str; 4] = ["default", "exact", "wild", "inner"];

/// Issues one certificate for each of [`CERTIFICATES`].
fn certificates() -> CertificateFolder {
    let files = CertificateFolder::new();
    files.issue("default", &["default.test"]);
    files.issue("exact", &["A.example.test"]);
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
    let tls = files.keys("default") + &further(&files);
    let gateway = files.gateway(&tls).await;
    // A wildcard matches one label, as clients accept it (RFC 9525 section 6.3). A trailing dot is
    // ignored.
    for (server_name, expected) in [
        ("default.test", "default"),
        ("a.example.test", "exact"),
        ("A.Example.TEST", "exact"),
        ("a.example.test.", "exact"),
        ("b.example.test", "wild"),
        ("B.EXAMPLE.test", "wild"),
        ("deep.a.example.test", "inner"),
        ("deep.b.example.test", "default"),
        ("example.test", "default"),
        ("elsewhere.test", "default"),
        ("", "default"),
    ] {
        let arguments = match server_name {
            "" => vec!["-noservername"],
            name => vec!["-servername", name],
        };
        let port = gateway.address.port();
        let found = files.presented(port, &arguments, &CERTIFICATES).await;
        assert_eq!(found, Some(expected), "{server_name}");
    }
}

#[tokio::test]
async fn only_suites_of_the_policy_are_negotiated() {
    let files = certificates();
    let connects = async |tls: &str, arguments: &[&str]| {
        let tls = format!("{tls}{}", files.keys("default"));
        let gateway = files.gateway(&tls).await;
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
        let is_connected = connects(tls, arguments).await;
        assert_eq!(is_connected, expected, "{tls} {arguments:?}");
    }
}
