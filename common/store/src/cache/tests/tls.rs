//! Tests of TLS to Redis.

use std::path::Path;
use std::process::{Command, Stdio};

use super::super::testing::free_port;
use super::super::*;
use super::servers::{Server, works};

/// Creates a self-signed certificate for 127.0.0.1, which is its own authority.
fn certificate(folder: &Path) -> [String; 2] {
    let file = |name: &str| folder.join(name).display().to_string();
    let [settings, certificate, key] = ["req.conf", "tls.pem", "tls.key"].map(file);
    let text = "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = more\n[name]\nCN = test\n\
                [more]\nbasicConstraints = CA:FALSE\nsubjectAltName = IP:127.0.0.1\n";
    std::fs::write(&settings, text).expect("written");
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-config", &settings, "-out", &certificate, "-keyout", &key])
        .stderr(Stdio::null())
        .status()
        .expect("openssl is installed");
    assert!(made.success());
    [certificate, key]
}

#[tokio::test]
async fn tls_is_verified_against_the_configured_authority() {
    let folder =
        std::env::temp_dir().join(format!("postern-tls-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).expect("a folder");
    let [certificate, key] = certificate(&folder);
    let tls = free_port();
    let files = [
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &certificate,
    ];
    let port = tls.to_string();
    let more = ["--tls-auth-clients", "no", "--tls-port", &port];
    let _server = Server::start(&[&files[..], &more].concat()).await;
    let url = format!("rediss://127.0.0.1:{tls}");
    let untrusting = Cache::open(&url).await.expect("a URL");
    let reason = untrusting.ping().await.expect_err("no public authority");
    assert!(!reason.is_empty(), "why");
    let cache = Cache::open(&format!("{url}?deadline=5000ms&ca={certificate}"))
        .await
        .expect("a URL");
    works(&cache).await.expect("over TLS");
    std::fs::remove_dir_all(&folder).expect("removed");
}
