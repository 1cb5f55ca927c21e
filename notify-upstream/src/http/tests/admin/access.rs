//! Who may call the admin routes, and with which method.

use super::*;

/// All routes: the method, the path, and whether it requires an operator.
const ROUTES: [(Method, &str, bool); 17] = [
    (Method::GET, "notifications", false),
    (Method::GET, "notifications/x", false),
    (Method::POST, "notifications/x/retry", true),
    (Method::POST, "notifications/x/cancel", true),
    (Method::GET, "notifications/x/preview", true),
    (Method::GET, "dead", false),
    (Method::POST, "dead/retry", true),
    (Method::GET, "queue", false),
    (Method::GET, "providers", false),
    (Method::POST, "providers/script/pause", true),
    (Method::POST, "providers/script/resume", true),
    (Method::POST, "providers/script/test", true),
    (Method::GET, "templates", false),
    (Method::POST, "templates/welcome/preview", false),
    (Method::GET, "suppression", false),
    (Method::POST, "suppression/remove", true),
    (Method::GET, "timeline", false),
];

#[tokio::test]
async fn admin_routes_require_token_method_and_operator() {
    let (served, _database) = servers().await.remove(0);
    let wrong = format!("Bearer {}", TOKEN.replace('0', "1"));
    let body = json!({ "selector": { "code": "x" } });
    for (method, path, is_change) in ROUTES {
        let body = (method == Method::POST).then_some(&body);
        for headers in [
            &[(OPERATOR, "ada")][..],
            &[("authorization", wrong.as_str()), (OPERATOR, "ada")],
        ] {
            let found = served.call(method.clone(), path, headers, body).await;
            assert_problem(&found, 401, "authentication_required", None);
        }
        if is_change {
            let headers = [("authorization", BEARER)];
            let found = served.call(method, path, &headers, body).await;
            assert_problem(&found, 400, "invalid_header", None);
        }
    }
    for (method, path, _) in ROUTES {
        let others = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
        for other in others.into_iter().filter(|other| *other != method) {
            let found = served.call(other.clone(), path, &AS_ADA, None).await;
            assert_eq!(found.0, 405, "{other} {path}");
            assert_problem(&found, 405, "method_not_allowed", None);
        }
    }
    let found = served.call(Method::GET, "none", &AS_ADA, None).await;
    assert_problem(&found, 404, "not_found", None);
}

#[tokio::test]
async fn nul_character_is_a_mistake_of_its_field() {
    for (served, _database) in servers().await {
        for (path, pointer) in [
            ("suppression?hash=%00", "?hash"),
            ("dead?code=%00", "?code"),
            ("notifications?recipient=%00", "?recipient"),
            ("timeline?user=x%00y&since=1h", "?user"),
        ] {
            let found = served.read(path).await;
            assert_problem(&found, 400, "invalid_request", Some(pointer));
        }
        let found = served.change("providers/%00/resume", &Value::Null).await;
        assert_problem(&found, 400, "invalid_request", Some("path"));
        let removed = json!({"id": "x\u{0}"});
        let found = served.change("suppression/remove", &removed).await;
        assert_problem(&found, 400, "invalid_request", Some("/id"));
        let (status, ..) = served.get("%00", "auth", None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
    }
}
