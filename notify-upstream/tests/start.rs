//! The start of the real program on a system without CA certificates.

use std::path::Path;
use std::process::{Command, Output};

/// Starts the program where no CA certificates are found, with these lines in its configuration,
/// and waits for its end.
fn start_without_certificates(folder: &Path, settings: &str) -> Output {
    let config = folder.join("notify.toml");
    let templates = concat!(env!("CARGO_MANIFEST_DIR"), "/../conf/templates");
    let text = format!(
        "listen = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\ndatabase = 'sqlite://notify.db'\n\
         [templates]\nfolder = '{templates}'\n{settings}"
    );
    std::fs::write(&config, text).expect("the folder can be written");
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
        .expect("it starts")
}

#[test]
fn start_without_ca_certificates_is_refused_with_a_reason() {
    let topics = "[webhooks.sns]\ntopics = ['arn:aws:sns:us-west-2:123456789012:mail-events']\n";
    for (settings, status) in [("", 69), (topics, 64)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ended = start_without_certificates(folder.path(), settings);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{said}");
        assert!(
            said.contains("No CA certificates") && said.contains("SSL_CERT_FILE"),
            "{said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}
