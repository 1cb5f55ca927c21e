//! Stapled OCSP responses, of the responder `openssl ocsp` and seen by `openssl s_client`.

use std::process::Stdio;
use std::time::Duration;

use rcgen::{CertificateParams, CustomExtension, SerialNumber};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::certificate_folder::{CertificateFolder, free_port, run, s_client};
use super::harness::{STEP_TIMEOUT, TestGateway};

/// Changes a certificate to name a responder on this port, and to require stapling.
fn must_staple(serial: u64, port: u16) -> impl FnOnce(&mut CertificateParams) {
    move |params| {
        params.serial_number = Some(SerialNumber::from(serial));
        let url = format!("http://127.0.0.1:{port}/");
        let length = |bytes: usize| u8::try_from(bytes).expect("short");
        let mut access = vec![0x30, length(url.len() + 14), 0x30, length(url.len() + 12)];
        access.extend([0x06, 8, 0x2b, 6, 1, 5, 5, 7, 48, 1, 0x86, length(url.len())]);
        access.extend(url.bytes());
        let extension = CustomExtension::from_oid_content;
        params.custom_extensions = vec![
            extension(&[1, 3, 6, 1, 5, 5, 7, 1, 1], access),
            extension(&[1, 3, 6, 1, 5, 5, 7, 1, 24], vec![0x30, 3, 2, 1, 5]),
        ];
    }
}

/// Writes `index`, in which the serial number is valid (`V`) or revoked (`R`).
fn write_index(files: &CertificateFolder, serial: u64, is_revoked: bool) {
    let (kind, at) = match is_revoked {
        true => ("R", "250101000000Z"),
        false => ("V", ""),
    };
    files.write(
        "index",
        format!("{kind}\t490101000000Z\t{at}\t{serial:02X}\tunknown\t/CN=x\n"),
    );
}

/// Returns `openssl ocsp` with the index and the authority of the folder.
fn responder(files: &CertificateFolder) -> Command {
    let mut command = Command::new("openssl");
    command.arg("ocsp");
    with_responder_options(command, files)
}

/// Adds the index and the authority of the folder to a command.
fn with_responder_options(mut command: Command, files: &CertificateFolder) -> Command {
    for (option, name) in [
        ("-index", "index"),
        ("-CA", "ca.pem"),
        ("-rsigner", "ca.pem"),
        ("-rkey", "ca.key"),
    ] {
        command.arg(option).arg(files.path(name));
    }
    command.args(["-ndays", "1"]);
    command
}

/// Writes the response for `server.pem` to `server.ocsp`.
async fn write_response(files: &CertificateFolder, serial: u64, is_revoked: bool) {
    write_index(files, serial, is_revoked);
    store_response(files, responder(files)).await;
}

/// Writes the response that this responder makes for `server.pem` to `server.ocsp`.
async fn store_response(files: &CertificateFolder, mut command: Command) {
    command
        .arg("-issuer")
        .arg(files.path("ca.pem"))
        .arg("-cert")
        .arg(files.path("server.pem"));
    command.arg("-respout").arg(files.path("next.ocsp"));
    let output = run(&mut command, "").await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    std::fs::rename(files.path("next.ocsp"), files.path("server.ocsp")).expect("renames");
}

async fn stapled(gateway: &TestGateway) -> bool {
    let arguments = ["-status", "-servername", "open.test"];
    let output = s_client(gateway.address.port(), &arguments, "").await;
    assert!(output.contains("-----BEGIN CERTIFICATE-----"), "{output}");
    output.contains("Cert Status: good")
}

async fn wait_for(what: &str, is: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waiting = tokio::time::timeout(STEP_TIMEOUT, waiting).await;
    waiting.unwrap_or_else(|_| panic!("{what} in time"));
}

#[tokio::test]
async fn response_file_is_stapled_and_reloaded() {
    let files = CertificateFolder::new();
    let issue = |serial| {
        files.issue_with("server", &["open.test"], |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        });
    };
    issue(33);
    write_response(&files, 33, false).await;
    let tls = format!("{}ocsp = \"$/server.ocsp\"\n", files.keys("server"));
    let gateway = files.gateway(&tls).await;
    assert!(stapled(&gateway).await);
    let metrics = gateway.admin_get("/metrics").await;
    for name in ["certificate", "ocsp_staple"] {
        let line =
            format!("postern_tls_{name}_expiry_timestamp_seconds{{certificate=\"open.test\"}} ");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    // The response is for another certificate: none is stapled until it is replaced as well.
    issue(34);
    wait_for("without a response", async || !stapled(&gateway).await).await;
    write_response(&files, 34, false).await;
    wait_for("the next response", async || stapled(&gateway).await).await;
}

#[tokio::test]
async fn revoked_response_file_is_not_stapled() {
    let files = CertificateFolder::new();
    files.issue_with("server", &["open.test"], |params| {
        params.serial_number = Some(SerialNumber::from(35_u64));
    });
    write_response(&files, 35, true).await;
    let tls = format!("{}ocsp = \"$/server.ocsp\"\n", files.keys("server"));
    let gateway = files.gateway(&tls).await;
    assert!(!stapled(&gateway).await);
}

#[tokio::test]
async fn response_outside_of_its_validity_is_not_stapled() {
    let files = CertificateFolder::new();
    files.issue_with("server", &["open.test"], |params| {
        params.serial_number = Some(SerialNumber::from(36_u64));
    });
    write_index(&files, 36, false);
    let tls = format!("{}ocsp = \"$/server.ocsp\"\n", files.keys("server"));
    // Responses are valid for a day: one has expired two days ago, one is valid in two days.
    for shift in ["-3d", "+2d"] {
        let mut command = Command::new("faketime");
        command.args(["-f", shift, "openssl", "ocsp"]);
        store_response(&files, with_responder_options(command, &files)).await;
        let gateway = files.gateway(&tls).await;
        assert!(!stapled(&gateway).await, "{shift}");
        write_response(&files, 36, false).await;
        wait_for("the current response", async || stapled(&gateway).await).await;
    }
}

/// Starts a responder on this port, which is free.
fn start_responder(files: &CertificateFolder, port: u16) -> Child {
    responder(files)
        .args(["-port", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("openssl, which tests/run installs")
}

#[tokio::test]
async fn response_is_fetched_for_a_must_staple_certificate() {
    let files = CertificateFolder::new();
    let port = free_port().await;
    files.issue_with("server", &["open.test"], must_staple(49, port));
    write_index(&files, 49, false);
    let _responder = start_responder(&files, port);
    let gateway = files.gateway(&files.keys("server")).await;
    wait_for("a response", async || stapled(&gateway).await).await;
}

#[tokio::test]
async fn response_is_not_fetched_unless_required() {
    let responder = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = responder.local_addr().expect("bound").port();
    let optional = CertificateFolder::new();
    optional.issue_with("server", &["open.test"], |params| {
        must_staple(50, port)(params);
        params.custom_extensions.truncate(1);
    });
    let _optional = optional.gateway(&optional.keys("server")).await;
    let required = CertificateFolder::new();
    required.issue_with("server", &["open.test"], must_staple(51, port));
    let tls = format!("{}ocsp = \"off\"\n", required.keys("server"));
    let _off = required.gateway(&tls).await;
    // Both gateways poll once a second.
    let accepted = tokio::time::timeout(Duration::from_millis(2500), responder.accept());
    assert!(accepted.await.is_err(), "a request was sent");
}
