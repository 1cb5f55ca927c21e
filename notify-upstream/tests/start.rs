//! Startup of the program on a system without CA certificates.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program without CA certificates and with additional configuration lines until it exits.
fn start_without_certificates(folder: &Path, settings: &str) -> Output {
    let config = folder.join("notify.toml");
    let templates = concat!(env!("CARGO_MANIFEST_DIR"), "/../conf/templates");
    let text = format!(
        "listen = [{{ address = '127.0.0.1:0' }}]\nadmin = {{ address = '127.0.0.1:0' }}\ndatabase = 'sqlite://notify.db'\n\
         [templates]\nfolder = '{templates}'\n{settings}"
    );
    std::fs::write(&config, text).expect("a writable folder");
    Command::new(env!("CARGO_BIN_EXE_postern-notify"))
        .env_clear()
        .envs([
            ("IDP_ACTOR_POOL_ID", "us-west-2_actor"),
            ("IDP_ACTOR_CLIENT_ID", "a"),
            ("IDP_SERVICE_POOL_ID", "us-west-2_service"),
            ("IDP_SERVICE_CLIENT_ID", "s"),
            ("SSL_CERT_FILE", "/dev/null"),
            ("SSL_CERT_DIR", "/dev/null"),
        ])
        .arg("--config")
        .arg(&config)
        .current_dir(folder)
        .output()
        .expect("the program starts")
}

#[test]
fn missing_ca_certificates_are_reported() {
    // SNS topics need an HTTPS client for the signing certificates. It is built while the
    // configuration is read, so that its failure is a configuration error (64). Without them the
    // clients are built afterwards (69).
    let topics = "[webhooks.sns]\ntopics = ['arn:aws:sns:us-west-2:123456789012:mail-events']\n";
    for (settings, status) in [("", 69), (topics, 64)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = start_without_certificates(folder.path(), settings);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(
            stderr.contains("No CA certificates") && stderr.contains("SSL_CERT_FILE"),
            "{stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}
