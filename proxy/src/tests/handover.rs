use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use postern_common::config::{Env, parse};
use postern_common::{Clock, Shutdown};
use tokio::net::TcpListener;

use super::harness::{Gateway, PATIENCE};
use super::origin::{Manner, Origin};
use crate::{App, Config, Inheritance, Listeners};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_takes_the_sockets_over_and_no_request_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("proxy.sock");
    let origin = Origin::start(Manner::Answer).await;
    let (address, extra) = (origin.address, format!("[handover]\nsocket = \"{}\"", socket.display()));
    let upstream = format!("addresses = [\"{address}\"]\n{extra}");
    let old = Gateway::before(origin, &upstream, "", super::harness::ROUTES).await;
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let front = old.address;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (done, served) = (Arc::clone(&done), Arc::clone(&served));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let answer = super::harness::fetch(front, "/open").await;
                    assert_eq!(answer.status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let path = socket.clone();
    // The old process offers its sockets once it runs.
    let offered = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, offered).await.expect("the sockets are offered");
    let inheritance = tokio::task::spawn_blocking(move || path).await.expect("a path");
    let inheritance = tokio::task::spawn_blocking(move || Inheritance::take(&inheritance).expect("sockets"));
    let (sockets, predecessor) = inheritance.await.expect("does not panic").into_parts();
    let mut sockets = sockets.0.into_iter().map(|socket| {
        socket.set_nonblocking(true).expect("a socket");
        TcpListener::from_std(socket).expect("a socket")
    });
    let listeners = Listeners { public: sockets.by_ref().take(1).collect(), admin: sockets.next() };
    assert_eq!(listeners.public[0].local_addr().expect("bound"), front);
    let origin = Origin::start(Manner::Answer).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    let new = Gateway::on(listeners, predecessor, origin, &upstream).await;
    tokio::time::timeout(PATIENCE, old.running).await.expect("the old one ends").expect("does not panic");
    let before = served.load(Ordering::Relaxed);
    while served.load(Ordering::Relaxed) < before + 20 {
        tokio::task::yield_now().await;
    }
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("no request fails");
    }
    assert!(!new.origin.seen().is_empty(), "the new process serves");
}

#[tokio::test]
async fn who_is_not_ready_does_not_take_over() {
    // Nothing listens there: no keys are found.
    let env = Env::from([
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", "http://127.0.0.1:1"),
        ("IDP_ACTOR_POOL_ID", "actors"),
        ("IDP_ACTOR_CLIENT_ID", "web"),
        ("IDP_SERVICE_POOL_ID", "services"),
        ("IDP_SERVICE_CLIENT_ID", "machines"),
    ]);
    let text = "[[listen]]\naddress = \"127.0.0.1:0\"\n[access_log]\nto = \"off\"\n";
    let config = parse("test.toml", text, |root| Config::read(root, &env)).expect("a good configuration");
    let app = App::build(config, Clock::system()).expect("builds");
    let (mut old, new) = UnixStream::pair().expect("a pair");
    let listeners = Listeners { public: Vec::new(), admin: None };
    let soon = Duration::from_millis(50);
    let refused = app.take_over_within(soon, listeners, new, Shutdown::new()).await.expect_err("not ready");
    assert!(refused.status() == 69 && refused.message().contains("keys"), "{refused}");
    let mut told = String::new();
    old.read_to_string(&mut told).expect("an end");
    assert_eq!(told, "", "the old one serves on");
}
