//! Client certificates: misdirected requests, services, and revocation.

use std::time::UNIX_EPOCH;

use rcgen::{
    CertificateParams, CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SanType,
    SerialNumber, date_time_ymd,
};
use tokio_rustls::client::TlsStream;

use super::*;

/// A certificate for `open.test`, and one for `closed.test` and `*.closed.test` whose clients need
/// a certificate of the authority, such as `client`.
fn open_and_closed() -> (CertificateFolder, String) {
    let files = CertificateFolder::new();
    files.issue("open", &["open.test"]);
    files.issue("closed", &["closed.test", "*.closed.test"]);
    files.issue("client", &["client.test"]);
    let tls = format!(
        "{}[[listen.tls.certificates]]\n{}client_ca = \"$/ca.pem\"\n",
        files.keys("open"),
        files.keys("closed")
    );
    (files, tls)
}

/// Requests a URL by curl, with a client certificate unless its name is empty.
async fn curl(
    files: &CertificateFolder,
    gateway: &TestGateway,
    (client, host, path): (&str, &str, &str),
    options: &[&str],
) -> String {
    let folder = files.folder().display();
    let [certificate, key] = ["pem", "key"].map(|kind| format!("{folder}/{client}.{kind}"));
    let mut options = options.to_vec();
    if !client.is_empty() {
        options.extend(["--cert", &certificate, "--key", &key]);
    }
    let port = gateway.address.port();
    files.curl(port, host, path, &options).await
}

#[tokio::test]
async fn host_with_other_client_auth_is_misdirected() {
    let (files, tls) = open_and_closed();
    let gateway = files.gateway(&tls).await;
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let misdirected =
            "closed.test Closed.TEST closed.test. closed.test:8443 sub.closed.test a.b.closed.test";
        let malformed = ".closed.test ..closed.test closed.test.. sub..closed.test";
        let open = |status| move |host| ("open.test", host, "", status);
        let misdirected = misdirected.split(' ').map(open("421"));
        let malformed = malformed.split(' ').map(open("400"));
        let others = [
            ("open.test", "open.test", "", "200"),
            ("open.test", "elsewhere.test", "", "200"),
            // A client certificate that was not asked for proves nothing.
            ("open.test", "closed.test", "client", "421"),
            ("closed.test", "closed.test", "client", "200"),
            ("closed.test", "sub.closed.test", "client", "200"),
            ("closed.test", "open.test", "client", "200"),
            ("closed.test", "closed.test", "", "000"),
        ];
        for (server_name, host, client, status) in misdirected.chain(malformed).chain(others) {
            let host_field = format!("Host: {host}");
            let options = [protocol, "-H", &host_field];
            let found = curl(&files, &gateway, (client, server_name, "/open"), &options).await;
            let expected = match status {
                "000" => found.starts_with("000"),
                status => found == format!("{status} {version}"),
            };
            assert!(expected, "{protocol} {server_name} {host}: {found}");
        }
    }
}

#[tokio::test]
async fn listener_without_tls_does_not_serve_a_protected_host() {
    let (files, tls) = open_and_closed();
    let listen = format!(
        "[[listen]]\naddress = \"127.0.0.1:2\"\n[listen.tls]\n{}",
        tls.replace('$', &files.folder().display().to_string())
    );
    let gateway = TestGateway::behind_tls(OriginBehavior::Answer, "", "", &listen).await;
    let get = async |host: &str| {
        let request = format!("GET /open HTTP/1.1\r\nHost: {host}\r\n\r\n");
        gateway.send(&request).await
    };
    let response = get("closed.test").await;
    assert_eq!(response.problem(), "421 misdirected_request");
    assert_eq!(get("a.b.closed.test").await.status, 421);
    assert_eq!(get(".closed.test").await.status, 400);
    assert_eq!(get("open.test").await.status, 200);
    assert_eq!(gateway.origin.seen().len(), 1);
}

#[tokio::test]
async fn session_of_an_open_name_is_none_of_a_protected_one() {
    let (files, tls) = open_and_closed();
    let gateway = files.gateway(&tls).await;
    let port = gateway.address.port();
    let session = files.path("session").display().to_string();
    let request = "GET /open HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n";
    for version in ["-tls1_2", "-tls1_3"] {
        let ask = async |name: &str, option: &str| {
            let server = ["-ign_eof", version, "-servername", name];
            let arguments = [&server[..], &[option, &session]].concat();
            s_client(port, &arguments, &request.replace("HOST", name)).await
        };
        let first = ask("open.test", "-sess_out").await;
        assert!(first.contains("HTTP/1.1 200"), "{first}");
        let again = ask("open.test", "-sess_in").await;
        assert!(again.contains("Reused, TLSv1."), "{version}: {again}");
        let other = ask("closed.test", "-sess_in").await;
        for text in ["HTTP/1.1", "Reused, TLSv1."] {
            assert!(!other.contains(text), "{version}: {other}");
        }
    }
}

/// The service of a certificate with this URI may use `/auth-only`.
const URI: &str = "spiffe://example.test/auth";

/// A gateway whose clients may have a certificate. `member` is that of a service, `stranger` that
/// of none.
async fn services() -> (CertificateFolder, TestGateway) {
    let files = CertificateFolder::new();
    files.issue("server", &["open.test"]);
    let with_uri = |uri: &'static str| {
        move |params: &mut CertificateParams| {
            let uri = uri.try_into().expect("a URI");
            params.subject_alt_names.push(SanType::URI(uri));
        }
    };
    files.issue_with("member", &["member.test"], with_uri(URI));
    let other = with_uri("spiffe://example.test/author");
    files.issue_with("stranger", &["other.test"], other);
    let tls = format!(
        "{}client_ca = \"$/ca.pem\"\nclient_auth = \"optional\"\n\
         client_certificates = [{{ uri = \"{URI}\", service = \"auth\", scopes = [\"read\"] }}]\n",
        files.keys("server")
    );
    let gateway = files.gateway(&tls).await;
    (files, gateway)
}

#[tokio::test]
async fn client_certificate_identifies_a_service() {
    const ISSUER: &str = "urn:postern:client-certificate";
    let (files, gateway) = services().await;
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for (name, path, status) in [
            ("member", "/auth-only", 200),
            ("stranger", "/auth-only", 401),
            ("", "/auth-only", 401),
            ("", "/open", 200),
        ] {
            let found = curl(&files, &gateway, (name, "open.test", path), &[protocol]).await;
            assert_eq!(found, format!("{status} {version}"), "{name} {path}");
        }
    }
    let identity = [
        "x-postern-kind: service",
        "x-postern-service: auth",
        "x-postern-scopes: read",
        &format!("x-postern-subject: {URI}"),
        &format!("x-postern-issuer: {ISSUER}"),
    ];
    assert_fields(&gateway.origin.seen()[0], &identity);
    let expected = json!({ "caller_service": "auth", "subject": URI, "issuer": ISSUER });
    gateway.assert_event(&expected).await;
}

#[tokio::test]
async fn token_decides_before_the_client_certificate() {
    let (files, gateway) = services().await;
    let (user, service) = (gateway.user(), gateway.service("auth"));
    for (authorization, path, status) in [
        ("Bearer nonsense", "/auth-only", 401),
        ("Basic YTpi", "/auth-only", 401),
        (&format!("Bearer {user}"), "/auth-only", 401),
        (&format!("Bearer {user}"), "/any/1", 200),
        (&format!("Bearer {service}"), "/auth-only", 200),
    ] {
        let field = format!("Authorization: {authorization}");
        let options = ["--http1.1", "-H", &field];
        let found = curl(&files, &gateway, ("member", "open.test", path), &options).await;
        assert_eq!(found, format!("{status} 1.1"), "{authorization}");
    }
    let seen = gateway.origin.seen();
    assert_fields(&seen[0], &["x-postern-subject: ada"]);
    assert_fields(&seen[1], &["x-postern-subject: s-1"]);
}

/// Writes `revoked.crl`, which revokes the serial numbers and expires `days` from now.
pub(super) fn write_crl(files: &CertificateFolder, serials: &[u64], days: u64) {
    let now = date_time_ymd(1970, 1, 1) + UNIX_EPOCH.elapsed().expect("a time");
    let since = date_time_ymd(2025, 1, 1);
    let revoked = serials.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: since,
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: since,
        next_update: now + Duration::from_secs(days * 86_400),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    files.write("revoked.crl", files.authority.crl(&list));
}

async fn exchange(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut received = Vec::new();
    let reading = async {
        loop {
            let text = String::from_utf8_lossy(&received).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && body.len() >= content_length(head)
            {
                return text;
            }
            assert_ne!(stream.read_buf(&mut received).await.expect("reads"), 0);
        }
    };
    in_time(reading).await
}

#[tokio::test]
async fn revoked_client_certificate_is_refused() {
    let files = CertificateFolder::new();
    files.issue("server", &["open.test"]);
    for (name, serial) in [("good", 17_u64), ("bad", 18)] {
        files.issue_with(name, &["client.test"], |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        });
    }
    write_crl(&files, &[18], 1);
    let tls = files.keys("server") + "client_ca = \"$/ca.pem\"\nclient_crl = \"$/revoked.crl\"\n";
    let gateway = files.gateway(&tls).await;
    let get = async |name| curl(&files, &gateway, (name, "open.test", "/open"), &[]).await;
    assert_eq!(get("good").await, "200 2");
    assert!(get("bad").await.starts_with("000"));
    let open = async |protocol| {
        let stream = gateway.connect().await.stream;
        let shaking = files.handshake(stream, "open.test", protocol, Some("good"));
        shaking.await
    };
    let mut http1 = open("http/1.1").await;
    let shaking = h2::client::handshake(open("h2").await);
    let (http2, connection) = shaking.await.expect("a handshake");
    let http2_ended = tokio::spawn(connection);
    let mut http2 = http2.ready().await.expect("ready");
    let request = "GET /open HTTP/1.1\r\nHost: open.test\r\n\r\n";
    let first = exchange(&mut http1, request).await;
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    let mut ask_http2 = async || {
        let request = http::Request::get("https://open.test/open").body(());
        let (answer, _) = send(&mut http2, request.expect("a request"), true);
        status(answer).await
    };
    assert_eq!(ask_http2().await, 200);
    // The list is reloaded, and neither a session nor a connection from before outlives it.
    write_crl(&files, &[17, 18], 1);
    wait_until(async || get("good").await.starts_with("000")).await;
    let refused = exchange(&mut http1, request).await;
    assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
    assert!(refused.contains("connection: close"), "{refused}");
    assert_eq!(ask_http2().await, 421);
    let ended = in_time(http2_ended).await.expect("no panic");
    ended.expect("a clean end");
    // An expired list reveals nothing: all certificates are refused.
    write_crl(&files, &[18], 1);
    wait_until(async || get("good").await == "200 2").await;
    write_crl(&files, &[18], 0);
    wait_until(async || get("good").await.starts_with("000")).await;
}
