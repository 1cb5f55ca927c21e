//! New connections to PostgreSQL: the order of hosts, and rejections.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::testing::{Relay, TestDatabase, postgres};
use super::outage::opened;
use super::*;

/// Returns the URL of a store with these hosts instead of its own.
fn with_hosts(test: &TestDatabase, hosts: &str) -> String {
    let url = url::Url::parse(&test.url).expect("a URL");
    let port = url.port().expect("a port");
    test.url.replace(&format!("127.0.0.1:{port}"), hosts)
}

#[tokio::test]
async fn first_writable_host_is_connected_to() {
    let primary = postgres().await;
    let (silent, _) = Relay::start(&primary.url).await;
    silent.stop_forwarding();
    let url = url::Url::parse(&primary.url).expect("a URL");
    let port = url.port().expect("a port");
    // A closed port, an unresponsive server, and a server that answers.
    let hosts = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:{port}", silent.port());
    let several = with_hosts(&primary, &hosts);
    let database = open(&several).await.expect("the third answers");
    database.ping().await.expect("answers");
    assert!(database.label().contains(&hosts), "{}", database.label());
}

#[tokio::test]
async fn hosts_are_tried_in_order_at_each_connect() {
    let test = postgres().await;
    let ((first, _), (second, _)) = (Relay::start(&test.url).await, Relay::start(&test.url).await);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let options = DatabaseOptions {
        acquire_timeout: Duration::from_secs(4),
        statement_timeout: Duration::from_secs(1),
        ..DatabaseOptions::new("hosts")
    };
    let pool = opened(&with_hosts(&test, &hosts), options).await;
    let held = pool.acquire().await.expect("the first answers");
    assert!(first.accepted() > 0);
    assert_eq!(second.accepted(), 0, "the first host is enough");

    first.stop_forwarding();
    let other = pool.acquire().await.expect("the second answers");
    assert_eq!(second.accepted(), 1, "the first host is silent");

    first.recover();
    let before = first.accepted();
    pool.acquire().await.expect("the first answers again");
    assert_eq!(
        (first.accepted(), second.accepted()),
        (before + 1, 1),
        "the first host again"
    );
    drop((held, other));
}

/// Starts a server that rejects each connection with this SQLSTATE. Returns its URL.
async fn rejecting(sqlstate: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            // A message without a type begins with its length.
            let Ok(length) = client.read_u32().await else {
                continue;
            };
            let mut message = vec![0; usize::try_from(length).expect("a length") - 4];
            client.read_exact(&mut message).await.expect("a message");
            let fields = format!("SFATAL\0VFATAL\0C{sqlstate}\0Mrejected\0\0");
            let length = u32::try_from(fields.len() + 4).expect("short");
            let response = [&b"E"[..], &length.to_be_bytes(), fields.as_bytes()].concat();
            let _gone = client.write_all(&response).await;
        }
    });
    format!("postgres://ada@127.0.0.1:{port}/x?sslmode=disable")
}

#[tokio::test]
async fn sqlstate_decides_whether_connecting_is_retried() {
    let mut wrong = Vec::new();
    for (sqlstate, may_succeed_later) in [
        ("57P01", true),
        ("57P02", true),
        ("57P03", true),
        ("53300", true),
        ("08004", true),
        ("25006", true),
        ("28P01", false),
        ("28000", false),
        ("3D000", false),
    ] {
        let url = rejecting(sqlstate).await;
        let probed = Database::probe(&url, &DatabaseOptions::new("test")).await;
        match probed {
            Ok(Availability::Unavailable(reason)) if may_succeed_later => {
                assert!(reason.ends_with(": rejected"), "{reason}");
            }
            Err(exit) if !may_succeed_later => {
                assert_eq!(exit.status(), 69, "{exit}");
                assert!(exit.message().ends_with(": rejected"), "{exit}");
            }
            other => wrong.push((sqlstate, other)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
