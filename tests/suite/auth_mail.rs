//! The time from a request of a reset code to the mail server's 250, while other mail waits.
//! `POSTERN_TEST_LOW` sets how much waits (default 5000).

use std::collections::BTreeMap;
use std::time::Duration;

use postern_core::Clock;
use postern_store::cache::testing::redis;
use postern_store::database::testing::postgres;
use postern_tests::PublicApi;
use postern_tests::http_body::json;
use postern_tests::note;
use postern_tests::split::{Changes, Split};
use postern_tests::surface::PASSWORD;
use sqlx::{Connection, PgConnection};

use crate::notify_order::{env_number, insert_backlog};

/// The lane of mails: first attempts of LOW.
const LOW_MAIL_LANE: i16 = 6;
const PEOPLE: usize = 100;
const PER_SECOND: u64 = 20;
/// The figure is one second; unoptimized programs on a busy machine get more.
const MAX_P99: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });

/// When the mail server has accepted the codes, by their recipients.
const ACCEPTED: &str = "SELECT recipient, at FROM notify_record JOIN notify_result USING (id) \
    WHERE template = 'account-reset' AND provider IS NOT NULL AND code IS NULL";
const WAITING: &str = "SELECT count(*) FROM notify_queue";

#[tokio::test]
async fn reset_code_overtakes_waiting_mail() {
    let low = env_number("POSTERN_TEST_LOW", 5_000);
    let (auth, notify, cache) = (postgres().await, postgres().await, redis().await);
    let urls = [&auth.url, &notify.url, &cache.url].map(Clone::clone);
    let split = Split::start_with(Changes {
        stores: Some(urls),
        ..Changes::default()
    })
    .await;
    let base = format!("http://127.0.0.1:{}", split.auth_port());
    let auth = PublicApi::of_upstream(&base, split.surface().environment().clone());
    let emails: Vec<String> = (0..PEOPLE)
        .map(|number| format!("p{number}@example.com"))
        .collect();
    for email in &emails {
        let body = json!({"email": email, "password": PASSWORD});
        let _ = auth.client().posted("/auth/register", &body, 201).await;
    }
    insert_backlog(&notify.url, LOW_MAIL_LANE, low).await;
    let mut tick = tokio::time::interval(Duration::from_millis(1000 / PER_SECOND));
    let mut asked = BTreeMap::new();
    for email in &emails {
        tick.tick().await;
        asked.insert(json!({"email": email}).to_string(), Clock::system().now());
        let body = json!({"email": email});
        let _ = auth
            .client()
            .posted("/auth/password/forgot", &body, 204)
            .await;
    }
    let mut database = PgConnection::connect(&notify.url)
        .await
        .expect("PostgreSQL answers");
    let began = tokio::time::Instant::now();
    let accepted: Vec<(String, i64)> = loop {
        let found = sqlx::query_as(ACCEPTED).fetch_all(&mut database).await;
        let found: Vec<_> = found.expect("rows");
        if found.len() >= PEOPLE {
            break found;
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{} of {PEOPLE}",
            found.len()
        );
        tick.tick().await;
    };
    let (waiting,): (i64,) = sqlx::query_as(WAITING)
        .fetch_one(&mut database)
        .await
        .expect("a row");
    let mut took: Vec<i64> = accepted.iter().map(|(to, at)| at - asked[to].0).collect();
    took.sort_unstable();
    let (median, p99) = (took[PEOPLE / 2], took[PEOPLE * 99 / 100]);
    note(&format!(
        "auth: from POST /auth/password/forgot to the mail server's 250, {PER_SECOND}/s with {low} LOW waiting \
         ({waiting} at the end): median {median} ms, p99 {p99} ms"
    ));
    assert!(
        waiting > 0,
        "POSTERN_TEST_LOW is too small for this machine"
    );
    assert!(
        u128::try_from(p99).is_ok_and(|p99| p99 < MAX_P99.as_millis()),
        "{took:?}"
    );
    split.stop().await;
}
