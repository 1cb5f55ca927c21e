//! Shutdown while a provider is slow: calls in progress are completed by the process that started
//! them.

use std::pin::pin;
use std::time::{Duration, Instant};

use postern_store::database::testing::postgres;
use postern_tests::MailServer;
use sqlx::{Connection, Executor, PgConnection};

use crate::notify_cluster::NotifyCluster;
use crate::notify_kills::MAX_TAKEOVER_TIME;
use crate::notify_order::{CRITICAL_LANE, insert_backlog};

fn settings(mail: &MailServer) -> String {
    format!(
        "[[provider]]\nname = 'slow'\nchannel = 'email'\nkind = 'smtp'\nhost = '127.0.0.1'\nport = {}\ntls = 'none'\n\
         from = 'postern@example.org'",
        mail.port
    )
}

/// Takes half a minute: a worker is killed with a text message claimed, and another takes over
/// about ten seconds later, while the stopping process keeps its mail and its lease.
#[tokio::test]
async fn stop_waits_for_the_slowest_call_without_repetition() {
    let database = postgres().await;
    let mail = MailServer::start().await;
    mail.confirm(false);
    let cluster = NotifyCluster::over(&database.url, &settings(&mail)).await;
    let stopping = cluster.replica().await;
    let id = cluster.post_mail(&stopping, "ada@example.com").await;
    mail.wait_for(1).await;
    stopping.running.signal("TERM").await;
    let began = Instant::now();
    cluster.provider.pause_responses();
    let mut other = cluster.replica().await;
    cluster
        .try_post(&other.url, "k", "Ada", "HIGH")
        .await
        .expect("accepted");
    cluster
        .provider
        .until(MAX_TAKEOVER_TIME, |calls| calls.len() == 1)
        .await;
    for calls in 2.. {
        if began.elapsed() > Duration::from_secs(28) {
            break;
        }
        other.running.kill().await;
        other = cluster.replica().await;
        cluster
            .provider
            .until(MAX_TAKEOVER_TIME, |known| known.len() == calls)
            .await;
    }
    assert_eq!(cluster.status(&other.url, &id).await["status"], "QUEUED");
    mail.confirm(true);
    assert_eq!(stopping.running.wait().await.status, Some(0));
    cluster.settled(&other, &id, "SENT").await;
    let view = cluster.status(&other.url, &id).await;
    assert_eq!(
        (&view["attempts"], mail.received()),
        (&1.into(), 1),
        "{view}"
    );
    cluster.provider.resume_responses();
    assert_eq!(other.running.stop("TERM").await.status, Some(0));
}

/// A trigger that makes claims wait for a lock of the executing session.
const HELD_CLAIMS: &str = "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
    CREATE TRIGGER waits BEFORE UPDATE ON notify_queue FOR EACH ROW WHEN (NEW.worker IS NOT NULL) EXECUTE FUNCTION waits();
    SELECT pg_advisory_lock(1)";

/// Counts claims in progress.
const CLAIMS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE 'UPDATE notify_queue SET worker = $2%'";

/// Counts claims that wait for the lock; others, of empty lanes, end at once.
const WAITING_CLAIMS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND wait_event = 'advisory' AND query LIKE 'UPDATE notify_queue SET worker = $2%'";

/// Waits until the number of claims fits.
async fn until_claims(asks: &mut PgConnection, query: &'static str, fits: impl Fn(i64) -> bool) {
    while !fits(
        sqlx::query_scalar(query)
            .fetch_one(&mut *asks)
            .await
            .expect("the query succeeds"),
    ) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn claim_in_progress_at_the_stop_is_returned() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, "").await;
    drop(cluster.replica().await);
    insert_backlog(&database.url, CRITICAL_LANE, 5).await;
    let mut other = PgConnection::connect(&database.url)
        .await
        .expect("connects");
    other
        .execute(HELD_CLAIMS)
        .await
        .expect("claims wait for the lock");
    let replica = cluster.replica().await;
    until_claims(&mut other, WAITING_CLAIMS, |claims| claims > 0).await;
    replica.running.signal("TERM").await;
    let mut stopped = pin!(replica.running.wait());
    let too_early = tokio::time::timeout(Duration::from_secs(1), &mut stopped).await;
    assert!(too_early.is_err(), "it waits for the claim");
    other
        .execute("SELECT pg_advisory_unlock(1)")
        .await
        .expect("the lock is released");
    assert_eq!(stopped.await.status, Some(0));
    until_claims(&mut other, CLAIMS, |claims| claims == 0).await;
    const UNTOUCHED: &str =
        "SELECT count(*) FROM notify_queue WHERE worker IS NULL AND attempt = 0";
    let untouched: i64 = sqlx::query_scalar(UNTOUCHED)
        .fetch_one(&mut other)
        .await
        .expect("the query succeeds");
    assert_eq!((untouched, cluster.provider.calls().len()), (5, 0));
}
