//! Routes that accept ambiguous paths, and the ways around the policy of another route.

use super::*;

fn ambiguous_routes() -> String {
    let routes = route_table(
        r#"
        open | /* | "*" | policy = "public"\nambiguous_paths = true
        projects | /projects/{id} | "GET" | policy = "public"\nambiguous_paths = true\nrewrite = { strip = "/projects", add = "/api" }
        old | /old/* | "GET" | policy = "public"\nambiguous_paths = true\nredirect = { to = "/{path.*}" }
        admin | /admin/* | "GET" | policy = { users = "any" }
        own | /own/{tenant}/{id}/* | "GET" | policy = { users = { owner = "id" } }\nambiguous_paths = true
        named | /named/{id}/* | "GET" | policy = "public"\nambiguous_paths = true\nrequest_headers = { set = { X-Object = "{path.id}" } }
        strict | /strict/* | "GET" | policy = "public"
        "#,
    );
    format!("{routes}{TESTS}")
}

/// What route tests say about them.
const TESTS: &str = r#"
[[test]]
request = "GET /a%2Fb"
route = "open"
decision = "allow"

[[test]]
request = "GET /own/t%2Fvictim/ada/x"
token = "user:ada"
decision = "invalid_target"

[[test]]
request = "GET /own/t/ada/a%2Fb"
token = "user:ada"
decision = "allow"

[[test]]
request = "GET /admin%2Fb"
decision = "invalid_target"
"#;

/// Targets, the status, and the forwarded target of those that are accepted.
const TARGETS: [(&str, u16, &str); 33] = [
    ("/@scope%2fname", 200, "/@scope%2fname"),
    ("/queues/%2F/jobs?a=%2f", 200, "/queues/%2F/jobs?a=%2f"),
    ("/a;v=1/b", 200, "/a;v=1/b"),
    ("/a%3Bv/b", 200, "/a%3Bv/b"),
    ("/a//b", 200, "/a//b"),
    ("/a%252Fb", 200, "/a%252Fb"),
    ("/plain", 200, "/plain"),
    ("/projects/group%2Fname", 400, ""),
    ("/projects/a%252541", 200, "/api/a%252541"),
    ("/old//evil.test", 308, ""),
    ("/admin/x", 401, ""),
    ("/admin%2Fx", 400, ""),
    ("//admin/x", 400, ""),
    ("/admin//x", 400, ""),
    ("/admin;v/x", 400, ""),
    ("/admin%252fx", 400, ""),
    ("/;/admin/x", 400, ""),
    ("/own/t/ada/a%2Fb", 401, ""),
    ("/own/t/a%64a/x", 401, ""),
    ("/own/t%2Fvictim/ada/x", 400, ""),
    ("/own/t%252Fvictim/ada/x", 400, ""),
    ("/own/;/ada/victim/x", 400, ""),
    ("/own//ada/victim", 400, ""),
    ("/own/t/ada;x/y", 400, ""),
    ("/own/t/ad%2561/x", 400, ""),
    ("/own/t/ad%2561%2Fx/y", 400, ""),
    ("/named/a/b%2Fc", 200, "/named/a/b%2Fc"),
    ("/named/a%2Fb/c", 400, ""),
    ("/strict/a%2Fb", 400, ""),
    ("/a/..%2Fadmin/x", 400, ""),
    ("/a/..;/admin/x", 400, ""),
    ("/a%5c..%5cadmin/x", 400, ""),
    ("/a/%2e%2e//x", 400, ""),
];

#[tokio::test]
async fn ambiguous_path_does_not_reach_another_route() {
    let gateway = TestGateway::h2c(OriginBehavior::Answer, "", "", &ambiguous_routes()).await;
    let mut client = http2_client(&gateway, 65_535).await;
    for (target, status, forwarded) in TARGETS {
        let before = gateway.origin.seen().len();
        let answer = gateway.get(target, "").await;
        assert_eq!(answer.status, status, "{target}: {}", answer.head);
        let seen = gateway.origin.seen().split_off(before);
        let line = format!("GET {forwarded} HTTP/1.1\r\n");
        assert_eq!(seen.len(), usize::from(status == 200), "{target}");
        assert!(seen.iter().all(|it| it.starts_with(&line)), "{seen:?}");
        if status == 308 {
            assert_eq!(answer.header("location"), Some("/evil.test"));
        }
        let answer = get(&mut client, target, &[]).await;
        assert_eq!(answer.status, status, "{target} over HTTP/2");
    }
}
