use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use tokio_util::sync::CancellationToken;

use super::harness::{pool_env, serve_keys};
use super::*;
use crate::{App, Listeners, PreviousProcess};

/// Builds a gateway whose keys are at `pool`.
fn app(pool: &str) -> App {
    let env = pool_env(pool);
    let text = "[[listen]]\naddress = \"127.0.0.1:0\"\n[access_log]\nto = \"off\"\n";
    let config =
        parse("test.toml", text, |root| Config::read(root, &env)).expect("a valid configuration");
    App::build(config, Clock::system()).expect("builds")
}

/// Returns a connected pair, with this time for the new process.
fn previous_process(most: Duration) -> (UnixStream, PreviousProcess) {
    let (old, new) = UnixStream::pair().expect("a pair");
    let previous = PreviousProcess {
        stream: new,
        ready_deadline: Instant::now() + most,
    };
    (old, previous)
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
async fn unready_or_stopped_process_does_not_take_over() {
    for (most, is_stopped, why) in [(50, false, "keys"), (3_600_000, true, "")] {
        let (old, previous) = previous_process(Duration::from_millis(most));
        let shutdown = CancellationToken::new();
        let taking = app(UNREACHABLE_POOL).take_over(NO_LISTENERS, previous, shutdown.clone());
        let taking = tokio::spawn(taking);
        if is_stopped {
            shutdown.cancel();
        }
        let ended = in_time(taking).await.expect("does not panic");
        let refused = ended.expect_err("not ready");
        let holds = refused.status() == 69 && refused.message().contains(why);
        assert!(holds, "{refused}");
        assert_eq!(read_messages(old), "", "the previous process keeps serving");
    }
}

#[tokio::test]
async fn late_process_does_not_serve() {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let pool = format!("http://{}", serve_keys(&key).await);
    let (old, previous) = previous_process(STEP_TIMEOUT);
    drop(old);
    let running = app(&pool).take_over(NO_LISTENERS, previous, CancellationToken::new());
    let refused = in_time(running).await;
    let refused = refused.expect_err("only one process may serve");
    let holds = refused.status() == 69 && refused.message().contains("no confirmation");
    assert!(holds, "{refused}");
}

#[tokio::test]
async fn commit_follows_the_confirmation() {
    for answer in ["", "no\n"] {
        let (mut old, previous) = previous_process(STEP_TIMEOUT);
        old.write_all(answer.as_bytes()).expect("a pair");
        old.shutdown(std::net::Shutdown::Write).expect("a pair");
        let unconfirmed = || panic!("committed without a confirmation");
        assert!(previous.commit(unconfirmed).await.is_err(), "{answer:?}");
        assert_eq!(read_messages(old), "ready\n");
    }
    let (mut old, previous) = previous_process(STEP_TIMEOUT);
    old.write_all(b"go\n").expect("a pair");
    let before = old.try_clone().expect("a descriptor");
    let committed = move || {
        before.set_nonblocking(true).expect("a pair");
        let mut heard = [0; 64];
        let length = (&before).read(&mut heard).expect("a string");
        // The previous process does not exit before.
        assert_eq!(heard[..length], *b"ready\n");
        before.set_nonblocking(false).expect("a pair");
    };
    previous.commit(committed).await.expect("committed");
    assert_eq!(read_messages(old), "serving\n");
}
