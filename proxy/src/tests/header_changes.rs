//! Changes of header fields over HTTP/2, and values that clients control.

use super::*;

fn routes() -> String {
    let open = r#"policy = "public"
rewrite = { strip = "/open", add = "/inner" }
request_headers = { set = { X-Client = "{client_address}", X-User = "{principal}", X-Where = "{scheme}://{host}{path}{query}", X-What = "{method} {route} {upstream} {{}}", X-Real-IP = "{client_address}", X-Forwarded-Port = "{port}", X-Forwarded-Prefix = "/open" }, add = { X-List = "{path.id}", X-Rest = "{path.*}" }, remove = ["Accept-Language", "X-Removed"] }
response_headers = { set = { X-Own = "{request_id}", Cache-Control = "no-store" }, add = { X-Many = "gateway" }, remove = ["X-Internal"] }"#;
    let closed = r#"policy = { users = "any" }
request_headers = { set = { X-User = "{principal}", X-Issuer = "{issuer}" } }
response_headers = { set = { X-User = "{principal}", X-Upstream = "{upstream}" } }"#;
    let inheriting = r#"policy = "public"
response_headers = { inherit = true, set = { Content-Security-Policy = "self", X_Frame = "same" } }"#;
    let defaults = r#"[defaults]
request_headers = { remove = ["X-Debug"] }
response_headers = { set = { X-Default = "{path} {route}", X-Frame = "deny" } }
"#;
    [
        defaults.to_owned(),
        route("open", "/open/{id}/*", open),
        route("closed", "/closed", closed),
        route("default", "/default", "policy = \"public\""),
        route("inheriting", "/inheriting", inheriting),
    ]
    .concat()
}

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: origin/1.2\r\nX-Powered-By: PHP\r\nX-AspNet-Version: 4\r\n\
                        X-Internal: secret\r\nX-Many: one\r\nX-Many: two\r\nX-Own: upstream\r\nContent-Length: 2\r\n\r\nok";

async fn gateway() -> TestGateway {
    TestGateway::h2c(OriginBehavior::Text(RESPONSE), "", "", &routes()).await
}

#[tokio::test]
async fn fields_of_requests_are_changed_over_both_protocols() {
    let gateway = gateway().await;
    let fields = "X-Client: forged\r\nX-User: admin\r\nx-list: client\r\nAccept-Language: de\r\nX-Removed: a\r\n\
                  x-removed: b\r\nX-Debug: stays\r\nX-Request-Id: forged\r\nX_User: admin\r\nx.client: forged\r\n\
                  X_Removed: c\r\nX_List: kept\r\nContent_Length: 5\r\nTransfer_Encoding: chunked\r\n\
                  X-Real-IP: forged\r\nx_forwarded.port: forged\r\nX-Forwarded-Prefix: forged\r\nRemote-User: forged\r\n";
    let target = "/open/7%20a/b/c?d=%0d%0aX-Evil:1";
    assert_eq!(gateway.status(target, fields).await, 200);
    let mut client = http2_client(&gateway, 65_535).await;
    let lower = fields.lines().filter_map(|line| line.split_once(": "));
    let lower: Vec<(&str, &str)> = lower.collect();
    assert_eq!(get(&mut client, target, &lower).await.status, 200);
    let seen = gateway.origin.seen();
    assert_eq!(seen.len(), 2);
    for request in &seen {
        let id = values(request, "x-request-id");
        assert!(id.len() == 1 && id[0] != "forged", "{request}");
        assert!(request.starts_with("GET /inner/7%20a/b/c?d=%0d%0aX-Evil:1 HTTP/1.1"));
        let place = "http://gate/open/7%20a/b/c?d=%0d%0aX-Evil:1";
        for (name, expected) in [
            ("x-client", &["127.0.0.1"][..]),
            ("x-where", &[place]),
            ("x-what", &["GET open origin {}"]),
            ("x-list", &["client", "7%20a"]),
            ("x-rest", &["b/c"]),
            ("x_list", &["kept"]),
            ("x-real-ip", &["127.0.0.1"]),
            ("x-forwarded-port", &["80"]),
            ("x-forwarded-prefix", &["/open"]),
        ] {
            assert_eq!(values(request, name), expected, "{name}: {request}");
        }
        let removed = "x-user accept-language x-removed x-evil x_user x.client x_removed \
            content_length transfer_encoding";
        for name in removed.split(' ') {
            assert_eq!(values(request, name), [""; 0], "{name}: {request}");
        }
        assert!(!request.contains("forged"), "{request}");
        // The route replaces the table of [defaults] as a whole.
        assert!(has_field(request, "X-Debug: stays"), "{request}");
    }
    let debug = "X-Debug: 1\r\n";
    assert_eq!(gateway.get("/default", debug).await.status, 200);
    let seen = gateway.origin.seen();
    assert_eq!(values(seen.last().expect("one"), "x-debug"), [""; 0]);
}

#[tokio::test]
async fn fields_of_responses_are_changed_over_both_protocols() {
    let gateway = gateway().await;
    let answer = gateway.get("/open/1/2", "").await;
    let shown = &answer.head;
    let actual = values(shown, "x-many");
    assert_eq!(actual, ["one", "two", "gateway"], "{shown}");
    assert_eq!(values(shown, "x-own"), values(shown, "x-request-id"));
    assert_eq!(values(shown, "cache-control"), ["no-store"]);
    for name in ["x-internal", "server", "x-powered-by", "x-aspnet-version"] {
        assert_eq!(values(shown, name), [""; 0], "{shown}");
    }
    let mut client = http2_client(&gateway, 65_535).await;
    let answer = get(&mut client, "/open/1/2", &[]).await;
    assert_eq!(answer.headers["x-own"], answer.headers["x-request-id"]);
    assert_eq!(answer.headers.get_all("x-many").iter().count(), 3);
    for name in ["x-internal", "server", "x-powered-by"] {
        assert!(!answer.headers.contains_key(name), "{:?}", answer.headers);
    }
    // Requests that match no route have the defaults, a route its own.
    for (target, shown) in [
        ("/nowhere", Some("/nowhere ")),
        ("/default", Some("/default default")),
        ("/open/1/2", None),
        ("/inheriting", Some("/inheriting inheriting")),
    ] {
        let answer = gateway.get(target, "").await;
        assert_eq!(answer.header("x-default"), shown, "{}", answer.head);
    }
    let answer = gateway.get("/inheriting", "").await;
    let frames = (answer.header("x_frame"), answer.header("x-frame"));
    assert_eq!(frames, (Some("same"), None), "another spelling of the name");
    // A rejection has them as well.
    let refused = gateway.get("/closed", "").await;
    assert_eq!(refused.status, 401);
    assert_eq!(values(&refused.head, "x-user"), [""; 0]);
    assert_eq!(values(&refused.head, "x-upstream"), [""; 0]);
}

#[tokio::test]
async fn line_break_in_a_subject_reaches_no_message() {
    let gateway = Arc::new(gateway().await);
    for (subject, status) in [
        ("ada", 200),
        ("a\r\nX-Evil: 1", 500),
        ("a\nX-Evil: 1", 500),
        ("a\u{0}b", 401),
        ("a\u{7f}b", 500),
        ("zo\u{eb}", 200),
    ] {
        let token = gateway.user_named(subject);
        let before = gateway.origin.seen().len();
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let answer = gateway.get("/closed", &bearer).await;
        assert_eq!(answer.status, status, "{subject:?} {}", answer.head);
        assert_eq!(values(&answer.head, "x-evil"), [""; 0], "{subject:?}");
        let seen = gateway.origin.seen();
        assert_eq!(seen.len() - before, usize::from(status == 200));
        if status == 200 {
            let request = seen.last().expect("a request");
            assert_eq!(values(request, "x-user"), [subject]);
            assert_eq!(values(&answer.head, "x-user"), [subject]);
            assert_eq!(values(&answer.head, "x-upstream"), ["origin"]);
            assert_eq!(values(request, "x-issuer"), [gateway.user_issuer()]);
        } else {
            assert_eq!(values(&answer.head, "x-user"), [""; 0], "{subject:?}");
        }
        let mut client = http2_client(&gateway, 65_535).await;
        let bearer = format!("Bearer {token}");
        let answer = get(&mut client, "/closed", &[("authorization", &bearer)]).await;
        assert_eq!(answer.status, status, "{subject:?}");
        assert!(!answer.headers.contains_key("x-evil"));
    }
}
