use super::*;

#[tokio::test]
async fn request_carries_only_the_verified_identity() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let spoofed = "X-Postern-Kind: service\r\nX_Postern_Subject: eve\r\nx.postern.scopes: all\r\n\
                   X-Postern-Service: auth\r\nX_Postern_Issuer: eve\r\nX-Forwarded-For: 1.2.3.4\r\nX_FORWARDED_HOST: evil\r\n\
                   X-Request-Id: chosen\r\nForwarded: for=1.2.3.4\r\nProxy: http://evil\r\nX-Kept: yes\r\n";
    let token = gateway.user();
    let fields = format!("{}{spoofed}", bearer(&token));
    let answer = gateway.get("/any/7?q=1", &fields).await;
    let actual = (answer.status, answer.body.as_str());
    assert_eq!(actual, (200, "{\"ok\":true}"));
    let seen = gateway.origin.only();
    assert!(seen.starts_with("GET /any/7?q=1 HTTP/1.1\r\n"), "{seen}");
    let id = answer.header("x-request-id").expect("an id");
    let expected = [
        "X-Postern-Kind: user",
        "X-Postern-Subject: ada",
        &format!("X-Postern-Issuer: {}", gateway.user_issuer()),
        "X-Postern-Scopes: read write",
        "X-Kept: yes",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: gate",
        "X-Forwarded-Proto: http",
        "Host: gate",
        &format!("X-Request-Id: {id}"),
    ];
    assert_fields(&seen, &expected);
    let rest = seen.replace(&token, "").to_ascii_lowercase();
    for text in ["eve", "evil", "service", "1.2.3.4", "chosen"] {
        assert!(!rest.contains(text), "{text} was forwarded: {seen}");
    }
}

#[tokio::test]
async fn unauthorized_request_is_not_forwarded() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let (user, notify) = (gateway.user(), gateway.service("notify"));
    let basic = "Authorization: Basic eA==\r\n";
    let (text, signature) = user.rsplit_once('.').expect("a signature");
    let other = if signature.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{text}.{other}{}", &signature[1..]);
    for (target, headers, status, code) in [
        ("/any/1", String::new(), 401, "authentication_required"),
        ("/any/1", bearer("x.y.z"), 401, "token_malformed"),
        ("/any/1", basic.to_owned(), 401, "token_malformed"),
        ("/any/1", bearer(&user).repeat(2), 400, "invalid_header"),
        ("/any/1", bearer(&forged), 401, "token_signature_invalid"),
        ("/auth-only", bearer(&user), 401, "service_required"),
        ("/auth-only", bearer(&notify), 401, "service_not_allowed"),
        ("/socket", bearer(&notify), 401, "user_required"),
        ("/nowhere", String::new(), 401, "authentication_required"),
        ("/nowhere", bearer(&user), 404, "not_found"),
        ("/any/1/", String::new(), 401, "authentication_required"),
    ] {
        let answer = gateway.get(target, &headers).await;
        assert_eq!(answer.problem(), format!("{status} {code}"), "{target}");
        let actual = answer.header("www-authenticate").is_some();
        assert_eq!(actual, status == 401, "{answer:?}");
    }
    assert!(gateway.origin.seen().is_empty());
    let auth = gateway.service("auth");
    assert_eq!(gateway.get("/auth-only", &bearer(&auth)).await.status, 200);
    assert!(has_field(&gateway.origin.only(), "X-Postern-Service: auth"));
}

#[tokio::test]
async fn unknown_method_is_reported_after_authentication() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let put = |target: &str, headers: String| {
        format!("PUT {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
    };
    let answer = gateway.send(&put("/open", String::new())).await;
    let actual = (answer.status, answer.header("allow"));
    assert_eq!(actual, (405, Some("GET, POST")));
    let answer = gateway.send(&put("/any/1", String::new())).await;
    assert_eq!(answer.status, 401);
    let answer = gateway.send(&put("/any/1", gateway.bearer())).await;
    let actual = (answer.status, answer.header("allow"));
    assert_eq!(actual, (405, Some("GET, POST")));
}

#[tokio::test]
async fn connection_carries_pipelined_requests() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let mut client = gateway.connect().await;
    let refused = "GET /any/1 HTTP/1.1\r\nHost: h\r\n\r\n";
    let length = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let chunked =
        "POST /open HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n";
    let all = [refused, length, chunked, refused, length].concat();
    client.write(&all).await;
    for status in [401, 200, 200, 401, 200] {
        assert_eq!(client.answer().await.status, status);
    }
    assert_eq!(client.ask(length).await.status, 200);
    let seen = gateway.origin.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen[1].ends_with("3\r\nxyz\r\n0\r\n\r\n"), "{}", seen[1]);
}

#[tokio::test]
async fn bodies_are_streamed_and_limited() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "body_bytes = \"8MiB\"", "").await;
    let body = "0123456789abcdef".repeat(5 << 16);
    let length = body.len();
    let head = format!("POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    assert_eq!(gateway.send(&format!("{head}{body}")).await.status, 200);
    assert!(gateway.origin.only().ends_with(&body));
    let announced = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\r\n";
    assert_eq!(gateway.send(announced).await.code(), "body_too_large");
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    let head = "POST /open HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let request = format!("{head}{}0\r\n\r\n", chunk.repeat(9));
    assert_eq!(gateway.send(&request).await.problem(), "413 body_too_large");
}

#[tokio::test]
async fn access_event_contains_the_upstream_code() {
    let refusal = "HTTP/1.1 401 Unauthorized\r\nX-Postern-Code: invalid_credentials\r\nContent-Length: 0\r\n\r\n";
    let unknown =
        "HTTP/1.1 409 Conflict\r\nX-Postern-Code: of-its-own\r\nContent-Length: 0\r\n\r\n";
    for (behavior, status, code) in [
        (OriginBehavior::Text(refusal), 401, "invalid_credentials"),
        (OriginBehavior::Text(unknown), 409, "ok"),
    ] {
        let gateway = TestGateway::start(behavior).await;
        let answer = gateway.get("/open", "").await;
        let actual = (answer.status, answer.header("x-postern-code"));
        assert_eq!(actual, (status, None));
        let events = gateway.finish().await;
        assert_eq!(events[0]["code"], code, "{events:?}");
    }
}
