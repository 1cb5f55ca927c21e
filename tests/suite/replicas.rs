//! Replicas restarted and killed behind the gateway under load. `POSTERN_TEST_ROLLS` sets the
//! rolling restarts of both replicas, and kills of each (default 1); long runs use the same tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use parking_lot::Mutex;
use postern_core::config::Env;
use postern_tests::client::Request;
use postern_tests::http_body::json;
use postern_tests::surface::PASSWORD;
use postern_tests::{Answer, Client, Replicas, note};
use tokio::sync::watch;
use tokio::task::JoinSet;

const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients per request type, each with one request at a time.
const CLIENTS_PER_REQUEST: usize = 4;

fn restart_rounds() -> usize {
    Env::of_process()
        .get("POSTERN_TEST_ROLLS")
        .map_or(1, |text| text.parse().expect("a number"))
}

/// A repeated request, and its only successful status.
struct RepeatedRequest {
    method: Method,
    expected: u16,
    build: Box<dyn Fn() -> Request + Send + Sync>,
}

impl RepeatedRequest {
    fn get(expected: u16, build: impl Fn() -> Request + Send + Sync + 'static) -> Self {
        Self {
            method: Method::GET,
            expected,
            build: Box::new(build),
        }
    }

    fn post(expected: u16, build: impl Fn() -> Request + Send + Sync + 'static) -> Self {
        Self {
            method: Method::POST,
            expected,
            build: Box::new(build),
        }
    }
}

#[derive(Debug)]
struct Failure {
    method: Method,
    began: Instant,
    ended: Instant,
    error: String,
}

#[derive(Default)]
struct Outcome {
    done: AtomicBool,
    served: watch::Sender<usize>,
    failed: Mutex<Vec<Failure>>,
    /// Responses with 201.
    created: Mutex<Vec<Answer>>,
}

/// Clients that continue after failures and record them.
struct Clients {
    outcome: Arc<Outcome>,
    tasks: JoinSet<()>,
}

impl Clients {
    fn start(requests: Vec<RepeatedRequest>) -> Self {
        let outcome = Arc::<Outcome>::default();
        let mut tasks = JoinSet::new();
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
        tokio::time::timeout(STEP_TIMEOUT, serving)
            .await
            .expect("requests are served")
            .expect("the counter exists");
    }

    async fn stop(self) -> Arc<Outcome> {
        self.outcome.done.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        self.outcome
    }
}

async fn run_client(request: Arc<RepeatedRequest>, outcome: Arc<Outcome>) {
    while !outcome.done.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer = (request.build)().try_send().await;
        let error = match answer {
            Some(answer) if answer.status.as_u16() == request.expected => {
                outcome.served.send_modify(|served| *served += 1);
                if request.expected == 201 {
                    outcome.created.lock().push(answer);
                }
                continue;
            }
            Some(answer) => format!("{}: {} {}", answer.asked, answer.status, answer.text()),
            None => "no response".to_owned(),
        };
        let failure = Failure {
            method: request.method.clone(),
            began,
            ended: Instant::now(),
            error,
        };
        outcome.failed.lock().push(failure);
    }
}

fn unknown_token(client: &Client) -> Request {
    client
        .post("/auth/tokens/exchange")
        .json(&json!({"temporaryToken": "A".repeat(43)}))
}

#[tokio::test]
async fn rolling_restart_of_auth_fails_no_request() {
    let mut replicas = Replicas::start().await;
    let ada = replicas.surface().register().await;
    let client = replicas.surface().client().clone();
    let (exchange, login, me) = (client.clone(), client.clone(), ada.client.clone());
    let credentials = json!({"email": ada.email, "password": PASSWORD});
    let clients = Clients::start(vec![
        RepeatedRequest::get(200, move || me.get("/auth/me")),
        RepeatedRequest::post(401, move || unknown_token(&exchange)),
        RepeatedRequest::post(200, move || login.post("/auth/login").json(&credentials)),
    ]);
    for _ in 0..restart_rounds() {
        for replica in &mut replicas.auth {
            clients.wait_for_served(200).await;
            replica.stop().await;
            clients.wait_for_served(50).await;
            replica.restart().await;
        }
    }
    clients.wait_for_served(200).await;
    let outcome = clients.stop().await;
    let failed = std::mem::take(&mut *outcome.failed.lock());
    let served = *outcome.served.borrow();
    note(&format!(
        "gateway: {} rolling restarts of two postern-auth: {served} served, {} failed",
        restart_rounds(),
        failed.len()
    ));
    let errors: Vec<&str> = failed
        .iter()
        .map(|failure| failure.error.as_str())
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {served}: {errors:#?}",
        failed.len()
    );
    replicas.stop().await;
}

/// A kill may interrupt requests that must not be retried: POSTs in flight when the process died,
/// but no GET.
#[tokio::test]
async fn killing_notify_in_turn_fails_only_posts_in_flight() {
    let mut replicas = Replicas::start().await;
    let token = replicas.service_token("document").await;
    let client = replicas.surface().client().with_token(&token);
    let body = json!({"channel": "sms", "recipient": {"phone": "+436641234567"}, "template": "welcome",
        "variables": {"name": "Ada"}});
    let known = client
        .posted("/notifications", &body, 201)
        .await
        .header("location");
    let (posts, gets) = (client.clone(), client.clone());
    let clients = Clients::start(vec![
        RepeatedRequest::get(200, move || gets.get(&known)),
        RepeatedRequest::post(201, move || posts.post("/notifications").json(&body)),
    ]);
    let mut kills = Vec::new();
    for _ in 0..restart_rounds() {
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
    let outcome = clients.stop().await;
    let failed = std::mem::take(&mut *outcome.failed.lock());
    let served = *outcome.served.borrow();
    note(&format!(
        "gateway: {} kills of one of two postern-notify: {served} served, {} failed",
        kills.len(),
        failed.len()
    ));
    for failure in &failed {
        let in_flight = kills
            .iter()
            .any(|kill| failure.began <= kill.end && failure.ended >= kill.start);
        assert!(in_flight && failure.method == Method::POST, "{failure:?}");
    }
    let created = std::mem::take(&mut *outcome.created.lock());
    let created: Vec<String> = created
        .iter()
        .map(|answer| answer.header("location"))
        .collect();
    for location in created.iter().rev().step_by(created.len().div_ceil(100)) {
        let _ = client.fetch(location, 200).await;
    }
    replicas.stop().await;
}
