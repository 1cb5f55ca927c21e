//! PostgreSQL with a standby, and behind PgBouncer.
use postern_store::database::testing::postgres;
use sqlx::{Connection, Executor, PgConnection};

use crate::auth_cluster::{AuthCluster, Changes};
use crate::notify_cluster::{NotifyCluster, UNKNOWN_ID};
use postern_harness::stores::{OwnPostgres, PgBouncer, port};

const SETTINGS: &str = "[queue]\nsms_permits = 16";

#[tokio::test]
async fn promoted_standby_is_used_without_a_restart() {
    let primary = OwnPostgres::start().await;
    let standby = primary.standby().await;
    // The standby is listed first: it answers, but accepts no writes.
    let ports = [&standby, &primary].map(|server| port(server.url()));
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]);
    let url = format!("postgres://postern@{hosts}/postgres?target_session_attrs=read-write");
    let cluster = NotifyCluster::over(&url, SETTINGS).await;
    let replica = cluster.replica().await;
    cluster.deliver(&replica, "k0").await;
    primary.kill().await;
    cluster.wait_until_not_ready(&replica, "database").await;
    let operator = PgConnection::connect(standby.url()).await;
    let mut operator = operator.expect("the standby answers");
    let promoted = operator.execute("SELECT pg_promote()").await;
    promoted.expect("promoted");
    cluster.deliver_after_recovery(&replica, "k1").await;
    replica.stop().await;
    standby.stop().await;
}

#[tokio::test]
async fn pgbouncer_in_session_mode_works() {
    let database = postgres().await;
    let pooler = PgBouncer::start(&database.url, "session").await;
    let cluster = NotifyCluster::over(&pooler.url(&database.url), SETTINGS).await;
    let (one, other) = (cluster.replica().await, cluster.replica().await);
    for number in 0..20 {
        let replica = if number % 2 == 0 { &one } else { &other };
        cluster.deliver(replica, &format!("k{number}")).await;
    }
    for replica in [one, other] {
        replica.stop().await;
    }
}

#[tokio::test]
async fn auth_over_pgbouncer_in_session_mode_signs_in() {
    let database = postgres().await;
    let pooler = PgBouncer::start(&database.url, "session").await;
    let cluster = AuthCluster::start().await;
    let changes = Changes {
        database: Some(pooler.url(&database.url)),
        ..Changes::default()
    };
    let replica = cluster.replica(&changes).await;
    for _ in 0..3 {
        let token = replica.surface.social_token("ada").await;
        let signed_in = replica.surface.exchange(&token).await;
        let signed_in = signed_in.expect(200).json();
        let renewed = replica.refresh(&signed_in["tokens"]).await;
        let _token = renewed.expect(200).string("/accessToken");
    }
    let _ = replica.running.stop("TERM").await;
}

#[tokio::test]
async fn pgbouncer_with_shared_sessions_is_rejected() {
    let database = postgres().await;
    for mode in ["transaction", "statement"] {
        let pooler = PgBouncer::start(&database.url, mode).await;
        let cluster = NotifyCluster::over(&pooler.url(&database.url), SETTINGS).await;
        let ended = cluster.tool(&["show", UNKNOWN_ID]).await;
        let lines = ended.expect(64, 1);
        let is_told = lines[0].contains("pool_mode = session");
        assert!(is_told, "{mode}: {lines:?}");
    }
}
