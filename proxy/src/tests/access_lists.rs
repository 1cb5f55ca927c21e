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
    let token = format!("Authorization: Bearer {}\r\n", gateway.user());
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
        assert_eq!(response.status == 200, accepted, "{target} {client}");
        if !accepted {
            assert_eq!(response.status, 403, "{target} {client}");
            assert_eq!(response.code(), "address_not_allowed");
        }
    }
    let received = gateway.origin.seen().len();
    assert_eq!(received, 4, "refused requests");
    let counted = "code=\"address_not_allowed\",route=\"office\"} 4";
    gateway.assert_metric(counted).await;
    let events = gateway.finish().await;
    let refused = events
        .iter()
        .filter(|event| event["code"] == "address_not_allowed" && event["status"] == 403);
    assert_eq!(refused.count(), 5);
}

#[tokio::test]
async fn refused_address_learns_no_path_and_no_methods() {
    let direct = gateway("").await;
    let token = format!("Authorization: Bearer {}\r\n", direct.user());
    let forged = format!("X-Forwarded-For: 192.0.2.1\r\n{token}");
    for (target, headers, code) in [
        ("/office", forged.as_str(), "address_not_allowed"),
        ("/office", "", "authentication_required"),
        ("/no-such-path", "", "authentication_required"),
    ] {
        let response = direct.get(target, headers).await;
        assert_eq!(response.code(), code, "{target} {headers}");
    }
    assert!(direct.origin.seen().is_empty());
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
    let version = |status: &Value, wanted: u64| {
        assert_eq!(status["lastError"], Value::Null, "{status}");
        status["version"] == wanted
    };
    gateway.edit(|text| {
        let list = "address = \"127.0.0.1:1\"\naccess = { deny = [\"127.0.0.0/8\"] }";
        text.replace("address = \"127.0.0.1:1\"", list)
    });
    let status = gateway
        .wait_for_config_status(|status| version(status, 2))
        .await;
    assert_eq!(status["restartNeeded"], serde_json::json!([]), "{status}");
    let mut client = gateway.connect().await;
    assert!(client.is_closed().await, "a connection without an answer");
    let counted = "postern_proxy_connections_closed_total{reason=\"address_not_allowed\"} 1";
    gateway.assert_metric(counted).await;
    // A listener that the file no longer contains keeps its list until the restart.
    gateway.edit(|text| text.replace("127.0.0.1:1\"\naccess", "127.0.0.1:2\"\naccess"));
    let status = gateway
        .wait_for_config_status(|status| version(status, 3))
        .await;
    assert_eq!(status["restartNeeded"], serde_json::json!(["listen"]));
    assert!(gateway.connect().await.is_closed().await);
    gateway.edit(|text| {
        text.replace(
            "127.0.0.1:2\"\naccess = { deny",
            "127.0.0.1:1\"\naccess = { allow",
        )
    });
    gateway
        .wait_for_config_status(|status| version(status, 4))
        .await;
    assert_eq!(gateway.get("/others", "").await.status, 200);
}

#[test]
fn route_test_has_a_client_address() {
    let env = Env::default();
    let read = |test: &str| {
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.origin]\naddresses = [\"127.0.0.1:2\"]\n\
             {}\n[[test]]\nrequest = \"GET /others\"\n{test}\n",
            routes()
        );
        parse("p.toml", &text, |root| Config::read(root, &env))
            .map(|_| ())
            .map_err(|exit| exit.message().to_owned())
    };
    for test in [
        "client_address = \"203.0.113.1\"\ndecision = \"allow\"",
        "client_address = \"198.51.100.1\"\ndecision = \"address_not_allowed\"",
        "client_address = \"::ffff:198.51.100.1\"\ndecision = \"address_not_allowed\"",
        "decision = \"address_not_allowed\"",
    ] {
        assert_eq!(read(test), Ok(()), "{test}");
    }
    let failed = read("client_address = \"198.51.100.1\"\ndecision = \"allow\"");
    assert!(failed.is_err_and(|said| said.contains("is decided address_not_allowed, not allow")));
    let wrong = read("client_address = \"10.0.0.0/8\"\ndecision = \"allow\"");
    let said = "test.0.client_address: must be an IP address such as 192.0.2.1";
    assert!(wrong.is_err_and(|text| text.contains(said)));
}

#[tokio::test]
async fn report_only_list_counts_and_forwards() {
    let routes = routes().replace("\"192.0.2.9\"] }", "\"192.0.2.9\"], report_only = true }");
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]";
    let gateway = TestGateway::routed(OriginBehavior::Answer, "", limits, &routes).await;
    let token = format!("Authorization: Bearer {}\r\n", gateway.user());
    for (client, credentials, status) in [
        ("192.0.2.1", token.as_str(), 200),
        ("192.0.2.9", token.as_str(), 200),
        ("192.0.2.9", "", 401),
    ] {
        let headers = format!("X-Forwarded-For: {client}\r\n{credentials}");
        let response = gateway.get("/office", &headers).await;
        assert_eq!(response.status, status, "{client}");
    }
    let token = gateway.service("auth");
    let refused = format!("X-Forwarded-For: 192.0.2.9\r\nAuthorization: Bearer {token}\r\n");
    let response = gateway.get("/office", &refused).await;
    assert_eq!(response.code(), "user_required", "the policy is enforced");
    let counted = "postern_proxy_access_list_report_only_total{route=\"office\"} 2\n";
    gateway.assert_metric(counted).await;
    let events = gateway.finish().await;
    let audits = events.iter().map(|event| &event["report_only"]);
    let reported = audits.filter(|code| *code == "address_not_allowed").count();
    assert_eq!(reported, 2);
}

#[tokio::test]
async fn report_only_listener_list_counts_connections() {
    let gateway = gateway("").await;
    gateway.edit(|text| {
        let list =
            "address = \"127.0.0.1:1\"\naccess = { deny = [\"127.0.0.0/8\"], report_only = true }";
        text.replace("address = \"127.0.0.1:1\"", list)
    });
    gateway.wait_for_version(2).await;
    assert_eq!(gateway.get("/others", "").await.status, 200);
    let metrics = gateway.admin_get("/metrics").await;
    let counted = "postern_proxy_connections_report_only_total 1\n";
    assert!(metrics.contains(counted), "{metrics}");
    let closed = "postern_proxy_connections_closed_total{reason=\"address_not_allowed\"}";
    assert!(!metrics.contains(closed), "{metrics}");
}
