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

/// Returns curl's options for a client certificate.
fn identity(files: &CertificateFolder, name: &str) -> [String; 4] {
    let path = |name: String| files.path(&name).display().to_string();
    [
        "--cert".to_owned(),
        path(format!("{name}.pem")),
        "--key".to_owned(),
        path(format!("{name}.key")),
    ]
}

#[tokio::test]
async fn host_with_other_client_auth_is_misdirected() {
    let (files, tls) = open_and_closed();
    let gateway = files.gateway(&tls).await;
    let port = gateway.address.port();
    let certificate = identity(&files, "client");
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for (server_name, host, with_certificate, status) in [
            ("open.test", "open.test", false, "200"),
            ("open.test", "closed.test", false, "421"),
            ("open.test", "Closed.TEST", false, "421"),
            ("open.test", "closed.test.", false, "421"),
            ("open.test", "closed.test:8443", false, "421"),
            ("open.test", "sub.closed.test", false, "421"),
            ("open.test", "a.b.closed.test", false, "421"),
            ("open.test", ".closed.test", false, "400"),
            ("open.test", "..closed.test", false, "400"),
            ("open.test", "closed.test..", false, "400"),
            ("open.test", "sub..closed.test", false, "400"),
            ("open.test", "elsewhere.test", false, "200"),
            // A client certificate that was not asked for proves nothing.
            ("open.test", "closed.test", true, "421"),
            ("closed.test", "closed.test", true, "200"),
            ("closed.test", "sub.closed.test", true, "200"),
            ("closed.test", "open.test", true, "200"),
            ("closed.test", "closed.test", false, "000"),
        ] {
            let host_field = format!("Host: {host}");
            let mut options = vec![protocol, "-H", &host_field];
            if with_certificate {
                options.extend(&certificate);
            }
            let found = files.curl(port, server_name, "/open", &options).await;
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
    let request = "GET /open HTTP/1.1\r\nHost: closed.test\r\nConnection: close\r\n\r\n";
    for version in ["-tls1_2", "-tls1_3"] {
        let save = [
            "-ign_eof",
            version,
            "-servername",
            "open.test",
            "-sess_out",
            &session,
        ];
        let first = s_client(port, &save, &request.replace("closed", "open")).await;
        assert!(first.contains("HTTP/1.1 200"), "{first}");
        let reuse = |name| {
            [
                "-ign_eof",
                version,
                "-servername",
                name,
                "-sess_in",
                &session,
            ]
        };
        let again = s_client(
            port,
            &reuse("open.test"),
            &request.replace("closed", "open"),
        )
        .await;
        assert!(again.contains("Reused, TLSv1."), "{version}: {again}");
        let other = s_client(port, &reuse("closed.test"), request).await;
        assert!(
            !other.contains("HTTP/1.1") && !other.contains("Reused, TLSv1."),
            "{version}: {other}"
        );
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
    files.issue_with(
        "stranger",
        &["other.test"],
        with_uri("spiffe://example.test/author"),
    );
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
    let (files, gateway) = services().await;
    let port = gateway.address.port();
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for (name, path, status) in [
            (Some("member"), "/auth-only", 200),
            (Some("stranger"), "/auth-only", 401),
            (None, "/auth-only", 401),
            (None, "/open", 200),
        ] {
            let certificate = name.map(|name| identity(&files, name));
            let mut options = vec![protocol];
            options.extend(certificate.iter().flatten().map(String::as_str));
            let found = files.curl(port, "open.test", path, &options).await;
            assert_eq!(found, format!("{status} {version}"), "{name:?} {path}");
        }
    }
    let seen = gateway.origin.seen();
    for line in [
        "x-postern-kind: service",
        "x-postern-service: auth",
        "x-postern-scopes: read",
        &format!("x-postern-subject: {URI}"),
        "x-postern-issuer: urn:postern:client-certificate",
    ] {
        assert!(has_field(&seen[0], line), "{line}: {}", seen[0]);
    }
    let events = gateway.finish().await;
    let logged = &events[0];
    assert_members(
        logged,
        &json!({ "caller_service": "auth", "subject": URI, "issuer": "urn:postern:client-certificate" }),
    );
}

#[tokio::test]
async fn token_decides_before_the_client_certificate() {
    let (files, gateway) = services().await;
    let port = gateway.address.port();
    let certificate = identity(&files, "member");
    let (user, service) = (gateway.user(), gateway.service("auth"));
    for (authorization, path, status) in [
        (
            "Authorization: Bearer nonsense".to_owned(),
            "/auth-only",
            401,
        ),
        ("Authorization: Basic YTpi".to_owned(), "/auth-only", 401),
        (format!("Authorization: Bearer {user}"), "/auth-only", 401),
        (format!("Authorization: Bearer {user}"), "/any/1", 200),
        (
            format!("Authorization: Bearer {service}"),
            "/auth-only",
            200,
        ),
    ] {
        let mut options = vec!["--http1.1", "-H", &authorization];
        options.extend(certificate.iter().map(String::as_str));
        let found = files.curl(port, "open.test", path, &options).await;
        assert_eq!(found, format!("{status} 1.1"), "{authorization}");
    }
    let seen = gateway.origin.seen();
    assert!(has_field(&seen[0], "x-postern-subject: ada"), "{}", seen[0]);
    assert!(has_field(&seen[1], "x-postern-subject: s-1"), "{}", seen[1]);
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

/// Sends a request and returns its response.
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
    let tls = format!(
        "{}client_ca = \"$/ca.pem\"\nclient_crl = \"$/revoked.crl\"\n",
        files.keys("server")
    );
    let gateway = files.gateway(&tls).await;
    let port = gateway.address.port();
    let get = async |name: &str| {
        let certificate = identity(&files, name);
        let options: Vec<&str> = certificate.iter().map(String::as_str).collect();
        files.curl(port, "open.test", "/open", &options).await
    };
    assert_eq!(get("good").await, "200 2");
    assert!(get("bad").await.starts_with("000"));
    let mut open = Vec::new();
    for protocol in ["http/1.1", "h2"] {
        let stream = TcpStream::connect(gateway.address).await.expect("connects");
        let stream = files.handshake(stream, "open.test", protocol, Some("good"));
        open.push(stream.await);
    }
    let mut http1 = open.remove(0);
    let (http2, connection) = h2::client::handshake(open.remove(0))
        .await
        .expect("a handshake");
    let http2_ended = tokio::spawn(connection);
    let mut http2 = http2.ready().await.expect("ready");
    let request = "GET /open HTTP/1.1\r\nHost: open.test\r\n\r\n";
    let first = exchange(&mut http1, request).await;
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    let on_http2 = || http::Request::get("https://open.test/open").body(());
    let (answer, _) = send(&mut http2, on_http2().expect("a request"), true);
    assert_eq!(reply(answer).await.expect("an answer").status, 200);
    // The list is reloaded, and neither a session nor a connection from before outlives it.
    write_crl(&files, &[17, 18], 1);
    wait_until(async || get("good").await.starts_with("000")).await;
    let refused = exchange(&mut http1, request).await;
    assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
    assert!(refused.contains("connection: close"), "{refused}");
    let (answer, _) = send(&mut http2, on_http2().expect("a request"), true);
    assert_eq!(reply(answer).await.expect("an answer").status, 421);
    in_time(http2_ended)
        .await
        .expect("no panic")
        .expect("a clean end");
    // An expired list reveals nothing: all certificates are refused.
    write_crl(&files, &[18], 1);
    wait_until(async || get("good").await == "200 2").await;
    write_crl(&files, &[18], 0);
    wait_until(async || get("good").await.starts_with("000")).await;
}
