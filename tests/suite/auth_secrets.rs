//! Secrets are in no log, URL query or header, except for the redirect whose fragment contains the
//! temporary token. The audit log records each operation with its result.

use postern_harness::json;
use postern_harness::public_api::{PASSWORD, text};
use postern_harness::{Answer, sensitive};
use serde_json::Value;

use crate::auth_cluster::{AuthCluster, Changes};

/// Returns the audit event of a request.
#[track_caller]
fn event(log: &str, answer: &Answer) -> [String; 3] {
    let id = answer.header("x-request-id");
    let lines = log.lines().filter_map(|line| line.parse::<Value>().ok());
    let is_audit = |line: &Value| line["target"] == "postern_auth::audit";
    let mut events = lines.filter(|line| is_audit(line) && line["request_id"] == id);
    let event = events.next();
    let event = event.unwrap_or_else(|| panic!("{}: no event in {log}", answer.asked));
    ["operation", "subject", "outcome"].map(|name| text(&event, name).to_owned())
}

#[tokio::test]
async fn audit_log_has_every_operation_and_no_secret() {
    let cluster = AuthCluster::start().await;
    let changes = Changes {
        filter: Some("trace"),
        ..Changes::default()
    };
    let replica = cluster.replica(&changes).await;
    let environment = cluster.surface.environment().iter();
    let is_secret = |name: &str| name.ends_with("SECRET") || name.ends_with("PASSWORD");
    for (_, secret) in environment.filter(|(name, _)| is_secret(name)) {
        sensitive::record("secret", secret);
    }
    let ada = replica.surface.register().await;
    let login = |password: &str| json!({"email": ada.email, "password": password});
    let (right, wrong) = (login(PASSWORD), login("a wrong password of some length"));
    let signed_in = replica.post("/auth/login", &right).await.expect(200);
    let refused = replica.post("/auth/login", &wrong).await.expect(401);
    let tokens = signed_in.json();
    let refreshed = replica.refresh(&tokens).await.expect(200);
    let body = json!({"refreshToken": text(&tokens, "refreshToken")});
    let signed_out = replica.post("/auth/logout", &body).await.expect(204);
    let after = replica.refresh(&refreshed.json()).await.expect(401);
    let token = replica.surface.social_token("ada").await;
    let exchanged = replica.surface.exchange(&token).await.expect(200);
    for (name, value) in &exchanged.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        assert!(!value.contains(&token), "{name}");
    }
    let forgot = json!({"email": ada.email});
    let forgot = replica.post("/auth/password/forgot", &forgot).await;
    let _ = forgot.expect(204);
    let log = replica.running.stop("TERM").await.stderr;
    for (answer, expected) in [
        (&signed_in, ["sign_in", &ada.id, "ok"]),
        (&refused, ["sign_in", "", "invalid_credentials"]),
        (&refreshed, ["refresh", &ada.id, "ok"]),
        (&signed_out, ["sign_out", &ada.id, "ok"]),
        (&after, ["refresh", "", "invalid_refresh_token"]),
    ] {
        assert_eq!(event(&log, answer), expected, "{}", answer.asked);
    }
    assert!(log.lines().count() > 100, "the log is on: {log}");
    // Part of a secret is searched for as well.
    let sets = [
        &ada.tokens,
        &tokens,
        &refreshed.json(),
        &exchanged.json()["tokens"],
    ];
    let names = ["accessToken", "idToken", "refreshToken"];
    let secrets = sets
        .iter()
        .flat_map(|set| names.map(|name| text(set, name)));
    let others = [&*token, PASSWORD, &*ada.email, text(&wrong, "password")];
    for secret in secrets.chain(others) {
        let part = &secret[secret.len() - secret.len().min(20)..];
        assert!(!log.contains(part), "{part} of {secret} was logged");
    }
}
