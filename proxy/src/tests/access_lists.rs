//! Access lists of listeners and routes.

use super::*;

/// The routes: `/office` for 192.0.2.0/24 except .9, `/others` for all but 198.51.100.0/24.
fn routes() -> String {
    let office = "access = { allow = [\"192.0.2.0/24\", \"2001:db8::/32\"], deny = [\"192.0.2.9\"] }\n\
                  policy = { users = \"any\" }";
    let others = "access = { deny = [\"198.51.100.0/24\"] }\npolicy = \"public\"\n\
                  cors = { origins = [\"https://app.example.com\"] }";
    route("office", "/office", office) + &route("others", "/others", others)
}

async fn gateway(limits: &str) -> TestGateway {
    TestGateway::routed(OriginBehavior::Answer, "", limits, &routes()).await
}

#[tokio::test]
async fn route_list_decides_by_client_address() {
    let gateway = gateway("trusted_proxies = [\"127.0.0.0/8\"]").await;
    let token = gateway.bearer();
    for (target, client, accepted) in [
        ("/office", "192.0.2.1", true),
        ("/office", "::ffff:192.0.2.1", true),
        ("/office", "2001:db8::7", true),
        ("/office", "192.0.2.9", false),
        ("/office", "198.51.100.1", false),
        ("/office", "192.0.2.1, 203.0.113.1", false),
        ("/office", "2001:db9::1", false),
        ("/others", "203.0.113.1", true),
        ("/others", "198.51.100.1", false),
    ] {
        let headers = format!("X-Forwarded-For: {client}\r\n{token}");
        let response = gateway.get(target, &headers).await;
        match accepted {
            true => assert_eq!(response.status, 200, "{target} {client}"),
            false => assert_eq!(response.problem(), "403 address_not_allowed", "{client}"),
        }
    }
    assert_eq!(gateway.origin.seen().len(), 4, "refused requests");
    let counted = "code=\"address_not_allowed\",route=\"office\"} 4";
    gateway.assert_metric(counted).await;
    let mut events = gateway.finish().await;
    events.retain(|event| event["code"] == "address_not_allowed" && event["status"] == 403);
    assert_eq!(events.len(), 5);
}

#[tokio::test]
async fn refused_address_learns_no_path_and_no_methods() {
    let direct = gateway("").await;
    let token = direct.bearer();
    let forged = format!("X-Forwarded-For: 192.0.2.1\r\n{token}");
    for (target, headers, code) in [
        ("/office", forged.as_str(), "address_not_allowed"),
        ("/office", "", "authentication_required"),
        ("/no-such-path", "", "authentication_required"),
    ] {
        let response = direct.get(target, headers).await;
        assert_eq!(response.code(), code, "{target} {headers}");
    }
    direct.origin.assert_unused();
    let gateway = gateway("trusted_proxies = [\"127.0.0.0/8\"]").await;
    for (client, status) in [("198.51.100.1", 403), ("203.0.113.1", 405)] {
        let page = "Origin: https://app.example.com\r\n";
        let request = format!(
            "DELETE /others HTTP/1.1\r\nHost: gate\r\n{page}X-Forwarded-For: {client}\r\n\r\n"
        );
        let response = gateway.send(&request).await;
        assert_eq!(response.status, status, "{client}");
        assert_eq!(response.header("allow").is_some(), status == 405);
        // The refusal can be read by pages of allowed origins.
        let origin = response.header("access-control-allow-origin");
        assert_eq!(origin, Some("https://app.example.com"));
    }
}

#[tokio::test]
async fn listener_list_closes_connections_and_is_reloaded() {
    let gateway = gateway("").await;
    assert_eq!(gateway.get("/others", "").await.status, 200);
    gateway.edit(|text| {
        let list = "address = \"127.0.0.1:1\"\naccess = { deny = [\"127.0.0.0/8\"] }";
        text.replace("address = \"127.0.0.1:1\"", list)
    });
    let status = gateway.wait_for_version(2).await;
    assert_eq!(status["restartNeeded"], serde_json::json!([]), "{status}");
    let mut client = gateway.connect().await;
    assert!(client.is_closed().await, "a connection without an answer");
    let counted = "postern_proxy_connections_closed_total{reason=\"address_not_allowed\"} 1";
    gateway.assert_metric(counted).await;
    // A listener that the file no longer contains keeps its list until the restart.
    gateway.edit(|text| text.replace("127.0.0.1:1\"\naccess", "127.0.0.1:2\"\naccess"));
    let status = gateway.wait_for_version(3).await;
    assert_eq!(status["restartNeeded"], serde_json::json!(["listen"]));
    assert!(gateway.connect().await.is_closed().await);
    gateway.edit(|text| text.replace("127.0.0.1:2\"\naccess", "127.0.0.1:1\"\naccess"));
    gateway.edit(|text| text.replace("access = { deny = [\"127", "access = { allow = [\"127"));
    gateway.wait_for_version(4).await;
    assert_eq!(gateway.get("/others", "").await.status, 200);
}
