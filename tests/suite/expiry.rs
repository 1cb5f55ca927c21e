//! Expiry and scheduling with a manual clock, without waiting.

use std::time::Duration;

use postern_tests::Postern;
use postern_tests::http_body::json;
use postern_tests::surface::{text, welcome};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn access_token_expires_and_is_refreshed() {
    let postern = Postern::start_with_manual_clock().await;
    let surface = postern.surface();
    let ada = surface.register().await;
    let expires_at = text(&ada.tokens, "expiresAt").to_owned();
    assert_eq!(
        ada.client.fetch("/auth/me", 200).await.string("/expiresAt"),
        expires_at
    );
    postern.clock().advance(59 * MINUTE);
    let _ = ada.client.fetch("/auth/me", 200).await;
    postern.clock().advance(2 * MINUTE);
    let refusal = ada.client.denied("/auth/me", 401, "token_expired").await;
    assert_eq!(
        refusal.headers["www-authenticate"],
        "Bearer error=\"invalid_token\""
    );
    let token = text(&ada.tokens, "refreshToken");
    let renewed = surface.refresh(token).await.expect(200).json();
    assert_eq!(surface.person(&ada.email, renewed).await.id, ada.id);
    postern.stop().await;
}

#[tokio::test]
async fn temporary_token_expires_after_five_minutes() {
    let postern = Postern::start_with_manual_clock().await;
    let surface = postern.surface();
    let early = surface.social_token("ada").await;
    let late = surface.social_token("grace").await;
    postern.clock().advance(4 * MINUTE);
    let _ = surface.exchange(&early).await.expect(200);
    postern.clock().advance(2 * MINUTE);
    let expired = surface
        .exchange(&late)
        .await
        .problem(401, "invalid_temporary_token");
    let unknown = surface
        .exchange("never-given-out")
        .await
        .problem(401, "invalid_temporary_token");
    let used = surface
        .exchange(&early)
        .await
        .problem(401, "invalid_temporary_token");
    for other in [unknown, used] {
        assert_eq!(
            other.body["detail"], expired.body["detail"],
            "a client cannot tell them apart"
        );
    }
    postern.stop().await;
}

#[tokio::test]
async fn reused_refresh_token_ends_its_sign_in_after_the_grace() {
    let postern = Postern::start_with_manual_clock().await;
    let surface = postern.surface();
    let ada = surface.register().await;
    let first = text(&ada.tokens, "refreshToken").to_owned();
    let renewed = surface.refresh(&first).await.expect(200).json();
    let _ = surface.refresh(&first).await.expect(200);
    postern.clock().advance(MINUTE);
    let _ = surface
        .refresh(&first)
        .await
        .problem(401, "invalid_refresh_token");
    let _ = surface
        .refresh(text(&renewed, "refreshToken"))
        .await
        .problem(401, "invalid_refresh_token");
    postern.stop().await;
}

#[tokio::test]
async fn scheduled_notification_waits_and_expired_one_is_not_sent() {
    let postern = Postern::start_with_manual_clock().await;
    let surface = postern.surface();
    let ada = surface.register().await;
    let mut later = welcome(&ada.id);
    later["sendAt"] = json!(postern.clock().now().plus(60 * MINUTE));
    let mut expiring = later.clone();
    expiring["expiresAt"] = json!(postern.clock().now().plus(90 * MINUTE));
    expiring["sendAt"] = json!(postern.clock().now().plus(80 * MINUTE));
    let later = ada
        .client
        .posted("/notifications", &later, 201)
        .await
        .header("location");
    let expiring = ada
        .client
        .posted("/notifications", &expiring, 201)
        .await
        .header("location");
    let waiting = ada.client.fetch(&later, 200).await;
    assert_eq!(
        (waiting.string("/status"), waiting.string("/waitReason")),
        ("SCHEDULED".into(), "SCHEDULED".into())
    );
    postern.clock().advance(100 * MINUTE);
    // The access token has expired; a new one sees the same records.
    let token = text(&ada.tokens, "refreshToken");
    let renewed = surface.refresh(token).await.expect(200).json();
    let ada = surface.person(&ada.email, renewed).await;
    let _ = surface.mailbox().to(&ada.email).await;
    // A worker may just have it.
    let status = async {
        loop {
            let view = ada.client.fetch(&expiring, 200).await;
            if view.string("/status") != "QUEUED" {
                break view.string("/status");
            }
        }
    };
    let status = tokio::time::timeout(MINUTE, status).await;
    assert_eq!(status.expect("in time"), "EXPIRED");
    assert_eq!(surface.mailbox().list(&ada.email, 0).await.len(), 1);
    postern.stop().await;
}
