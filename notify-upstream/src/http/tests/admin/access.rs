//! Who may call the admin routes, and with which method.

use super::*;
use crate::delivery::suppression::SuppressionList;
use crate::notification::Channel;
use crate::store::SuppressionRow;

/// All routes: the method, the path, and whether it requires an operator.
const ROUTES: [(Method, &str, bool); 20] = [
    (Method::GET, "notifications", false),
    (Method::GET, "notifications/x", false),
    (Method::POST, "notifications/x/retry", true),
    (Method::POST, "notifications/x/cancel", true),
    (Method::POST, "notifications/x/replay", true),
    (Method::GET, "notifications/x/preview", true),
    (Method::GET, "dead", false),
    (Method::POST, "dead/retry", true),
    (Method::POST, "dead/drop", true),
    (Method::GET, "queue", false),
    (Method::GET, "providers", false),
    (Method::POST, "providers/script/pause", true),
    (Method::POST, "providers/script/resume", true),
    (Method::POST, "providers/script/test", true),
    (Method::GET, "templates", false),
    (Method::POST, "templates/welcome/preview", false),
    (Method::POST, "templates/welcome/send", true),
    (Method::GET, "suppression", false),
    (Method::POST, "suppression/remove", true),
    (Method::GET, "timeline", false),
];

#[tokio::test]
async fn admin_routes_require_the_token_and_changes_a_name() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let wrong = format!("Bearer {}", TOKEN.replace('0', "1"));
    let right = format!("Bearer {TOKEN}");
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
            let headers = [("authorization", right.as_str())];
            let found = served.call(method, path, &headers, body).await;
            assert_problem(&found, 400, "invalid_header", None);
        }
    }
    served.shutdown.cancel();
}

#[tokio::test]
async fn nul_character_is_a_mistake_of_its_field() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        for (path, pointer) in [
            ("suppression?reason=%00", "?reason"),
            ("suppression?category=x%00", "?category"),
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
        served.shutdown.cancel();
    }
}

#[tokio::test]
async fn admin_routes_refuse_other_methods() {
    let (store, _database) = stores().await.swap_remove(0);
    let served = served(&store).await;
    let right = format!("Bearer {TOKEN}");
    let headers = [("authorization", right.as_str()), (OPERATOR, "ada")];
    for (method, path, _) in ROUTES {
        let others = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
        for other in others.into_iter().filter(|other| *other != method) {
            let found = served.call(other.clone(), path, &headers, None).await;
            assert_eq!(found.0, 405, "{other} {path}");
            assert_problem(&found, 405, "method_not_allowed", None);
        }
    }
    let found = served.call(Method::GET, "none", &headers, None).await;
    assert_problem(&found, 404, "not_found", None);
    served.shutdown.cancel();
}

/// Asserts that a change without a token, with a wrong one and without an operator is refused.
async fn assert_refused(served: &TestServer, path: &str, body: &Value) {
    let wrong = format!("Bearer {}", TOKEN.replace('0', "1"));
    let right = format!("Bearer {TOKEN}");
    for (headers, expected) in [
        (&[(OPERATOR, "ada")][..], 401),
        (&[("authorization", &wrong), (OPERATOR, "ada")], 401),
        (&[("authorization", &right)], 400),
    ] {
        let (status, problem) = served.call(Method::POST, path, headers, Some(body)).await;
        assert_eq!(status, expected, "{path}: {problem}");
    }
}

#[tokio::test]
async fn refused_change_has_no_effect_and_is_not_logged() {
    for (store, _database) in stores().await {
        let mut served = served(&store).await;
        let dead = served.dead_letter().await;
        let mut scheduled = welcome();
        scheduled["sendAt"] = json!(START.plus(std::time::Duration::from_secs(3600)));
        let waiting = served.accepted(&scheduled).await;
        let row = SuppressionRow {
            kind: SuppressionList::Suppressed.kind(Channel::Email),
            address: crate::address::hash("eve@example.com").to_vec(),
            category: String::new(),
            reason: "mailbox_unknown".to_owned(),
        };
        store.suppress(&[row]).await.expect("stored");
        let (_, suppressed) = served.read("suppression").await;
        let (_, notifications) = served.read("notifications").await;
        let (_, letters) = served.read("dead").await;
        let calls = served.script.mails().len();
        let (log, _guard) = CapturedLog::start();
        let selector = json!({ "selector": { "provider": "script" } });
        let mail =
            json!({ "channel": "email", "to": "ada@example.com", "variables": { "name": "Ada" } });
        for (path, body) in [
            (format!("notifications/{dead}/retry"), json!({})),
            (format!("notifications/{dead}/replay"), json!({})),
            (format!("notifications/{waiting}/cancel"), json!({})),
            ("dead/retry".to_owned(), selector.clone()),
            ("dead/drop".to_owned(), selector),
            ("providers/script/pause".to_owned(), json!({})),
            ("providers/script/test".to_owned(), mail.clone()),
            ("templates/welcome/send".to_owned(), mail),
            (
                "suppression/remove".to_owned(),
                json!({ "id": suppressed["entries"][0]["id"] }),
            ),
        ] {
            assert_refused(&served, &path, &body).await;
        }
        assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
        assert_eq!(served.read("suppression").await.1, suppressed);
        assert_eq!(served.read("notifications").await.1, notifications);
        assert_eq!(served.read("dead").await.1, letters);
        let (_, providers) = served.read("providers").await;
        assert_eq!(providers["providers"][0]["paused"], Value::Null);
        assert_eq!(served.script.mails().len(), calls, "nothing was sent");
        served.shutdown.cancel();
    }
}
