//! The selection of certificates by server name, and protocol versions, against `openssl s_client`,
//! curl, nginx and HAProxy.

use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::certificate_folder::{CertificateFolder, free_port, s_client};
use super::harness::STEP_TIMEOUT;
use super::load_balancers::Program;

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

/// Starts nginx with a server for each certificate. Returns its port.
async fn nginx(files: &CertificateFolder) -> (Child, u16) {
    let port = free_port().await;
    let folder = files.folder().display();
    let server = |(name, server_name): (&str, &str)| {
        let default = if name == "default" {
            "default_server"
        } else {
            ""
        };
        format!(
            "server {{ listen 127.0.0.1:{port} ssl {default}; server_name {server_name};\n\
             ssl_certificate {folder}/{name}.pem; ssl_certificate_key {folder}/{name}.key; return 204; }}\n"
        )
    };
    let servers: String = [
        ("default", "default.test"),
        ("exact", "a.example.test"),
        ("wild", "*.example.test"),
        ("inner", "deep.a.example.test"),
    ]
    .into_iter()
    .map(server)
    .collect();
    let text = format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n\
         events {{}}\nhttp {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n\
         fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n{servers}}}\n"
    );
    files.write("nginx.conf", text);
    let child = Command::new("/usr/sbin/nginx")
        .arg("-c")
        .arg(files.path("nginx.conf"))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("nginx, which tests/run installs");
    let starting = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, starting)
        .await
        .expect("nginx in time");
    (child, port)
}

/// Starts HAProxy with all certificates, the first of which is the default.
async fn haproxy(files: &CertificateFolder) -> Program {
    let bundles = CERTIFICATES.map(|name| {
        let read = |suffix: &str| {
            let path = files.path(&format!("{name}.{suffix}"));
            std::fs::read_to_string(path).expect("reads")
        };
        let bundle = format!("{name}.bundle");
        files.write(&bundle, read("pem") + &read("key"));
        format!("crt {}", files.path(&bundle).display())
    });
    let lines = format!(
        "frontend front\nbind 127.0.0.1:{{port}} ssl {}\nhttp-request return status 204\n",
        bundles.join(" ")
    );
    Program::haproxy(&lines).await
}

#[tokio::test]
async fn certificate_is_selected_as_by_nginx_and_haproxy() {
    let files = certificates();
    let gateway = files
        .gateway(&(files.keys("default") + &further(&files)))
        .await;
    let (_nginx, nginx_port) = nginx(&files).await;
    let haproxy = haproxy(&files).await;
    // Unlike nginx, a wildcard matches one label, as clients accept it (RFC 9525 section 6.3) and
    // HAProxy does. Unlike HAProxy, a trailing dot is ignored, as nginx does.
    for (server_name, expected, of_nginx) in [
        (Some("default.test"), "default", "default"),
        (Some("a.example.test"), "exact", "exact"),
        (Some("A.Example.TEST"), "exact", "exact"),
        (Some("a.example.test."), "exact", "exact"),
        (Some("b.example.test"), "wild", "wild"),
        (Some("B.EXAMPLE.test"), "wild", "wild"),
        (Some("deep.a.example.test"), "inner", "inner"),
        (Some("deep.b.example.test"), "default", "wild"),
        (Some("example.test"), "default", "default"),
        (Some("elsewhere.test"), "default", "default"),
        (None, "default", "default"),
    ] {
        let presented = async |port| files.presented(port, server_name, &CERTIFICATES).await;
        let found = (
            presented(gateway.address.port()).await,
            presented(nginx_port).await,
        );
        assert_eq!(found, (Some(expected), Some(of_nginx)), "{server_name:?}");
        let of_haproxy = match server_name.is_some_and(|name| name.ends_with('.')) {
            true => "default",
            false => expected,
        };
        let found = presented(haproxy.address.port()).await;
        assert_eq!(found, Some(of_haproxy), "HAProxy: {server_name:?}");
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
        ("ciphers = \"intermediate\"\n", &gcm, true),
        ("ciphers = \"modern\"\n", &gcm, false),
        ("ciphers = \"modern\"\n", &["-tls1_3"], true),
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
        let read = tokio::time::timeout(STEP_TIMEOUT, stream.read_exact(&mut first)).await;
        read.expect("a response in time").expect("a record");
        // A handshake message, or an alert (RFC 8446 section 5.1).
        assert_eq!(first[0], kind, "{}", name.escape_ascii());
    }
}
