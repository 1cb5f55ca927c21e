//! Expiry and scheduling with a clock of the test, without waiting.

use std::time::Duration;

use postern_harness::public_api::{text, welcome};
use postern_harness::{Person, PublicApi, Standalone, json};

const MINUTE: Duration = Duration::from_secs(60);

/// What begins at the first minute; each person has one sign-in.
struct Begun {
    /// Signs in and stays.
    ada: Person,
    /// Signs out at once.
    bob: Person,
    /// Uses a refresh token twice: the first one, and its successor.
    eve: [String; 2],
    /// Temporary tokens that are exchanged before and after their time.
    temporary: [String; 2],
    /// Locations of notifications: one that is scheduled, and one that expires before.
    notifications: [String; 2],
}

async fn begin(postern: &Standalone) -> Begun {
    let surface = postern.surface();
    let (ada, bob) = (surface.register().await, surface.register().await);
    let me = ada.client.fetch("/auth/me", 200).await;
    assert_eq!(me.string("/expiresAt"), text(&ada.tokens, "expiresAt"));
    let refresh = json!({ "refreshToken": text(&bob.tokens, "refreshToken") });
    let _ = surface.client().posted("/auth/logout", &refresh, 204).await;
    let eve = text(&surface.register().await.tokens, "refreshToken").to_owned();
    let renewed = surface.refresh(&eve).await.expect(200);
    let _ = surface.refresh(&eve).await.expect(200);
    let mut notifications = Vec::new();
    for (send_at, expires_at) in [(60, 200), (80, 90)] {
        let mut body = welcome(&ada.id);
        body["sendAt"] = json!(postern.clock().now().plus(send_at * MINUTE));
        body["expiresAt"] = json!(postern.clock().now().plus(expires_at * MINUTE));
        let created = ada.client.posted("/notifications", &body, 201).await;
        notifications.push(created.header("location"));
    }
    let waiting = ada.client.fetch(&notifications[0], 200).await;
    let state = [waiting.string("/status"), waiting.string("/waitReason")];
    assert_eq!(state, ["SCHEDULED", "SCHEDULED"]);
    Begun {
        eve: [eve, renewed.string("/refreshToken")],
        temporary: [
            surface.social_token("ada").await,
            surface.social_token("grace").await,
        ],
        notifications: notifications.try_into().expect("two"),
        ada,
        bob,
    }
}

/// A temporary token is used once, within five minutes, from the body alone.
async fn temporary_tokens(postern: &Standalone, [early, late]: &[String; 2]) {
    let surface = postern.surface();
    let path = format!("/auth/tokens/exchange?temporaryToken={early}");
    let in_url = surface.client().post_json(&path, &json!({})).await;
    in_url.problem(400, "invalid_request");
    let user = surface.exchange(early).await.expect(200);
    assert_eq!(user.string("/user/provider"), "development");
    postern.clock().advance(2 * MINUTE);
    let mut details = Vec::new();
    for token in [late, early, "never-given-out"] {
        let refused = surface.exchange(token).await;
        let refused = refused.problem(401, "invalid_temporary_token");
        details.push(refused.body["detail"].clone());
    }
    assert!(details.iter().all(|it| *it == details[0]), "{details:?}");
}

/// A token is valid until it expires, whoever has signed out; then it is refreshed.
async fn access_tokens(postern: &Standalone, begun: &Begun) -> Person {
    let surface = postern.surface();
    for person in [&begun.ada, &begun.bob] {
        let _ = person.client.fetch("/auth/me", 200).await;
    }
    postern.clock().advance(2 * MINUTE);
    for person in [&begun.ada, &begun.bob] {
        let refused = person.client.denied("/auth/me", 401, "token_expired").await;
        let challenge = &refused.headers["www-authenticate"];
        assert_eq!(challenge, "Bearer error=\"invalid_token\"");
    }
    let token = text(&begun.ada.tokens, "refreshToken");
    let renewed = surface.refresh(token).await.expect(200).json();
    let ada = surface.person(&begun.ada.email, renewed).await;
    assert_eq!(ada.id, begun.ada.id);
    ada
}

async fn notifications(surface: &PublicApi, ada: &Person, expiring: &str) {
    let _ = surface.mailbox().to(&ada.email).await;
    // A worker may just have it.
    assert_eq!(ada.client.settled(expiring).await["status"], "EXPIRED");
    assert_eq!(surface.mailbox().list(&ada.email, 0).await.len(), 1);
}

#[tokio::test]
async fn tokens_and_schedules_end_by_the_clock() {
    let postern = Standalone::start_with_manual_clock().await;
    let (surface, clock) = (postern.surface(), postern.clock());
    let begun = begin(&postern).await;
    clock.advance(MINUTE);
    // A token that is used again after the grace period ends its sign-in.
    for token in &begun.eve {
        let refused = surface.refresh(token).await;
        refused.problem(401, "invalid_refresh_token");
    }
    clock.advance(3 * MINUTE);
    temporary_tokens(&postern, &begun.temporary).await;
    clock.advance(53 * MINUTE);
    let ada = access_tokens(&postern, &begun).await;
    clock.advance(39 * MINUTE);
    let [_, expiring] = &begun.notifications;
    notifications(surface, &ada, expiring).await;
    postern.stop().await;
}
