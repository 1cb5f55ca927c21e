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
async fn strict_sni_refuses_unknown_and_absent_names() {
    let files = certificates();
    // Without `certificate`, the first of `certificates` is the default.
    let tls = format!("strict_sni = true\n{}", further(&files));
    let gateway = files.gateway(&tls).await;
    for (server_name, expected) in [
        (Some("a.example.test"), Some("exact")),
        (Some("c.example.test"), Some("wild")),
        (Some("deep.b.example.test"), None),
        (None, None),
    ] {
        let port = gateway.address.port();
        let found = files.presented(port, server_name, &CERTIFICATES).await;
        assert_eq!(found, expected, "{server_name:?}");
    }
}

#[tokio::test]
async fn configured_names_replace_those_of_the_certificate() {
    let files = certificates();
    let tls = format!(
        "{}[[listen.tls.certificates]]\nnames = [\"Other.test\"]\n{}",
        files.keys("default"),
        files.keys("exact")
    );
    let gateway = files.gateway(&tls).await;
    for (server_name, expected) in [("other.test", "exact"), ("a.example.test", "default")] {
        let port = gateway.address.port();
        let found = files.presented(port, Some(server_name), &CERTIFICATES);
        assert_eq!(found.await, Some(expected), "{server_name}");
    }
}

#[tokio::test]
async fn certificate_of_a_fitting_key_is_selected_for_a_name() {
    let files = certificates();
    let rsa = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
        .expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a.example.test".to_owned()]).expect("a name");
    let certificate = params.signed_by(&rsa, files.authority.issuer());
    files.write("inner.pem", certificate.expect("signs").pem());
    files.write("inner.key", rsa.serialize_pem());
    let gateway = files
        .gateway(&(files.keys("default") + &further(&files)))
        .await;
    for (algorithms, signature) in [
        ("ECDSA+SHA256:RSA-PSS+SHA256", "ECDSA"),
        ("RSA-PSS+SHA256", "RSA-PSS"),
    ] {
        let arguments = ["-servername", "a.example.test", "-sigalgs", algorithms];
        let output = s_client(gateway.address.port(), &arguments, "").await;
        let line = format!("Peer signature type: {signature}");
        assert!(output.contains(&line), "{algorithms}: {output}");
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

/// Returns a ClientHello for TLS 1.2 and 1.3 with any bytes as server name.
fn client_hello(server_name: &[u8]) -> Vec<u8> {
    /// Prepends the length as a number of `WIDTH` bytes.
    fn with_length<const WIDTH: usize>(content: &[u8]) -> Vec<u8> {
        let length = content.len().to_be_bytes();
        [&length[length.len() - WIDTH..], content].concat()
    }
    let extension = |kind: u8, content: &[u8]| [&[0, kind], &*with_length::<2>(content)].concat();
    let name = with_length::<2>(&[&[0], &*with_length::<2>(server_name)].concat());
    let key = [&[0, 29], &*with_length::<2>(&[9; 32])].concat();
    let extensions = [
        extension(0, &name),
        extension(10, &[0, 2, 0, 29]),
        extension(13, &[0, 6, 4, 3, 8, 4, 8, 7]),
        extension(43, &[4, 3, 4, 3, 3]),
        extension(51, &with_length::<2>(&key)),
    ];
    let hello = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &[0, 6, 0x13, 1, 0xc0, 0x2b, 0xc0, 0x2f],
        &[1, 0],
        &with_length::<2>(&extensions.concat()),
    ];
    let handshake = [&[1], &*with_length::<3>(&hello.concat())].concat();
    [&[22, 3, 1], &*with_length::<2>(&handshake)].concat()
}

#[tokio::test]
async fn malformed_server_name_ends_the_handshake() {
    let files = certificates();
    let gateway = files
        .gateway(&(files.keys("default") + &further(&files)))
        .await;
    let long = "a".repeat(300);
    for (name, kind) in [
        (&b"a.example.test"[..], 22),
        (long.as_bytes(), 21),
        (b"a.example.test\0.evil.test", 21),
        (b"\xff\xfe", 21),
        (b"", 21),
    ] {
        let mut stream = TcpStream::connect(gateway.address).await.expect("connects");
        stream.write_all(&client_hello(name)).await.expect("sends");
        let mut first = [0];
        in_time(stream.read_exact(&mut first))
            .await
            .expect("a record");
        // A handshake message, or an alert (RFC 8446 section 5.1).
        assert_eq!(first[0], kind, "{}", name.escape_ascii());
    }
}
