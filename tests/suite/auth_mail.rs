//! The time from a request of a reset code to the mail server's 250, while other mail waits.
//! `POSTERN_TEST_LOW` sets how much waits (default 5000).

use std::collections::BTreeMap;
use std::time::Duration;

use postern_core::Clock;
use postern_harness::public_api::credentials;
use postern_harness::{Changes, Installation, PublicApi, json, note};
use postern_store::cache::testing::redis;
use postern_store::database::testing::postgres;
use sqlx::{Connection, PgConnection};

use crate::notify_order::{env_number, insert_backlog};

/// The lane of mails: first attempts of LOW.
const LOW_MAIL_LANE: i16 = 6;
const PEOPLE: usize = 100;
const PER_SECOND: u64 = 20;
/// Mails that may be on their way to the server when a code is accepted: 64 when its time is taken, and as many until its
/// row is committed.
const CONCURRENCY: i64 = 2 * 64;
/// The time of optimised programs. Others are judged by the order of the mails, which no busy machine changes.
const MAX_P99: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(180);

/// When the mail server has accepted the codes, by their recipients.
const ACCEPTED: &str = "SELECT recipient, at FROM notify_record JOIN notify_result USING (id) \
    WHERE template = 'account-reset' AND provider IS NOT NULL AND code IS NULL";
/// The highest number of other mails that were accepted between a code's acceptance by the notification service and by
/// the mail server.
const OVERTAKEN_BY: &str = "WITH sent AS MATERIALIZED (SELECT template, created_at, at \
        FROM notify_record JOIN notify_result USING (id) WHERE provider IS NOT NULL AND code IS NULL) \
    SELECT max((SELECT count(*) FROM sent other WHERE other.template = 'welcome' AND other.at > mine.created_at \
        AND other.at < mine.at)) FROM sent mine WHERE template = 'account-reset'";
const WAITING: &str = "SELECT count(*) FROM notify_queue";

#[tokio::test]
async fn reset_code_overtakes_waiting_mail() {
    let low = env_number("POSTERN_TEST_LOW", 5_000);
    let (auth, notify, cache) = (postgres().await, postgres().await, redis().await);
    let urls = [&auth.url, &notify.url, &cache.url].map(Clone::clone);
    let split = Installation::start_with(Changes {
        stores: Some(urls),
        ..Changes::default()
    })
    .await;
    let base = format!("http://127.0.0.1:{}", split.auth_port());
    let auth = PublicApi::of_upstream(&base, split.surface().environment().clone());
    let emails: [_; PEOPLE] = std::array::from_fn(|number| format!("p{number}@example.com"));
    for email in &emails {
        let body = credentials(email);
        let _ = auth.client().posted("/auth/register", &body, 201).await;
    }
    insert_backlog(&notify.url, LOW_MAIL_LANE, low).await;
    let mut tick = tokio::time::interval(Duration::from_millis(1000 / PER_SECOND));
    let mut asked = BTreeMap::new();
    for email in &emails {
        tick.tick().await;
        let (body, path) = (json!({"email": email}), "/auth/password/forgot");
        asked.insert(body.to_string(), Clock::system().now());
        let _ = auth.client().posted(path, &body, 204).await;
    }
    let database = PgConnection::connect(&notify.url).await;
    let mut database = database.expect("PostgreSQL answers");
    let accepted = all_accepted(&mut database).await;
    let waiting = number(&mut database, WAITING).await;
    let mut took: Vec<i64> = accepted.iter().map(|(to, at)| at - asked[to].0).collect();
    took.sort_unstable();
    let overtaken = number(&mut database, OVERTAKEN_BY).await;
    let (median, p99) = (took[PEOPLE / 2], took[PEOPLE * 99 / 100]);
    note(&format!(
        "auth: from POST /auth/password/forgot to the mail server's 250, {PER_SECOND}/s with {low} LOW waiting \
         ({waiting} at the end, at most {overtaken} sent between a code and its acceptance): median {median} ms, p99 {p99} ms"
    ));
    assert!(waiting > 0, "POSTERN_TEST_LOW is too small");
    assert!(
        overtaken <= CONCURRENCY,
        "{overtaken} LOW mails were sent between a code and its acceptance"
    );
    assert!(
        cfg!(debug_assertions) || u128::try_from(p99).is_ok_and(|p99| p99 < MAX_P99.as_millis()),
        "{took:?}"
    );
    split.stop().await;
}

/// Returns the result of a query.
async fn number(database: &mut PgConnection, query: &'static str) -> i64 {
    let number = sqlx::query_scalar(query).fetch_one(database).await;
    number.expect("a number")
}

/// Waits until the mail server has accepted the codes of all people.
async fn all_accepted(database: &mut PgConnection) -> Vec<(String, i64)> {
    let began = tokio::time::Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        let found = sqlx::query_as(ACCEPTED).fetch_all(&mut *database).await;
        let found: Vec<_> = found.expect("rows");
        if found.len() >= PEOPLE {
            return found;
        }
        assert!(began.elapsed() < MAX_WAIT, "{} of {PEOPLE}", found.len());
        tick.tick().await;
    }
}
