//! Replicas restarted and killed behind the gateway under load. `POSTERN_TEST_ROLLS` sets the
//! rolling restarts of both replicas, and kills of each (default 1).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use postern_harness::client::Request;
use postern_harness::public_api::{credentials, message};
use postern_harness::{Changes, Client, Installation, json, note};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::notify_order::env_number;

const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients per request type, each with one request at a time.
const CLIENTS_PER_REQUEST: usize = 4;

/// A repeated request, and its only successful status.
type Repeated = (u16, Box<dyn Fn() -> Request + Send + Sync>);

#[derive(Debug)]
struct Failure {
    at: Range<Instant>,
    error: String,
}

#[derive(Default)]
struct Outcome {
    done: AtomicBool,
    served: watch::Sender<usize>,
    failed: Mutex<Vec<Failure>>,
    /// Locations of what was created.
    created: Mutex<Vec<String>>,
}

/// Clients that continue after failures and record them.
struct Clients {
    outcome: Arc<Outcome>,
    tasks: JoinSet<()>,
}

impl Clients {
    fn start(requests: Vec<Repeated>) -> Self {
        let (outcome, mut tasks) = (Arc::<Outcome>::default(), JoinSet::new());
        for request in requests {
            let request = Arc::new(request);
            for _ in 0..CLIENTS_PER_REQUEST {
                tasks.spawn(run_client(Arc::clone(&request), Arc::clone(&outcome)));
            }
        }
        Self { outcome, tasks }
    }

    /// Waits until `more` requests have been served.
    async fn wait_for_served(&self, more: usize) {
        let mut served = self.outcome.served.subscribe();
        let until = *served.borrow() + more;
        let serving = served.wait_for(|served| *served >= until);
        let serving = tokio::time::timeout(STEP_TIMEOUT, serving).await;
        let served = serving.expect("served in time");
        let _ = served.expect("the counter exists");
    }

    /// Stops the clients. Returns the failures and the number of served requests.
    async fn stop(self) -> (Vec<Failure>, usize, Vec<String>) {
        self.outcome.done.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        let failed = std::mem::take(&mut *self.outcome.failed.lock());
        let created = std::mem::take(&mut *self.outcome.created.lock());
        (failed, *self.outcome.served.borrow(), created)
    }
}

async fn run_client(request: Arc<Repeated>, outcome: Arc<Outcome>) {
    let (expected, build) = &*request;
    while !outcome.done.load(Ordering::Relaxed) {
        let began = Instant::now();
        let error = match build().try_send().await {
            Some(answer) if answer.status == *expected => {
                outcome.served.send_modify(|served| *served += 1);
                if *expected == 201 {
                    outcome.created.lock().push(answer.header("location"));
                }
                continue;
            }
            Some(answer) => format!("{}: {} {}", answer.asked, answer.status, answer.text()),
            None => format!("no response: {:?}", build()),
        };
        let at = began..Instant::now();
        outcome.failed.lock().push(Failure { at, error });
    }
}

#[tokio::test]
async fn restarts_fail_no_request_and_kills_only_posts() {
    let changes = Changes {
        more_replicas: 1,
        ..Changes::unlimited()
    };
    let mut replicas = Installation::start_with(changes).await;
    let rounds = env_number("POSTERN_TEST_ROLLS", 1);
    rolling_restart_of_auth(&mut replicas, rounds).await;
    kills_of_notify(&mut replicas, rounds).await;
    replicas.stop().await;
}

async fn rolling_restart_of_auth(replicas: &mut Installation, rounds: usize) {
    let ada = replicas.surface().register().await;
    let client = replicas.surface().client().clone();
    let (exchange, login) = (client.clone(), client);
    let token = json!({"temporaryToken": "A".repeat(43)});
    let credentials = credentials(&ada.email);
    let exchange = move || exchange.post("/auth/tokens/exchange").json(&token);
    let login = move || login.post("/auth/login").json(&credentials);
    let clients = Clients::start(vec![
        (200, Box::new(move || ada.client.get("/auth/me"))),
        (401, Box::new(exchange)),
        (200, Box::new(login)),
    ]);
    for _ in 0..rounds {
        for replica in &mut replicas.auth {
            clients.wait_for_served(200).await;
            replica.stop().await;
            clients.wait_for_served(50).await;
            replica.restart().await;
        }
    }
    clients.wait_for_served(200).await;
    let (failed, served, _) = clients.stop().await;
    let failures = failed.len();
    note(&format!(
        "gateway: {rounds} rolling restarts of two postern-auth: {served} served, {failures} failed"
    ));
    assert!(failed.is_empty(), "of {served}: {failed:#?}");
}

/// A kill may interrupt requests that must not be retried: POSTs in flight when the process died,
/// but no GET.
async fn kills_of_notify(replicas: &mut Installation, rounds: usize) {
    let client: Client = replicas.service("document").await;
    let body = message("sms", &json!({"phone": "+436641234567"}));
    let known = client.posted("/notifications", &body, 201).await;
    let known = known.header("location");
    let (posts, gets) = (client.clone(), client.clone());
    let post = move || posts.post("/notifications").json(&body);
    let get = move || gets.get(&known);
    let clients = Clients::start(vec![(200, Box::new(get)), (201, Box::new(post))]);
    let mut kills = Vec::new();
    for _ in 0..rounds {
        for replica in &mut replicas.notify {
            clients.wait_for_served(200).await;
            let at = Instant::now();
            replica.kill().await;
            kills.push(at..Instant::now());
            clients.wait_for_served(50).await;
            replica.restart().await;
        }
    }
    clients.wait_for_served(200).await;
    let (failed, served, created) = clients.stop().await;
    let (kill_count, failures) = (kills.len(), failed.len());
    note(&format!(
        "gateway: {kill_count} kills of one of two postern-notify: {served} served, {failures} failed"
    ));
    for failure in &failed {
        let at = &failure.at;
        let mut kills = kills.iter();
        let in_flight = kills.any(|kill| at.start <= kill.end && at.end >= kill.start);
        assert!(in_flight && failure.error.contains("POST"), "{failure:?}");
    }
    for location in created.iter().rev().step_by(created.len().div_ceil(100)) {
        let _ = client.fetch(location, 200).await;
    }
}
