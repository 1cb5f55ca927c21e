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

/// Targets that are forwarded, which is unchanged but for a rewrite.
const FORWARDED: &str = "/@scope%2fname /queues/%2F/jobs?a=%2f /a;v=1/b /a%3Bv/b /a//b /a%252Fb /plain \
    /projects/a%252541 /named/a/b%2Fc";

const REFUSED: &str = "/projects/group%2Fname /admin%2Fx //admin/x /admin//x /admin;v/x /admin%252fx \
    /;/admin/x /own/t%2Fvictim/ada/x /own/t%252Fvictim/ada/x /own/;/ada/victim/x /own//ada/victim \
    /own/t/ada;x/y /own/t/ad%2561/x /own/t/ad%2561%2Fx/y /named/a%2Fb/c /strict/a%2Fb /a/..%2Fadmin/x \
    /a/..;/admin/x /a%5c..%5cadmin/x /a/%2e%2e//x";

#[tokio::test]
async fn ambiguous_path_does_not_reach_another_route() {
    let gateway = TestGateway::h2c(OriginBehavior::Answer, "", "", &ambiguous_routes()).await;
    let mut client = http2_client(&gateway, 65_535).await;
    let forwarded = FORWARDED.split(' ').map(|target| (200, target));
    let unknown = ["/admin/x", "/own/t/ada/a%2Fb", "/own/t/a%64a/x"].map(|target| (401, target));
    let refused = REFUSED.split(' ').map(|target| (400, target));
    let moved = [(308, "/old//evil.test")];
    for (status, target) in forwarded.chain(unknown).chain(refused).chain(moved) {
        let forwarded = target.replace("/projects/", "/api/");
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
