//! Every endpoint that completes an operation is audited.

use serde_json::json;

use crate::telemetry::Operation;
use crate::testing::{ADA, Fixture, PASSWORD, http};

#[tokio::test]
async fn each_endpoint_counts_one_audited_operation() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let (email, password, weak) = (ADA, PASSWORD, "short");
    let rows = [
        (
            "/auth/login",
            json!({ "email": email, "password": password }),
            (Operation::SignIn, "invalid_credentials"),
        ),
        (
            "/auth/challenge",
            json!({ "session": "x", "code": "1" }),
            (Operation::SignIn, "invalid_challenge"),
        ),
        (
            "/auth/register",
            json!({ "email": email, "password": weak }),
            (Operation::Register, "weak_password"),
        ),
        (
            "/auth/register/confirm",
            json!({ "session": "x", "code": "1", "password": password }),
            (Operation::Register, "invalid_challenge"),
        ),
        (
            "/auth/tokens/refresh",
            json!({ "refreshToken": "x" }),
            (Operation::Refresh, "invalid_refresh_token"),
        ),
        (
            "/api/session",
            json!({ "refreshToken": "x" }),
            (Operation::Refresh, "invalid_refresh_token"),
        ),
        (
            "/auth/tokens/exchange",
            json!({ "temporaryToken": "x" }),
            (Operation::Exchange, "invalid_temporary_token"),
        ),
        (
            "/auth/password/reset",
            json!({ "email": email, "code": "1", "newPassword": password }),
            (Operation::PasswordReset, "invalid_code"),
        ),
        (
            "/auth/logout",
            json!({ "refreshToken": "x" }),
            (Operation::Logout, "ok"),
        ),
    ];
    let metrics = &fixture.service.metrics;
    for (path, body, (operation, outcome)) in rows {
        let before = metrics.operations(operation, outcome);
        let request = http().post(format!("{url}{path}")).json(&body);
        request.send().await.expect("a response");
        assert_eq!(metrics.operations(operation, outcome), before + 1, "{path}");
    }
    let callback = http().get(format!("{url}/auth/social/login/callback"));
    callback.send().await.expect("a response");
    assert_eq!(
        metrics.operations(Operation::SocialSignIn, "invalid_request"),
        1
    );
}
