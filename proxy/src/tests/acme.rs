//! Certificates of the ACME server Pebble.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::*;

const DOMAIN: &str = "a.example.test";

/// Time for an order, and for a renewal.
const ORDER_TIMEOUT: Duration = Duration::from_secs(30);

/// Pebble with a name server that gives every name the address 127.0.0.1.
struct Pebble {
    files: CertificateFolder,
    port: u16,
    management: u16,
    _processes: [Child; 2],
}

impl Pebble {
    /// Starts the server. It validates names at this port, and issues certificates that are valid
    /// for `validity_s`.
    async fn start(tls: u16, validity_s: u32) -> Self {
        let files = CertificateFolder::new();
        files.issue("pebble", &["localhost", "127.0.0.1"]);
        let (port, management) = (free_port().await, free_port().await);
        let (dns, unused) = (free_port().await, free_port().await);
        let folder = files.folder().display().to_string();
        let config = serde_json::json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": format!("{folder}/pebble.pem"),
            "privateKey": format!("{folder}/pebble.key"),
            "httpPort": 1, "tlsPort": tls, "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "certificateValidityPeriod": validity_s,
        }});
        files.write("pebble.json", config.to_string());
        let start = |program: &str, arguments: String| {
            Command::new(program)
                .args(arguments.split(' '))
                .env("PEBBLE_VA_NOSLEEP", "1")
                // Random rejections of nonces are repeated three times, and then an error of the order.
                .env("PEBBLE_WFE_NONCEREJECT", "0")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .expect("pebble, which tests/run installs")
        };
        let dns = format!("127.0.0.1:{dns}");
        let names = format!(
            "-defaultIPv4=127.0.0.1 -defaultIPv6= -dns01={dns} -http01= -https01= -tlsalpn01= \
             -management=127.0.0.1:{unused}"
        );
        let names = start("pebble-challtestsrv", names);
        let server = format!("-config={folder}/pebble.json -dnsserver={dns}");
        let server = start("pebble", server);
        for port in [port, management, unused] {
            let connect = async || TcpStream::connect(("127.0.0.1", port)).await;
            until("pebble", async || connect().await.is_ok()).await;
        }
        Self {
            files,
            port,
            management,
            _processes: [names, server],
        }
    }

    /// Writes the root certificate of the issued ones. Returns its path.
    async fn root(&self) -> String {
        let path = self.files.path("root.pem").display().to_string();
        let ca = reqwest::Certificate::from_pem(self.files.authority.pem().as_bytes());
        let client = reqwest::Client::builder().no_proxy();
        let client = client.tls_certs_only([ca.expect("a certificate")]).build();
        let url = format!("https://127.0.0.1:{}/roots/0", self.management);
        let response = client.expect("a client").get(url).send().await;
        let root = response.expect("a response").bytes().await;
        std::fs::write(&path, root.expect("a body")).expect("writes");
        path
    }
}

/// Returns the tables of a TLS listener with certificates for `domains`, and of an ACME server.
fn acme_tables(files: &CertificateFolder, port: u16, domains: &[&str]) -> String {
    let folder = files.folder().display();
    format!(
        "[listen.tls]\nacme = {domains:?}\n[acme]\ndirectory = \"https://127.0.0.1:{port}/dir\"\n\
         accept_terms = true\nstore = \"{folder}/store\"\nca = \"{folder}/ca.pem\"\n"
    )
}

/// Starts a gateway with certificates for `domains` of the ACME server at a port.
async fn start(
    listener: TcpListener,
    files: &CertificateFolder,
    port: u16,
    domains: &[&str],
) -> TestGateway {
    let tables = acme_tables(files, port, domains);
    TestGateway::on_listeners(vec![listener], &tables).await
}

/// Starts a gateway whose ACME server is not reachable.
async fn start_without_server(files: &CertificateFolder, domains: &[&str]) -> TestGateway {
    start(bind().await, files, free_port().await, domains).await
}

async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waiting = tokio::time::timeout(ORDER_TIMEOUT, waiting).await;
    waiting.unwrap_or_else(|_| panic!("{what} in time"));
}

/// Waits until the gateway presents another certificate for the name than this, and returns it.
async fn next_presented(gateway: &TestGateway, name: &str, old: Option<&str>) -> Option<String> {
    let is_new = |now: Option<String>| now.is_some() && now.as_deref() != old;
    until("a certificate", async || {
        is_new(presented(gateway, name).await)
    })
    .await;
    presented(gateway, name).await
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("bound").port()
}

/// Returns the certificate for the name, in PEM; `None` if the handshake is refused.
async fn presented(gateway: &TestGateway, name: &str) -> Option<String> {
    let arguments = ["-servername", name];
    first_certificate(&s_client(gateway.address.port(), &arguments, "").await)
}

#[tokio::test]
async fn certificate_is_obtained_by_tls_alpn_and_renewed() {
    let listener = bind().await;
    let pebble = Pebble::start(port(&listener), 9).await;
    let gateway = start(listener, &pebble.files, pebble.port, &[DOMAIN]).await;
    let first = next_presented(&gateway, DOMAIN, None).await;
    let root = pebble.root().await;
    let (tls_port, options) = (gateway.address.port(), ["--cacert", root.as_str()]);
    let found = pebble.files.curl(tls_port, DOMAIN, "/open", &options).await;
    assert_eq!(found, "200 2");
    // Other names get the default certificate; a validation without an order gets none.
    let arguments = ["-servername", DOMAIN, "-alpn", "acme-tls/1"];
    let output = s_client(tls_port, &arguments, "").await;
    assert!(output.contains("no application protocol"), "{output}");
    let expiry = "postern_tls_certificate_expiry_timestamp_seconds{certificate=\"a.example.test\"}";
    assert!(gateway.metric(expiry).await.is_some());
    // A renewal.
    next_presented(&gateway, DOMAIN, first.as_deref()).await;
    // Keys are readable by this user only, and no challenge is left.
    let store = pebble.files.path("store");
    let mode = |path: &Path| {
        let metadata = std::fs::metadata(path).expect("exists");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(&store), 0o700);
    let issued = store.join(format!("certificates/{DOMAIN}.pem"));
    assert_eq!(mode(&issued), 0o600);
    for entry in std::fs::read_dir(&store).expect("reads") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().starts_with("account-") {
            assert_eq!(mode(&entry.path()), 0o600);
        }
    }
}

#[tokio::test]
async fn replicas_share_challenges_and_certificates() {
    // Pebble validates at the second replica, whichever has ordered.
    let (first, second) = (bind().await, bind().await);
    let pebble = Pebble::start(port(&second), 3600).await;
    let first = start(first, &pebble.files, pebble.port, &[DOMAIN]).await;
    let second = start(second, &pebble.files, pebble.port, &[DOMAIN]).await;
    let found = next_presented(&first, DOMAIN, None).await;
    assert_eq!(next_presented(&second, DOMAIN, None).await, found);
    // A further replica loads the certificate, without an order.
    let third = start_without_server(&pebble.files, &[DOMAIN]).await;
    assert_eq!(presented(&third, DOMAIN).await, found);
}

#[tokio::test]
async fn tampered_store_keeps_the_certificate_in_use() {
    const DOMAINS: [&str; 2] = ["b.example.test", "c.example.test"];
    let [tampered, intact] = DOMAINS;
    let files = CertificateFolder::new();
    let store = files.path("store");
    std::fs::create_dir_all(store.join("certificates")).expect("creates");
    std::fs::set_permissions(&store, std::fs::Permissions::from_mode(0o700)).expect("a mode");
    let issue = |name: &str| files.authority.issue_with(&[name], |_| {});
    let bundle = |name: &str| {
        let (certificate, key) = issue(name);
        key + &certificate
    };
    let write = |name: &str, contents: &str| {
        std::fs::write(store.join(format!("certificates/{name}.pem")), contents).expect("writes");
    };
    let good = bundle(tampered);
    write(tampered, &good);
    write(intact, &bundle(intact));
    let gateway = start_without_server(&files, &DOMAINS).await;
    let first = presented(&gateway, tampered).await;
    assert!(first.is_some());
    let mismatched = issue(tampered).1 + &issue(tampered).0;
    for bad in [&good[..good.len() / 2], "", &mismatched, &bundle(intact)] {
        write(tampered, bad);
        // Once the other certificate was replaced twice, the store was read after the change.
        for _ in 0..2 {
            let before = presented(&gateway, intact).await;
            write(intact, &bundle(intact));
            next_presented(&gateway, intact, before.as_deref()).await;
        }
        assert_eq!(presented(&gateway, tampered).await, first, "{bad}");
    }
    // A replica that starts now refuses handshakes for this name only.
    let replica = start_without_server(&files, &DOMAINS).await;
    assert_eq!(presented(&replica, tampered).await, None);
    assert!(presented(&replica, intact).await.is_some());
}

#[tokio::test]
async fn failed_order_is_recorded_with_its_next_time() {
    let files = CertificateFolder::new();
    files.issue("server", &["127.0.0.1"]);
    // The directory is too long.
    let server = TestOrigin::with(OriginBehavior::Flood, Some(files.server("server", false))).await;
    let gateway = start(bind().await, &files, server.address.port(), &[DOMAIN]).await;
    let failures = "postern_tls_certificate_renewal_failures_total{certificate=\"a.example.test\"}";
    let is_counted = async || gateway.metric(failures).await == Some(1);
    until("a failure", is_counted).await;
    assert_eq!(presented(&gateway, DOMAIN).await, None);
    let store = files.path("store/certificates");
    assert!(!store.join(format!("{DOMAIN}.pem")).exists());
    // The next order is in the future, for all gateways.
    let record = std::fs::read(store.join(format!("{DOMAIN}.failures.json"))).expect("a record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let found = record["error"].as_str().expect("a text");
    assert!(found.contains("length limit exceeded"), "{found}");
    let delay = record["retryAt"].as_i64().expect("a time") - Clock::system().now().unix_seconds();
    assert!((40..=61).contains(&delay), "{record}");
}

#[tokio::test]
async fn handshake_is_refused_until_there_is_a_certificate() {
    let files = CertificateFolder::new();
    let gateway = start_without_server(&files, &[DOMAIN]).await;
    assert_eq!(presented(&gateway, DOMAIN).await, None);
    // Readiness does not depend on it: a load balancer would not let the validation through.
    let is_ready = async || gateway.admin_get("/readyz").await.contains("ok");
    until("ready", is_ready).await;
    in_time(gateway.finish()).await;
}
