//! Accounts as operators list and change them on the admin listener.

use postern_core::Code;
use postern_core::testing::{CapturedLog, assert_problem};
use postern_service::admin_api::OPERATOR;
use reqwest::Method;
use serde_json::{Value, json};

use super::account_codes::NOTICE;
use super::admin::{TOKEN, call, read, serve_admin};
use crate::flows::AccountChange;
use crate::store::SocialIdentity;
use crate::testing::{ADA, Fixture, PASSWORD, client, plain, refused};

const NEW_PASSWORD: &str = "Other-Password-2";

/// Changes a user as the operator `ops`.
async fn change(url: &str, path: &str, body: &Value) -> (u16, Value) {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), (OPERATOR, "ops")];
    let path = format!("users/{path}");
    call(url, (Method::POST, &path), &headers, Some(body)).await
}

#[tokio::test]
async fn users_are_listed_by_the_beginning_of_an_address() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    let subject = fixture.add_ada().await;
    fixture
        .pool()
        .add_user("eve@example.com", PASSWORD, false)
        .await;
    for (query, expected) in [("users", 2), ("users?email=ada", 1), ("users?email=%22", 0)] {
        let (status, page) = read(&url, query).await;
        let users = page["users"].as_array().map(Vec::len);
        assert_eq!((status, users), (200, Some(expected)), "{query}: {page}");
    }
    let (_, page) = read(&url, "users?email=ada@").await;
    let (_, user) = read(&url, &format!("users/{subject}")).await;
    assert_eq!(
        (&user["groups"], user["allGroups"][0].clone()),
        (&json!([]), json!("admin"))
    );
    let ada = &page["users"][0];
    for (name, expected) in [
        ("subject", json!(subject)),
        ("email", json!(ADA)),
        ("emailVerified", json!(true)),
        ("enabled", json!(true)),
        ("status", json!("CONFIRMED")),
        ("createdAt", json!(fixture.clock.now())),
    ] {
        assert_eq!((&ada[name], &user[name]), (&expected, &expected), "{name}");
    }
    let anonymous = Fixture::without_credentials().await;
    let url = serve_admin(&anonymous).await;
    let found = read(&url, "users").await;
    assert_problem(&found, 404, "not_found", None);
    assert!(
        found.1["detail"]
            .as_str()
            .is_some_and(|it| it.contains("AWS credentials"))
    );
}

#[tokio::test]
async fn account_is_changed_and_each_change_is_audited() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    let subject = fixture.add_ada().await;
    let (log, _guard) = CapturedLog::start();
    let expect = async |name: &str, body: Value, logged: [&str; 2]| {
        let changed = change(&url, &format!("{subject}/{name}"), &body).await;
        assert_eq!(changed, (200, json!({})), "{name}");
        let [action, operation] = logged;
        let action = format!("action={action:?} target={subject:?}");
        let made = ["administrative action operator=\"ops\"", &action];
        assert_eq!(log.with(&made), 1, "{action}: {}", log.text());
        let audited = format!("operation={operation:?} subject={subject:?} outcome=\"ok\"");
        assert!(log.with(&[&audited]) > 0, "{audited}: {}", log.text());
    };
    let tokens = fixture.sign_in(PASSWORD).await.expect("signed in");
    expect("disable", json!({}), ["user.disable", "account_disable"]).await;
    assert!(fixture.sign_in(PASSWORD).await.is_err() && fixture.refresh(&tokens).await.is_err());
    expect("enable", json!({}), ["user.enable", "account_enable"]).await;
    assert!(fixture.refresh(&tokens).await.is_err(), "signed out");
    let tokens = fixture.sign_in(PASSWORD).await.expect("signed in");
    let group = json!({ "group": "admin" });
    expect(
        "add-to-group",
        group.clone(),
        ["user.add_to_group", "group_change"],
    )
    .await;
    let (_, user) = read(&url, &format!("users/{subject}")).await;
    assert_eq!(user["groups"], json!(["admin"]));
    expect(
        "remove-from-group",
        group,
        ["user.remove_from_group", "group_change"],
    )
    .await;
    assert!(
        fixture.refresh(&tokens).await.is_ok(),
        "groups end no sign-in"
    );
    let tokens = fixture.sign_in(PASSWORD).await.expect("signed in");
    expect(
        "sign-out",
        json!({}),
        ["user.sign_out", "sign_out_everywhere"],
    )
    .await;
    assert!(fixture.refresh(&tokens).await.is_err());
    let new = json!({ "newPassword": NEW_PASSWORD });
    expect("set-password", new, ["user.set_password", "password_set"]).await;
    assert!(fixture.sign_in(PASSWORD).await.is_err());
    fixture.sign_in(NEW_PASSWORD).await.expect("signed in");
    expect(
        "reset-password",
        json!({}),
        ["user.reset_password", "password_set"],
    )
    .await;
    assert!(fixture.sign_in(NEW_PASSWORD).await.is_err());
    while fixture.messages(ADA, "account-reset").is_empty() {
        tokio::task::yield_now().await;
    }
    for secret in [ADA, NEW_PASSWORD] {
        assert_eq!(log.with(&[secret]), 0, "{}", log.text());
    }
}

/// The answer is an error, because challenges may go on.
#[tokio::test]
async fn account_loses_its_sign_ins_and_links_without_the_cache() {
    let set_password = AccountChange::SetPassword(NEW_PASSWORD.into());
    for (change, is_password) in [(AccountChange::SignOut, false), (set_password, true)] {
        let fixture = Fixture::with_cache("redis://127.0.0.1:1/0").await;
        let subject = fixture.add_ada().await;
        let tokens = fixture.sign_in(PASSWORD).await.expect("signed in");
        let store = &fixture.service.store;
        let identity = SocialIdentity {
            user_id: subject.clone(),
            username: None,
            profile_saved: true,
        };
        let linked = store.insert_social_identity(("issuer", "ada"), &identity);
        linked.await.expect("linked");
        let flows = fixture.flows();
        let changed = plain(flows.change_account(&client(), &subject, &change).await);
        refused(changed, Code::Unavailable);
        // The development pool also revokes when a password is set.
        assert_eq!(fixture.count("AdminUserGlobalSignOut"), 1);
        fixture.refresh(&tokens).await.expect_err("revoked");
        let is_linked = store.has_social_identity(&subject).await;
        assert_eq!(is_linked.expect("read"), !is_password);
        while is_password && fixture.messages(ADA, NOTICE).is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn invalid_change_of_an_account_is_refused() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    let subject = fixture.add_ada().await;
    let group = json!({ "group": "nobody" });
    let weak = json!({ "newPassword": "weak" });
    for (path, body, status, code, pointer) in [
        ("disable", json!({}), 404, "not_found", None),
        ("SUBJECT/delete", json!({}), 404, "not_found", None),
        (
            "SUBJECT/add-to-group",
            json!({}),
            400,
            "invalid_request",
            Some("/group"),
        ),
        (
            "SUBJECT/add-to-group",
            group,
            422,
            "validation_failed",
            Some("/group"),
        ),
        (
            "SUBJECT/set-password",
            weak,
            422,
            "weak_password",
            Some("/newPassword"),
        ),
    ] {
        let path = match path {
            "disable" => format!("{}/disable", uuid::Uuid::nil()),
            path => path.replace("SUBJECT", &subject),
        };
        let found = change(&url, &path, &body).await;
        assert_problem(&found, status, code, pointer);
    }
}
