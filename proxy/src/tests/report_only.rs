//! Routes with `report_only`.

use super::random_routes::EXTERNAL_AUTHORIZATION;
use super::*;

#[tokio::test]
async fn refusals_are_counted_and_logged_and_not_enforced() {
    for [check, code] in rows(
        r#"
        policy = { services = "any" } | service_required
        policy = { users = "any" }\naccess = { deny = ["127.0.0.0/8"] } | address_not_allowed
        policy = { users = "any" }\nEXTERNAL_AUTHORIZATION | authorization_unavailable
        policy = { users = "any" }\nlimits = [{ by = "route", requests = 1, per = "1h" }] | rate_limited
        "#,
    ) {
        let check = check.replace("EXTERNAL_AUTHORIZATION", EXTERNAL_AUTHORIZATION);
        let tried = route("tried", "/tried", &format!("{check}\nreport_only = true"));
        let routes = tried + &route("enforced", "/enforced", &check);
        let gateway = TestGateway::routed(OriginBehavior::Answer, "", "", &routes).await;
        let token = gateway.bearer();
        // The rate limit refuses the second request.
        for target in ["/tried", "/enforced", "/tried"] {
            gateway.get(target, &token).await;
        }
        assert_eq!(gateway.get("/tried", &token).await.status, 200, "{code}");
        assert_eq!(gateway.get("/enforced", &token).await.code(), code);
        for (credential, refusal) in [
            ("", "401 authentication_required"),
            ("Authorization: Bearer x\r\n", "401 token_malformed"),
        ] {
            assert_eq!(gateway.get("/tried", credential).await.problem(), refusal);
        }
        let count = if code == "rate_limited" { 2 } else { 3 };
        let counted =
            format!("report_only_requests_total{{code=\"{code}\",route=\"tried\"}} {count}\n");
        gateway.assert_metric(&counted).await;
        let mut events = gateway.finish().await;
        events.retain(|event| event["report_only"] == *code);
        assert_eq!(events.len(), count, "{events:?}");
        let is_forwarded = |event: &Value| event["status"] == 200 && event["upstream"] == "origin";
        assert!(events.iter().all(is_forwarded), "{events:?}");
    }
}
