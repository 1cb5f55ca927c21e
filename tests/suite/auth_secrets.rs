//! Secrets are in no log, URL query or header, except for the redirect whose fragment contains the
//! temporary token. The audit log records each operation with its result.

use postern_tests::Answer;
use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, text};
use serde_json::Value;

use crate::auth_cluster::{AuthCluster, Changes};

/// Length of the parts of a secret that are searched for.
const PART: usize = 20;

/// Returns all parts of a secret that must not be disclosed. The header of a JWT is not secret.
fn parts(secret: &str) -> Vec<&str> {
    let pieces = secret.split('.').skip(usize::from(secret.contains('.')));
    pieces
        .flat_map(|piece| (0..piece.len() / PART).map(move |at| &piece[at * PART..(at + 1) * PART]))
        .collect()
}

#[track_caller]
fn is_absent(secret: &str, from: &str, what: &str) {
    for part in parts(secret).into_iter().chain([secret]) {
        assert!(!from.contains(part), "{what} has {part} of {secret}");
    }
}

#[tokio::test]
async fn secrets_are_not_logged_at_trace_level() {
    let cluster = AuthCluster::start().await;
    let changes = Changes {
        filter: Some("trace"),
        ..Changes::default()
    };
    let replica = cluster.replica(&changes).await;
    let ada = replica.surface.register().await;
    let token = replica.surface.social_token("ada").await;
    let exchanged = replica
        .post("/auth/tokens/exchange", &json!({"temporaryToken": token}))
        .await;
    let exchanged = exchanged.expect(200);
    for (name, value) in &exchanged.headers {
        is_absent(
            &token,
            &String::from_utf8_lossy(value.as_bytes()),
            name.as_str(),
        );
    }
    let exchanged: Value = exchanged.json();
    let refreshed = replica.refresh(&ada.tokens).await.expect(200).json();
    let wrong = json!({"email": ada.email, "password": "a wrong password of some length"});
    let _ = replica
        .post("/auth/login", &wrong)
        .await
        .problem(401, "invalid_credentials");
    let _ = replica
        .post("/auth/password/forgot", &json!({"email": ada.email}))
        .await
        .expect(204);
    let _ = replica
        .post(
            "/auth/logout",
            &json!({"refreshToken": text(&refreshed, "refreshToken")}),
        )
        .await;
    let ended = replica.running.stop("TERM").await;
    let log = ended.stderr;
    assert!(
        log.contains("postern_auth::audit") && log.lines().count() > 100,
        "the log is on: {log}"
    );
    is_absent(&token, &log, "the log");
    for set in [&ada.tokens, &exchanged["tokens"], &refreshed] {
        for name in ["accessToken", "idToken", "refreshToken"] {
            is_absent(text(set, name), &log, "the log");
        }
    }
    let environment = cluster.surface.environment().iter();
    for (_, secret) in
        environment.filter(|(name, _)| name.ends_with("SECRET") || name.ends_with("PASSWORD"))
    {
        is_absent(secret, &log, "the log");
    }
    is_absent(PASSWORD, &log, "the log");
    is_absent("a wrong password of some length", &log, "the log");
    is_absent(&ada.email, &log, "the log");
}

/// Returns the audit event of a request.
#[track_caller]
fn event(log: &str, answer: &Answer) -> (String, String, String) {
    let id = answer.header("x-request-id");
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut events =
        lines.filter(|line| line["target"] == "postern_auth::audit" && line["request_id"] == id);
    let event = events
        .next()
        .unwrap_or_else(|| panic!("{}: no event of {id} in {log}", answer.asked));
    let field = |name: &str| text(&event, name).to_owned();
    (field("operation"), field("subject"), field("outcome"))
}

#[tokio::test]
async fn audit_log_records_subject_operation_and_request_id() {
    let cluster = AuthCluster::start().await;
    let replica = cluster.replica(&Changes::default()).await;
    let ada = replica.surface.register().await;
    let login = |password: &str| json!({"email": ada.email, "password": password});
    let (right, wrong) = (login(PASSWORD), login("wrong"));
    let signed_in = replica.post("/auth/login", &right).await.expect(200);
    let refused = replica.post("/auth/login", &wrong).await.expect(401);
    let tokens = signed_in.json();
    let refreshed = replica.refresh(&tokens).await.expect(200);
    let body = json!({"refreshToken": text(&tokens, "refreshToken")});
    let signed_out = replica.post("/auth/logout", &body).await.expect(204);
    let after = replica.refresh(&refreshed.json()).await.expect(401);
    let log = replica.running.stop("TERM").await.stderr;
    let audit_event = |operation: &str, subject: &str, outcome: &str| {
        (operation.to_owned(), subject.to_owned(), outcome.to_owned())
    };
    assert_eq!(
        event(&log, &signed_in),
        audit_event("sign_in", &ada.id, "ok")
    );
    assert_eq!(
        event(&log, &refused),
        audit_event("sign_in", "", "invalid_credentials")
    );
    assert_eq!(
        event(&log, &refreshed),
        audit_event("refresh", &ada.id, "ok")
    );
    assert_eq!(
        event(&log, &signed_out),
        audit_event("sign_out", &ada.id, "ok")
    );
    assert_eq!(
        event(&log, &after),
        audit_event("refresh", "", "invalid_refresh_token")
    );
}
