//! Shutdown while a provider is slow: calls in progress are completed by the process that started
//! them.

use std::pin::pin;
use std::time::{Duration, Instant};

use postern_harness::MailServer;
use postern_store::database::testing::postgres;
use sqlx::{Connection, Executor, PgConnection};

use crate::notify_cluster::NotifyCluster;
use crate::notify_faults::MAX_TAKEOVER_TIME;
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
    let _id = cluster.accept(&other, "k", "HIGH").await;
    cluster.wait_for_calls(1, MAX_TAKEOVER_TIME).await;
    for calls in 2.. {
        if began.elapsed() > Duration::from_secs(28) {
            break;
        }
        other.running.kill().await;
        other = cluster.replica().await;
        cluster.wait_for_calls(calls, MAX_TAKEOVER_TIME).await;
    }
    assert_eq!(cluster.status(&other, &id).await["status"], "QUEUED");
    mail.confirm(true);
    assert_eq!(stopping.running.wait().await.status, Some(0));
    cluster.settled(&other, &id, "SENT").await;
    let view = cluster.status(&other, &id).await;
    assert_eq!(view["attempts"], 1, "{view}");
    assert_eq!(mail.received(), 1);
    cluster.provider.resume_responses();
    other.stop().await;
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

/// Returns the result of a query that counts.
async fn count(asks: &mut PgConnection, query: &'static str) -> i64 {
    let counted = sqlx::query_scalar(query).fetch_one(asks).await;
    counted.expect("the query succeeds")
}

async fn execute(asks: &mut PgConnection, statement: &'static str) {
    asks.execute(statement).await.expect("it is executed");
}

#[tokio::test]
async fn claim_in_progress_at_the_stop_is_returned() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, "").await;
    drop(cluster.replica().await);
    insert_backlog(&database.url, CRITICAL_LANE, 5).await;
    let other = PgConnection::connect(&database.url).await;
    let mut other = other.expect("connects");
    execute(&mut other, HELD_CLAIMS).await;
    let replica = cluster.replica().await;
    while count(&mut other, WAITING_CLAIMS).await == 0 {
        tokio::task::yield_now().await;
    }
    replica.running.signal("TERM").await;
    let mut stopped = pin!(replica.running.wait());
    let too_early = tokio::time::timeout(Duration::from_secs(1), &mut stopped).await;
    assert!(too_early.is_err(), "it waits for the claim");
    execute(&mut other, "SELECT pg_advisory_unlock(1)").await;
    assert_eq!(stopped.await.status, Some(0));
    while count(&mut other, CLAIMS).await > 0 {
        tokio::task::yield_now().await;
    }
    let untouched = "SELECT count(*) FROM notify_queue WHERE worker IS NULL AND attempt = 0";
    let untouched = count(&mut other, untouched).await;
    assert_eq!((untouched, cluster.provider.calls().len()), (5, 0));
}
