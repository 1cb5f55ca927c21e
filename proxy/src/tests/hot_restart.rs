use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use postern_core::Clock;
use postern_core::config::{Env, parse};
use tokio::net::TcpListener;

use super::harness::{STEP_TIMEOUT, TestGateway, serve_keys};
use super::origin::{OriginBehavior, TestOrigin};
use crate::{App, Config, InheritedListeners, Listeners, PreviousProcess};

/// Takes the sockets that the running process offers once it serves.
async fn take_listeners(path: PathBuf) -> (Listeners, PreviousProcess) {
    let offered = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, offered)
        .await
        .expect("the sockets are offered");
    let taking =
        tokio::task::spawn_blocking(move || InheritedListeners::take(&path).expect("sockets"));
    let (sockets, previous) = taking.await.expect("does not panic").into_parts();
    let mut sockets = sockets.0.into_iter().map(|socket| {
        socket.set_nonblocking(true).expect("a socket");
        TcpListener::from_std(socket).expect("a socket")
    });
    let listeners = Listeners {
        public: sockets.by_ref().take(1).collect(),
        admin: sockets.next(),
    };
    (listeners, previous)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_restart_fails_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("run").join("proxy.sock");
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let (address, extra) = (
        origin.address,
        format!("[handover]\nsocket = \"{}\"", socket.display()),
    );
    let upstream = format!("addresses = [\"{address}\"]\n{extra}");
    let old = TestGateway::before(origin, &upstream, "", super::harness::ROUTES).await;
    let (done, served) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
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
    let (listeners, previous) = take_listeners(socket).await;
    assert_eq!(listeners.public[0].local_addr().expect("bound"), front);
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    let new = TestGateway::on(listeners, previous, origin, &upstream).await;
    tokio::time::timeout(STEP_TIMEOUT, old.running)
        .await
        .expect("the previous process exits")
        .expect("does not panic");
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

/// Builds a gateway whose keys are at `pool`.
fn app(pool: &str) -> App {
    let env = Env::from([
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", pool),
        ("IDP_ACTOR_POOL_ID", "actors"),
        ("IDP_ACTOR_CLIENT_ID", "web"),
        ("IDP_SERVICE_POOL_ID", "services"),
        ("IDP_SERVICE_CLIENT_ID", "machines"),
    ]);
    let text = "[[listen]]\naddress = \"127.0.0.1:0\"\n[access_log]\nto = \"off\"\n";
    let config =
        parse("test.toml", text, |root| Config::read(root, &env)).expect("a valid configuration");
    App::build(config, Clock::system()).expect("builds")
}

/// Returns a connected pair, with this time for the new process.
fn previous_process(most: Duration) -> (UnixStream, PreviousProcess) {
    let (old, new) = UnixStream::pair().expect("a pair");
    (old, PreviousProcess::new(new, Instant::now() + most))
}

const NO_LISTENERS: Listeners = Listeners {
    public: Vec::new(),
    admin: None,
};

/// An address without a listener, so that no keys are found.
const UNREACHABLE_POOL: &str = "http://127.0.0.1:1";

#[track_caller]
fn read_messages(mut old: UnixStream) -> String {
    let mut messages = String::new();
    old.read_to_string(&mut messages).expect("an end");
    messages
}

#[tokio::test]
async fn unready_process_does_not_take_over() {
    let (old, previous) = previous_process(Duration::from_millis(50));
    let refused = app(UNREACHABLE_POOL)
        .take_over(NO_LISTENERS, previous, CancellationToken::new())
        .await;
    let refused = refused.expect_err("not ready");
    assert!(
        refused.status() == 69 && refused.message().contains("keys"),
        "{refused}"
    );
    assert_eq!(read_messages(old), "", "the previous process keeps serving");
}

#[tokio::test]
async fn stop_before_readiness_aborts_the_take_over() {
    let (old, previous) = previous_process(Duration::from_secs(3600));
    let shutdown = CancellationToken::new();
    let running =
        tokio::spawn(app(UNREACHABLE_POOL).take_over(NO_LISTENERS, previous, shutdown.clone()));
    shutdown.cancel();
    let ended = tokio::time::timeout(STEP_TIMEOUT, running)
        .await
        .expect("the end in time");
    assert_eq!(
        ended
            .expect("does not panic")
            .expect_err("stopped")
            .status(),
        69
    );
    assert_eq!(read_messages(old), "", "the previous process keeps serving");
}

#[tokio::test]
async fn late_process_does_not_serve() {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let pool = format!("http://{}", serve_keys(&key).await);
    let (old, previous) = previous_process(STEP_TIMEOUT);
    drop(old);
    let running = app(&pool).take_over(NO_LISTENERS, previous, CancellationToken::new());
    let refused = tokio::time::timeout(STEP_TIMEOUT, running)
        .await
        .expect("the end in time");
    let refused = refused.expect_err("only one process may serve");
    assert!(
        refused.status() == 69 && refused.message().contains("no confirmation"),
        "{refused}"
    );
}

#[tokio::test]
async fn commit_follows_the_confirmation() {
    for answer in ["", "no\n"] {
        let (mut old, previous) = previous_process(STEP_TIMEOUT);
        old.write_all(answer.as_bytes()).expect("a pair");
        old.shutdown(std::net::Shutdown::Write).expect("a pair");
        let committed = previous
            .commit(|| panic!("committed without a confirmation"))
            .await;
        assert!(committed.is_err(), "{answer:?}");
        assert_eq!(read_messages(old), "ready\n");
    }
    let (mut old, previous) = previous_process(STEP_TIMEOUT);
    old.write_all(b"go\n").expect("a pair");
    let before = old.try_clone().expect("a descriptor");
    let committed = move || {
        before.set_nonblocking(true).expect("a pair");
        let mut heard = [0; 64];
        let length = (&before).read(&mut heard).expect("a string");
        assert_eq!(
            heard[..length],
            *b"ready\n",
            "the previous process exits too early"
        );
        before.set_nonblocking(false).expect("a pair");
    };
    previous.commit(committed).await.expect("committed");
    assert_eq!(read_messages(old), "serving\n");
}
