//! Audit events in the database: what is stored, what is not, and for how long.

use std::time::Duration;

use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::testing::CapturedLog;
use postern_service::timeline::{TimelineQuery, TimelineSelector};
use postern_store::database::testing;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::store::{AuditQuery, AuditRow, AuditSelector, AuthStore};
use crate::telemetry::AuditDropReason;
use crate::testing::{Fixture, PASSWORD, client, client_at, email, http, register, sign_in};

/// Ends the writer, which stores all queued events first.
async fn store_events(fixture: &Fixture) {
    let writer = fixture.service.audit_trail.take_writer();
    let stop = CancellationToken::new();
    stop.cancel();
    writer.expect("not taken yet").run(stop).await;
}

async fn select(store: &AuthStore, selector: AuditSelector) -> Vec<AuditRow> {
    let query = AuditQuery {
        selector,
        since: Timestamp(0),
        until: Timestamp(i64::MAX),
        after: None,
        limit: 100,
    };
    store.audit_rows(&query).await.expect("the store answers")
}

#[tokio::test]
async fn throttled_attempt_is_stored_with_its_reason() {
    let fixture = Fixture::with_config("[abuse]\naccount = 1\n").await;
    for _ in 0..4 {
        let _wrong = fixture.sign_in_at("192.0.2.1", "wrong-1").await;
    }
    store_events(&fixture).await;
    let rows = select(&fixture.service.store, AuditSelector::All).await;
    let is_throttled = |row: &&AuditRow| row.reason.as_deref() == Some("throttled");
    let throttled: Vec<_> = rows.iter().filter(is_throttled).collect();
    assert!(!throttled.is_empty() && throttled.len() < 4, "{rows:?}");
    // The response is that of a wrong password.
    assert!(
        throttled
            .iter()
            .all(|row| row.outcome == "invalid_credentials")
    );
}

/// Rows of path, body, audited operation and outcome.
const ENDPOINTS: &str = r#"
/auth/login {"email":"a@b.test","password":"Password-1"} sign_in invalid_credentials
/auth/challenge {"session":"x","code":"1"} sign_in invalid_challenge
/auth/register {"email":"a@b.test","password":"short"} register weak_password
/auth/register/confirm {"session":"x","code":"1","password":"Password-1"} register invalid_challenge
/auth/tokens/refresh {"refreshToken":"x"} refresh invalid_refresh_token
/api/session {"refreshToken":"x"} refresh invalid_refresh_token
/auth/tokens/exchange {"temporaryToken":"x"} exchange invalid_temporary_token
/auth/password/reset {"email":"a@b.test","code":"1","newPassword":"Password-1"} password_reset invalid_code
/auth/logout {"refreshToken":"x"} sign_out ok
/auth/social/login/callback - social_sign_in invalid_request
"#;

#[tokio::test]
async fn each_endpoint_audits_its_operation_once() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let (log, _guard) = CapturedLog::start();
    for row in ENDPOINTS.trim().lines() {
        let [path, body, operation, outcome] = *row.split(' ').collect::<Vec<_>>() else {
            panic!("{row}");
        };
        let [operation, outcome] = [("operation", operation), ("outcome", outcome)]
            .map(|(field, value)| format!("{field}={value:?}"));
        let audited = || log.with(&["operation="]);
        let (before, of_this) = (audited(), log.with(&[&operation, &outcome]));
        let url = format!("{url}{path}");
        let request = match body {
            "-" => http().get(url),
            body => http().post(url).body(body),
        };
        let request = request.header("content-type", "application/json");
        request.send().await.expect("a response");
        let after = log.with(&[&operation, &outcome]);
        assert_eq!((audited(), after), (before + 1, of_this + 1), "{row}");
    }
}

#[tokio::test]
async fn database_file_contains_no_address() {
    let fixture = Fixture::new().await;
    let (client, account) = (client_at("192.0.2.77"), "Ada.Lovelace@example.com");
    let _wrong = sign_in(&fixture.service, &client, account, "wrong-password").await;
    let task = fixture
        .flows()
        .request_code(client, email("ada.lovelace@example.com"));
    task.expect("started").await.expect("no panic");
    let (store, now) = (&fixture.service.store, fixture.clock.now());
    let inserted = store.insert_registration("r", account, now, now).await;
    inserted.expect("inserted");
    store.delete_registration("r").await.expect("deleted");
    store_events(&fixture).await;
    let rows = select(store, AuditSelector::All).await;
    let operations: Vec<_> = rows.iter().map(|row| &*row.operation).collect();
    assert_eq!(operations.len(), 2, "{operations:?}");
    assert!(
        operations.contains(&"password_reset_code"),
        "{operations:?}"
    );
    let path = fixture.database.url.trim_start_matches("sqlite://");
    let files = [path.to_owned(), format!("{path}-wal")];
    let contents: Vec<u8> = files
        .iter()
        .filter_map(|file| std::fs::read(file).ok())
        .flatten()
        .collect();
    // The search finds what is stored.
    assert!(contains(&contents, b"192.0.2.0/24"));
    let hash = rows[0].email_hash.as_deref().expect("stored");
    assert!(contains(&contents, hash) && rows[1].email_hash.as_deref() == Some(hash));
    let unkeyed = Sha256::digest("ada.lovelace@example.com");
    for secret in [
        &b"lovelace"[..],
        b"Lovelace",
        b"192.0.2.77",
        b"wrong-password",
        unkeyed.as_slice(),
    ] {
        let text = String::from_utf8_lossy(secret);
        assert!(!contains(&contents, secret), "{text}");
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

fn row(number: usize, at: Timestamp) -> AuditRow {
    AuditRow {
        id: format!("row-{number}"),
        at: at.0,
        operation: "sign_in".to_owned(),
        outcome: "ok".to_owned(),
        reason: None,
        request_id: "r".to_owned(),
        subject: None,
        email_hash: None,
        network: None,
        provider: None,
    }
}

#[tokio::test]
async fn events_beyond_the_retention_are_deleted() {
    for database in testing::both().await {
        let fixture = Fixture::with(|it| {
            it.config = "[audit]\nretention = \"2h\"\n";
            it.database = Some(database);
        })
        .await;
        let (store, now) = (&fixture.service.store, fixture.clock.now());
        let rows: Vec<_> = (0..2100).map(|number| row(number, now)).collect();
        for group in rows.chunks(256) {
            store.insert_audit_rows(group).await.expect("stored");
        }
        let trail = &fixture.service.audit_trail;
        fixture.clock.advance(Duration::from_secs(2 * 3600));
        assert_eq!(trail.delete_old().await.expect("deleted"), 0);
        let later = [row(2100, now.plus(Duration::from_secs(1)))];
        store.insert_audit_rows(&later).await.expect("stored");
        fixture.clock.advance(Duration::from_millis(1));
        assert_eq!(trail.delete_old().await.expect("deleted"), 2100);
        assert_eq!(select(store, AuditSelector::All).await, later);
    }
}

#[tokio::test]
async fn events_have_the_time_of_the_database() {
    let database = testing::postgres().await;
    let ahead = Duration::from_secs(400 * 86_400);
    database.set_clock(400 * 86_400).await;
    let fixture = Fixture::with(|it| {
        it.database = Some(database);
        it.clock = Some(Clock::system());
    })
    .await;
    fixture.register(PASSWORD).await.expect("registered");
    store_events(&fixture).await;
    let at = Timestamp(select(&fixture.service.store, AuditSelector::All).await[0].at);
    assert!(
        at >= fixture.clock.now().plus(ahead - Duration::from_secs(60)),
        "{at}"
    );
    // By the clock of the database alone, it is too old.
    let present = [row(1, Clock::system().now())];
    let store = &fixture.service.store;
    store.insert_audit_rows(&present).await.expect("stored");
    let trail = &fixture.service.audit_trail;
    assert_eq!(trail.delete_old().await.expect("not deleted"), 0);
}

#[tokio::test]
async fn sign_in_does_not_depend_on_the_audit_trail() {
    let fixture = Fixture::new().await;
    fixture.register(PASSWORD).await.expect("registered");
    fixture.service.store.database().close().await;
    fixture.sign_in(PASSWORD).await.expect("signed in");
    store_events(&fixture).await;
    let metrics = &fixture.service.metrics;
    assert_eq!(metrics.audit_drops(AuditDropReason::Rejected), 2);
}

async fn operations(fixture: &Fixture, selector: TimelineSelector) -> (Vec<String>, Vec<String>) {
    let reader = &fixture.service.audit_trail.reader;
    let query = TimelineQuery::new(selector, 50);
    let timeline = reader.timeline(&query).await.expect("the store answers");
    assert!(!timeline.is_truncated);
    let events = timeline.entries.iter();
    let events = events.map(|entry| {
        format!(
            "{} {}",
            entry.event,
            entry.outcome.as_deref().unwrap_or("-")
        )
    });
    (events.collect(), timeline.subjects)
}

#[tokio::test]
async fn person_is_found_by_address_and_by_subject() {
    let fixture = Fixture::new().await;
    let tokens = fixture.register(PASSWORD).await.expect("registered");
    let eve = register(&fixture.service, &client(), "eve@example.com", PASSWORD).await;
    eve.expect("registered");
    fixture.clock.advance(Duration::from_secs(1));
    let _wrong = sign_in(&fixture.service, &client(), "ADA@example.com", "wrong-1").await;
    fixture.clock.advance(Duration::from_secs(1));
    fixture.refresh(&tokens).await.expect("refreshed");
    store_events(&fixture).await;
    let expected = ["register ok", "sign_in invalid_credentials", "refresh ok"];
    let by_email = TimelineSelector::Email(email("Ada@example.com"));
    let (events, subjects) = operations(&fixture, by_email).await;
    assert_eq!(
        (events.as_slice(), subjects.len()),
        (&expected.map(str::to_owned)[..], 1)
    );
    let by_user = TimelineSelector::User(subjects[0].clone());
    assert_eq!(operations(&fixture, by_user).await.0, expected);
    let nobody = TimelineSelector::Email(email("bob@example.com"));
    assert_eq!(operations(&fixture, nobody).await, (Vec::new(), Vec::new()));
    let (all, _) = operations(&fixture, TimelineSelector::All).await;
    assert_eq!(all.len(), 4);
}
