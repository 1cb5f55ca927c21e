//! The PROXY protocol on connections of clients.

use super::*;

/// Starts a gateway whose listener expects headers from these networks.
async fn gateway(from: &str, listen: &str, limits: &str) -> TestGateway {
    let listen = format!("proxy_protocol = {{ from = [\"{from}\"] }}\n{listen}");
    TestGateway::behind_tls(OriginBehavior::Answer, "", limits, &listen).await
}

/// Returns a header of version 1 with this source, and the same address as destination.
fn v1(source: &str) -> Vec<u8> {
    let source: SocketAddr = source.parse().expect("an address");
    let (ip, port) = (source.ip(), source.port());
    let family = if ip.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {ip} {ip} {port} 443\r\n").into_bytes()
}

/// Returns the same in version 2, of an IPv4 address.
fn v2(source: [u8; 4]) -> Vec<u8> {
    let fixed = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    [&fixed[..], &source, &source, &[15, 160, 1, 187]].concat()
}

async fn connect_with(gateway: &TestGateway, header: &[u8]) -> RawClient {
    let mut client = gateway.connect().await;
    client.stream.write_all(header).await.expect("writes");
    client
}

async fn ask(client: &mut RawClient, headers: &str) -> u16 {
    let request = format!("GET /open HTTP/1.1\r\nHost: gate\r\n{headers}\r\n");
    client.ask(&request).await.status
}

#[tokio::test]
async fn source_of_the_header_replaces_the_peer() {
    let gateway = gateway("127.0.0.0/8", "h2c = true", "").await;
    for (header, shown) in [
        (v1("192.0.2.1:4000"), "192.0.2.1"),
        (v2([192, 0, 2, 1]), "192.0.2.1"),
        (v1("[2001:db8::1]:1"), "2001:db8::1"),
    ] {
        let expected = format!("X-Forwarded-For: {shown}");
        let mut client = connect_with(&gateway, &header).await;
        // A client that is not a trusted proxy cannot change the address.
        let forged = "X-Forwarded-For: 203.0.113.1\r\n";
        assert_eq!(ask(&mut client, forged).await, 200, "{shown}");
        assert_fields(&gateway.origin.last(), &[&expected]);
        let stream = connect_with(&gateway, &header).await.stream;
        let mut client = http2_client_on(stream, 65_535).await;
        assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
        assert_fields(&gateway.origin.last(), &[&expected]);
    }
}

#[tokio::test]
async fn tls_follows_the_header() {
    let listen = "proxy_protocol = { from = [\"127.0.0.0/8\"] }\n";
    let tls = TlsGateway::listening(OriginBehavior::Answer, listen).await;
    let stream = connect_with(&tls.gateway, &v2([192, 0, 2, 1])).await.stream;
    let mut stream = tls.encrypt(stream, "http/1.1").await;
    let request = "GET /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("reads");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let expected = ["X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https"];
    assert_fields(&tls.gateway.origin.only(), &expected);
}

#[tokio::test]
async fn header_is_required_from_its_networks_only() {
    let gateway = gateway("127.0.0.1", "", "").await;
    // From elsewhere, a header is not a request.
    for header in [v1("192.0.2.1:4000"), v2([192, 0, 2, 1])] {
        let mut client = client_from(&gateway, 2).await;
        assert_eq!(ask(&mut client, "").await, 200);
        let mut client = client_from(&gateway, 2).await;
        client.stream.write_all(&header).await.expect("writes");
        assert_eq!(client.ask(GET).await.status, 400, "{header:?}");
    }
    let seen = gateway.origin.seen();
    assert_eq!(seen.len(), 2, "{seen:?}");
    for request in seen {
        assert_fields(&request, &["X-Forwarded-For: 127.0.0.2"]);
    }
}

#[tokio::test]
async fn connection_without_a_valid_header_is_closed() {
    let gateway = gateway("127.0.0.0/8", "", "head_timeout = \"300ms\"").await;
    let v2 = v2([192, 0, 2, 1]);
    let mut short = v2.clone();
    short[15] = 11;
    for (bytes, reason) in [
        (GET.as_bytes(), "missing"),
        (b"\x16\x03\x01\x00\xf0\x01", "missing"),
        (b"PROXY TCP4 192.0.2.1\r\n", "malformed"),
        (&short, "malformed"),
        // A slow sender: nothing, and a part.
        (b"", "timeout"),
        (b"PROXY TCP4 192", "timeout"),
        (&v2[..20], "timeout"),
    ] {
        let series =
            format!("postern_proxy_connections_closed_total{{reason=\"proxy_header_{reason}\"}}");
        let count = async || gateway.metric(&series).await.unwrap_or(0);
        let before = count().await;
        let mut client = connect_with(&gateway, bytes).await;
        let mut rest = Vec::new();
        // The close is a reset if bytes are unread.
        let _end_or_reset = in_time(client.stream.read_to_end(&mut rest)).await;
        let holds = rest.is_empty();
        assert!(holds, "{reason}: {:?}", String::from_utf8_lossy(&rest));
        assert_eq!(count().await, before + 1, "{reason}: {bytes:?}");
    }
    assert!(gateway.origin.seen().is_empty());
    // A disconnect without a header is a health check over TCP.
    drop(gateway.connect().await);
    let mut client = connect_with(&gateway, &v2).await;
    assert_eq!(ask(&mut client, "").await, 200, "still serves");
}

#[tokio::test]
async fn own_connections_of_a_load_balancer_have_its_address() {
    let gateway = gateway("127.0.0.0/8", "", "").await;
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for header in [&b"PROXY UNKNOWN\r\n"[..], local] {
        let mut client = connect_with(&gateway, header).await;
        assert_eq!(ask(&mut client, "").await, 200);
        assert_fields(&gateway.origin.last(), &["X-Forwarded-For: 127.0.0.1"]);
    }
}

#[tokio::test]
async fn limits_and_lists_apply_to_the_source() {
    let listen = "access = { deny = [\"203.0.113.0/24\"] }";
    let limits = "connections_per_address = 1\naddress = { requests = 1, per = \"1h\" }";
    let gateway = gateway("127.0.0.0/8", listen, limits).await;
    let connect = async |source: &str| {
        let header = v1(&format!("{source}:1"));
        connect_with(&gateway, &header).await
    };
    let mut first = connect("192.0.2.1").await;
    assert_eq!(ask(&mut first, "").await, 200);
    // The second request of the source.
    assert_eq!(ask(&mut first, "").await, 429);
    // Its second connection.
    assert!(connect("192.0.2.1").await.is_closed().await);
    let mut second = connect("192.0.2.2").await;
    assert_eq!(ask(&mut second, "").await, 200, "another source");
    assert!(connect("203.0.113.1").await.is_closed().await);
    let counted = "postern_proxy_connections_closed_total{reason=\"address_not_allowed\"} 1";
    gateway.assert_metric(counted).await;
}

#[tokio::test]
async fn source_that_is_a_trusted_proxy_reports_its_client() {
    let gateway = gateway("127.0.0.0/8", "", "trusted_proxies = [\"10.0.0.0/8\"]").await;
    let mut client = connect_with(&gateway, &v2([10, 0, 0, 7])).await;
    let reported = "X-Forwarded-For: 192.0.2.1";
    assert_eq!(ask(&mut client, &format!("{reported}\r\n")).await, 200);
    assert_fields(&gateway.origin.only(), &[reported]);
}
