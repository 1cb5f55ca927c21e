//! Clients that send requests at fixed rates, however slow the responses are.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::accounts::{Account, Outcome, temporary_token};
use super::history::{Event, History, digest};
use crate::Client;
use crate::public_api::message;

/// Priorities and how many of sixteen notifications have them.
const PRIORITIES: [(&str, u8); 4] = [("CRITICAL", 2), ("HIGH", 4), ("NORMAL", 7), ("LOW", 3)];

/// Telephone number of all recipients.
const PHONE: &str = "+15005550009";

/// Attempts of a client to submit one notification.
const ATTEMPTS: u32 = 20;
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(2);

/// Notifications of one priority that are submitted within a short time, by this number of clients, so that
/// the provider's rate makes them wait.
const BURST: (usize, usize) = (8, 20);

/// Other notifications from one burst to the next.
const NOTIFICATIONS_PER_BURST: u32 = 150;

/// Concurrent exchanges of one temporary token.
const EXCHANGES: usize = 3;

/// Concurrent sign-ins that are refreshed, at a rate of ten notifications per second.
const REFRESHED_SIGN_INS: u64 = 12;

/// Maximum number of people whose responses are compared.
const MAX_ACCOUNTS: usize = 200;

/// Maximum time to wait at the end until the status of all notifications is final.
const MAX_WAIT_FOR_STATUS: Duration = Duration::from_secs(180);

/// What all clients share.
pub(super) struct Workload {
    pub(super) client: Client,
    pub(super) history: Arc<History>,
    pub(super) seed: u64,
    /// Notifications per second.
    pub(super) rate: u32,
    /// Token of a service, which is replaced before it expires.
    pub(super) service: Mutex<String>,
    accounts: Mutex<Vec<Account>>,
    accepted: Mutex<Vec<String>>,
    ended: CancellationToken,
}

/// Running clients.
pub(super) struct Clients {
    workload: Arc<Workload>,
    tasks: JoinSet<()>,
}

impl Workload {
    /// Creates the clients of a gateway.
    pub(super) fn new(client: Client, history: Arc<History>, seed: u64, rate: u32) -> Self {
        Self {
            client,
            history,
            seed,
            rate,
            service: Mutex::default(),
            accounts: Mutex::default(),
            accepted: Mutex::default(),
            ended: CancellationToken::new(),
        }
    }

    fn account(&self, random: &mut fastrand::Rng) -> Option<Account> {
        random.choice(self.accounts.lock().iter()).cloned()
    }

    /// Submits one notification until it is accepted.
    async fn submit(self: Arc<Self>, mut random: fastrand::Rng) {
        let mut place = random.u8(0..16);
        let priority = PRIORITIES.iter().find(|(_, share)| {
            let found = place < *share;
            place = place.saturating_sub(*share);
            found
        });
        let priority = priority.map_or("NORMAL", |(priority, _)| *priority);
        self.submit_as(priority).await;
    }

    /// Submits many notifications of one priority.
    async fn burst(self: Arc<Self>, mut random: fastrand::Rng) {
        let priority = if random.bool() { "NORMAL" } else { "LOW" };
        let clients = (0..BURST.0).map(|_| async {
            for _ in 0..BURST.1 {
                self.submit_as(priority).await;
            }
        });
        futures_util::future::join_all(clients).await;
    }

    async fn submit_as(&self, priority: &str) {
        let key = uuid::Uuid::new_v4().simple().to_string();
        let mut body = message("sms", &json!({"phone": PHONE}));
        body["priority"] = priority.into();
        for _ in 0..ATTEMPTS {
            let start_ms = self.history.now_ms();
            let client = self.client.with_token(&self.service.lock());
            let request = client.post("/notifications");
            let request = request.header("idempotency-key", &key);
            let outcome = Outcome::of(request.json(&body)).await;
            let id = outcome.text("/notificationId");
            let accepted = outcome.status == 201;
            if let (true, Some(id)) = (accepted, &id) {
                self.accepted.lock().push(id.clone());
            }
            let event = Event::Submit {
                key: key.clone(),
                priority: priority.to_owned(),
                id,
                status: outcome.status,
            };
            self.history.record(start_ms, event);
            if accepted {
                return;
            }
            tokio::time::sleep(ATTEMPT_INTERVAL).await;
        }
    }

    /// Reads a notification, and two documents of a person.
    async fn read(self: Arc<Self>, mut random: fastrand::Rng) {
        let id = random.choice(self.accepted.lock().iter()).cloned();
        if let Some(id) = id {
            let client = self.client.with_token(&self.service.lock());
            let path = format!("/notifications/{id}");
            let name = "GET /notifications/{id}";
            self.compare(&client, name, &path, ("/notificationId", &id))
                .await;
        }
        if let Some(account) = self.account(&mut random) {
            let client = self.client.with_token(&account.access_token);
            let id = &account.id;
            let of_user = ("/userId", id.as_str());
            self.compare(&client, "GET /auth/me", "/auth/me", of_user)
                .await;
            let (path, of_actor) = (format!("/actors/{id}"), ("/actorId", id.as_str()));
            self.compare(&client, "GET /actors/{id}", &path, of_actor)
                .await;
        }
    }

    async fn compare(&self, client: &Client, name: &str, path: &str, (pointer, id): (&str, &str)) {
        let start_ms = self.history.now_ms();
        let outcome = Outcome::of(client.get(path)).await;
        let event = Event::Read {
            request: name.to_owned(),
            expected: id.to_owned(),
            answered: outcome.text(pointer),
            status: outcome.status,
        };
        self.history.record(start_ms, event);
    }

    /// Registers a person, or signs one in.
    async fn sign_in(self: Arc<Self>, mut random: fastrand::Rng) {
        let register = self.accounts.lock().len() < MAX_ACCOUNTS && random.u8(0..4) == 0;
        match self.account(&mut random) {
            Some(account) if !register => self.sign_in_again(account).await,
            Some(_) | None => self.register().await,
        }
    }

    async fn register(&self) {
        let start_ms = self.history.now_ms();
        let account = Account::register(&self.client).await;
        let found = account.as_ref().map(|account| account.email.clone());
        self.record_sign_in(start_ms, "POST /auth/register", found);
        self.accounts.lock().extend(account);
    }

    async fn sign_in_again(&self, mut account: Account) {
        let start_ms = self.history.now_ms();
        let status = account.sign_in(&self.client).await;
        let found = (status == 200).then(|| account.email.clone());
        self.record_sign_in(start_ms, "POST /auth/login", found);
        let mut accounts = self.accounts.lock();
        if let Some(same) = accounts.iter_mut().find(|one| one.email == account.email) {
            *same = account;
        }
    }

    /// Makes the requests that are rare: the end of a run may have none of them, in particular
    /// registrations beyond [`MAX_ACCOUNTS`].
    pub(super) async fn each_rare_request(self: &Arc<Self>) {
        let mut random = fastrand::Rng::with_seed(self.seed);
        self.register().await;
        if let Some(account) = self.account(&mut random) {
            self.sign_in_again(account).await;
        }
        Arc::clone(self).exchange(random).await;
    }

    fn record_sign_in(&self, start_ms: u64, request: &str, found: Option<String>) {
        let status = if found.is_some() { 200 } else { 503 };
        let event = Event::Read {
            request: request.to_owned(),
            expected: found.clone().unwrap_or_default(),
            answered: found,
            status,
        };
        self.history.record(start_ms, event);
    }

    /// Signs in at the social provider and exchanges the temporary token several times at once.
    async fn exchange(self: Arc<Self>, _random: fastrand::Rng) {
        let Some(token) = temporary_token(&self.client).await else {
            return;
        };
        let mut exchanges = JoinSet::new();
        for _ in 0..EXCHANGES {
            let (own, token) = (Arc::clone(&self), token.clone());
            exchanges.spawn(async move {
                let start_ms = own.history.now_ms();
                let body = json!({"temporaryToken": token});
                let request = own.client.post("/auth/tokens/exchange").json(&body);
                let status = Outcome::of(request).await.status;
                let token = digest(&token);
                own.history
                    .record(start_ms, Event::Exchange { token, status });
            });
        }
        exchanges.join_all().await;
    }

    /// Refreshes the tokens of one sign-in after another, sometimes twice at once.
    async fn refresh_sign_ins(self: Arc<Self>, number: u64, mut random: fastrand::Rng) {
        let mut sign_in = number;
        while !self.ended.is_cancelled() {
            let Some(account) = Account::register(&self.client).await else {
                tokio::time::sleep(ATTEMPT_INTERVAL).await;
                continue;
            };
            self.refresh_sign_in(sign_in, account, &mut random).await;
            sign_in += REFRESHED_SIGN_INS;
        }
    }

    /// Refreshes the tokens of a sign-in until the newest one is rejected.
    async fn refresh_sign_in(&self, sign_in: u64, account: Account, random: &mut fastrand::Rng) {
        let mut newest = account.refresh_token;
        while !self.ended.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(random.u64(500..3000))).await;
            let (first, second) = if random.u8(0..4) == 0 {
                tokio::join!(
                    self.refresh(sign_in, &newest),
                    self.refresh(sign_in, &newest)
                )
            } else {
                (self.refresh(sign_in, &newest).await, (0, None))
            };
            if [first.0, second.0].contains(&401) {
                return;
            }
            if let Some(next) = first.1.or(second.1) {
                newest = next;
            }
        }
    }

    async fn refresh(&self, sign_in: u64, token: &str) -> (u16, Option<String>) {
        let start_ms = self.history.now_ms();
        let body = json!({"refreshToken": token});
        let outcome = Outcome::of(self.client.post("/auth/tokens/refresh").json(&body)).await;
        let event = Event::Refresh {
            sign_in,
            token: digest(token),
            status: outcome.status,
        };
        self.history.record(start_ms, event);
        (outcome.status, outcome.text("/refreshToken"))
    }

    /// Records the status of a notification once it is final, or at the deadline. The status is read at
    /// least once.
    async fn final_status(&self, id: &str, deadline: tokio::time::Instant) {
        let mut state = "unknown".to_owned();
        loop {
            let client = self.client.with_token(&self.service.lock());
            let outcome = Outcome::of(client.get(&format!("/notifications/{id}"))).await;
            state = outcome.text("/status").unwrap_or(state);
            let is_final = matches!(&*state, "SENT" | "DELIVERED" | "FAILED" | "CANCELLED");
            if is_final || tokio::time::Instant::now() >= deadline {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let id = id.to_owned();
        self.history
            .record(self.history.now_ms(), Event::FinalStatus { id, state });
    }
}

impl Clients {
    /// Starts all clients.
    pub(super) fn start(workload: Arc<Workload>) -> Self {
        let mut tasks = JoinSet::new();
        let period = Duration::from_secs(1) / workload.rate.max(1);
        let own = &workload;
        at_rate(&mut tasks, own, 1, period, |own, random| own.submit(random));
        let burst_period = period * NOTIFICATIONS_PER_BURST;
        at_rate(&mut tasks, own, 5, burst_period, |own, random| {
            own.burst(random)
        });
        at_rate(&mut tasks, own, 2, period, |own, random| own.read(random));
        at_rate(&mut tasks, own, 3, period * 5, |own, random| {
            own.sign_in(random)
        });
        at_rate(&mut tasks, own, 4, period * 20, |own, random| {
            own.exchange(random)
        });
        let sign_ins =
            (REFRESHED_SIGN_INS * u64::from(workload.rate) / 10).clamp(2, REFRESHED_SIGN_INS);
        for number in 0..sign_ins {
            let own = Arc::clone(&workload);
            let random = fastrand::Rng::with_seed(workload.seed ^ (100 + number));
            tasks.spawn(own.refresh_sign_ins(number, random));
        }
        Self { workload, tasks }
    }

    /// Stops the clients, waits for their requests, and records the final status of all accepted
    /// notifications.
    pub(super) async fn finish(self) {
        let Self { workload, tasks } = self;
        let history = Arc::clone(&workload.history);
        history.record(history.now_ms(), Event::Quiet);
        workload.ended.cancel();
        tasks.join_all().await;
        let accepted = std::mem::take(&mut *workload.accepted.lock());
        let deadline = tokio::time::Instant::now() + MAX_WAIT_FOR_STATUS;
        for ids in accepted.chunks(16) {
            let reads = ids.iter().map(|id| workload.final_status(id, deadline));
            futures_util::future::join_all(reads).await;
        }
    }
}

/// Starts an operation in each period, without waiting for those before.
fn at_rate<F>(
    tasks: &mut JoinSet<()>,
    workload: &Arc<Workload>,
    stream: u64,
    period: Duration,
    operation: impl Fn(Arc<Workload>, fastrand::Rng) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let workload = Arc::clone(workload);
    tasks.spawn(async move {
        let mut random = fastrand::Rng::with_seed(workload.seed ^ (stream << 32));
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut running = JoinSet::new();
        while !workload.ended.is_cancelled() {
            ticks.tick().await;
            running.spawn(operation(Arc::clone(&workload), random.fork()));
            while running.try_join_next().is_some() {}
        }
        running.join_all().await;
    });
}
