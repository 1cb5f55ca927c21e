//! The start of the real program on a system without CA certificates.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs the program where no CA certificates are found, and waits for its end.
fn run_without_certificates(arguments: &[&str]) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let config = folder.join(format!(
        "auth-{}-{}.toml",
        std::process::id(),
        arguments.len()
    ));
    let text = "listen = [{ address = '127.0.0.1:0' }]\nadmin = { address = '127.0.0.1:0' }\ndatabase = 'sqlite://start.db'\n\
                cache = 'memory:'\nactor_service = 'http://127.0.0.1:1'\n";
    std::fs::write(&config, text).expect("the folder can be written");
    let ended = Command::new(env!("CARGO_BIN_EXE_postern-auth"))
        .env_clear()
        .envs([
            ("IDP_ACTOR_POOL_ID", "us-west-2_actor"),
            ("IDP_ACTOR_CLIENT_ID", "a"),
            ("IDP_ACTOR_CLIENT_SECRET", "actor-secret"),
            ("IDP_SERVICE_POOL_ID", "us-west-2_service"),
            ("IDP_SERVICE_CLIENT_ID", "s"),
            ("IDP_SERVICE_ACCOUNT_USERNAME", "auth"),
            ("IDP_SERVICE_ACCOUNT_PASSWORD", "service-password"),
            ("SSL_CERT_FILE", "/dev/null"),
            ("SSL_CERT_DIR", "/dev/null"),
        ])
        .arg("--config")
        .arg(&config)
        .args(arguments)
        .current_dir(&folder)
        .output()
        .expect("it starts");
    std::fs::remove_file(&config).expect("written before");
    ended
}

#[test]
fn start_without_ca_certificates_is_refused_with_a_reason() {
    for arguments in [&[][..], &["check"]] {
        let ended = run_without_certificates(arguments);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(69), "{said}");
        assert!(
            said.contains("No CA certificates") && said.contains("SSL_CERT_FILE"),
            "{said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}
