//! Test support: a complete replica over one store, advanced step by step.

pub(crate) mod actor_service;
pub(crate) mod injection;
pub(crate) mod judge;
pub(crate) mod recorded_api;
pub(crate) mod script;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::testing::assert_members;
use postern_core::{Clock, Problem};
use postern_service::http::BudgetPermit;
use postern_store::cache::Cache;
use postern_store::database::Database;
use postern_store::database::testing::{self, TestDatabase};
use sqlx::{AssertSqlSafe, Executor};

use crate::address::Address;
use crate::delivery::actors::ActorClient;
use crate::delivery::attempt::AttemptExecutor;
use crate::delivery::mail_token::MailTokens;
use crate::delivery::provider::{OutgoingMessage, Provider};
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::{AttemptRunner, DispatchContext, DispatchState, Dispatcher, ResultWriter};
use crate::housekeeping::{DelayedRowMover, ProviderPauses};
use crate::intake::group_commit::{AcceptedNotification, GroupCommitter, SubmissionQueue};
use crate::intake::request::{NotificationRequest, ValidatedRequest};
use crate::lease::{LeaseClock, WorkerRegistry};
use crate::metrics::NotifyMetrics;
use crate::notification::OrderSequence;
use crate::notification::{Channel, Lane, NotificationId, Order, PerChannel, Priority, order_time};
use crate::principal::Principal;
use crate::status::view::StatusView;
use crate::store::row::ReceiptKind;
use crate::store::{NewNotification, ProviderPause, ProviderReport, Record, Store};
use crate::templates::{Locale, MessageContent, TemplateName, Templates};
use crate::testing::actor_service::unreachable_actors;
use crate::testing::script::{ProviderScript, email_pool, pooled};

/// Deadline of commits and statements in tests, which a busy disk does not exceed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Initial time of every test.
pub(crate) const START: Timestamp = Timestamp(1_763_600_000_000);

/// A replica.
pub(crate) struct TestReplica {
    pub(crate) metrics: NotifyMetrics,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) script: ProviderScript,
    pub(crate) submissions: SubmissionQueue,
    pub(crate) committer: GroupCommitter,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) result_writer: ResultWriter,
    pub(crate) runner: Arc<AttemptRunner>,
    pub(crate) workers: Arc<WorkerRegistry>,
    pub(crate) dispatch_state: Arc<DispatchState>,
    pub(crate) mover: DelayedRowMover,
    pub(crate) stop: CancellationToken,
    pub(crate) suppression: Arc<Suppression>,
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    pub(crate) pauses: ProviderPauses,
}

/// Returns the result of a call that must succeed.
pub(crate) async fn ok<T, E: std::fmt::Debug>(call: impl Future<Output = Result<T, E>>) -> T {
    call.await.expect("the call succeeds")
}

/// Serves the routes, and returns their URL.
pub(crate) async fn serve(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// Returns a service as a caller.
pub(crate) fn service_of(name: &str) -> Principal {
    Principal {
        creator: format!("service:{name}").into(),
        actor: None,
    }
}

/// Returns a user of the actor pool as a caller.
pub(crate) fn user_of(name: &str) -> Principal {
    Principal {
        creator: format!("user:pool|{name}").into(),
        actor: Some(name.to_owned()),
    }
}

/// Executes a statement for which the store has no function.
pub(crate) async fn execute(database: &Database, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    match database {
        Database::Postgres(pool) => pool.execute(sql).await.map(|_| ()),
        Database::Sqlite(sqlite) => sqlite.writer.execute(sql).await.map(|_| ()),
    }
    .expect("the statement is valid");
}

/// Returns stores of both kinds with their databases.
pub(crate) async fn stores() -> Vec<(Store, TestDatabase)> {
    let mut stores = Vec::new();
    for test in testing::both().await {
        let database = match &test.database {
            Database::Postgres(pool) => Database::Postgres(pool.with_deadline(PATIENCE)),
            Database::Sqlite(_) => test.database.clone(),
        };
        let store = Store::open(&database, 4).await.expect("open store");
        stores.push((store, test));
    }
    stores
}

/// Returns a store in PostgreSQL with its database.
pub(crate) async fn postgres_store(connections: u32) -> (Store, TestDatabase) {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, connections).await;
    (store.expect("open store"), test)
}

/// Returns a notification with an order, for the store.
pub(crate) fn record_of(order: Order) -> NewNotification {
    NewNotification {
        id: OrderSequence::id(order),
        order,
        record: Record {
            request_id: None,
            trace_context: None,
            lane: Lane::first(Channel::Email, Priority::Normal),
            creator: "service:test".to_owned(),
            addressee: None,
            template: "welcome".to_owned(),
            template_version: 1,
            locale: "en".to_owned(),
            recipient: r#"{"email":"ada@example.com"}"#.to_owned(),
            variables: "{}".to_owned(),
            created_at: order_time(order),
            expires_at: None,
        },
        send_at: None,
        key: None,
    }
}

/// Returns a delivery report about a notification.
pub(crate) fn receipt(id: NotificationId, event_id: &str, kind: ReceiptKind) -> ProviderReport {
    ProviderReport {
        event_id: event_id.to_owned(),
        id: Some(id),
        kind,
        at: START,
        code: None,
        detail: None,
        dead_address: None,
        objector: None,
    }
}

pub(crate) fn mailbox(address: &str) -> Address {
    Address::Email(EmailAddress::parse(address).expect("address"))
}

pub(crate) fn mail_tokens() -> MailTokens {
    MailTokens::parse(&"A".repeat(44)).expect("a key")
}

/// Returns a pause of a provider by the operator `ada`.
pub(crate) fn pause_of(provider: &str) -> ProviderPause {
    ProviderPause {
        provider: provider.to_owned(),
        operator: "ada".to_owned(),
        at: START,
        reason: None,
    }
}

/// Asserts that the exported metrics have this line.
pub(crate) fn assert_metric(metrics: &NotifyMetrics, line: &str) {
    let families = metrics.registry.gather();
    let text = prometheus::TextEncoder::new().encode_to_string(&families);
    let text = text.expect("metrics");
    assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
}

/// Returns a message to send, for a provider.
pub(crate) fn outgoing<'a>(to: &'a Address, content: &'a MessageContent) -> OutgoingMessage<'a> {
    OutgoingMessage {
        id: OrderSequence::id(1 << 40),
        to,
        content,
        sent_at: START,
        expires_at: None,
        urgent: false,
        unsubscribe: false,
    }
}

pub(crate) fn templates() -> Templates {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conf/templates");
    Templates::load(&folder, Locale::parse("en").expect("tag"))
        .expect("the shipped templates are valid")
}

/// Loads one template of the given files.
pub(crate) fn load_template(name: &str, files: &[(&str, &str)]) -> Result<Templates, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
    for (file, text) in files {
        std::fs::write(folder.path().join(name).join(file), text).expect("a file");
    }
    Templates::load(folder.path(), Locale::parse("en").expect("tag"))
}

pub(crate) fn templates_of(name: &str, files: &[(&str, &str)]) -> Templates {
    load_template(name, files).expect("valid templates")
}

/// Returns the template `welcome` for e-mail with additional settings.
pub(crate) fn welcome_with(settings: &str) -> Templates {
    let words = "Hello {{ name }}";
    let settings = format!("version = 1\n{settings}\n");
    let files = [
        ("template.toml", &*settings),
        ("email.en.subject", words),
        ("email.en.txt", words),
    ];
    templates_of("welcome", &files)
}

impl TestReplica {
    /// Creates a replica with the given number of e-mail permits.
    pub(crate) async fn new(store: &Store, clock: &Clock, permits: usize) -> Self {
        Self::calling(store, clock, permits, 1000).await
    }

    /// Creates a replica whose provider accepts `concurrency` concurrent calls.
    pub(crate) async fn calling(
        store: &Store,
        clock: &Clock,
        permits: usize,
        concurrency: usize,
    ) -> Self {
        let script = ProviderScript::default();
        let providers = vec![(Provider::Script(script.clone()), concurrency)];
        let actors = unreachable_actors(clock);
        Self::with(store, clock, permits, script, providers, actors).await
    }

    /// Creates a replica with the given provider and actor service. Its script is not used.
    pub(crate) async fn delivering(
        store: &Store,
        clock: &Clock,
        provider: Provider,
        actors: ActorClient,
    ) -> Self {
        let (script, providers) = (ProviderScript::default(), vec![(provider, 8)]);
        Self::with(store, clock, 8, script, providers, actors).await
    }

    /// Creates a replica with two providers: one for `@other.example`, and one for all other
    /// addresses.
    pub(crate) async fn beside_another(
        store: &Store,
        clock: &Clock,
        permits: usize,
    ) -> (Self, ProviderScript) {
        let (script, other) = (ProviderScript::default(), ProviderScript::default());
        script.support("@other.example", false);
        other.support("@other.example", true);
        let providers = [&script, &other].map(|it| (Provider::Script(it.clone()), 1000));
        let actors = unreachable_actors(clock);
        let replica = Self::with(store, clock, permits, script, providers.into(), actors);
        (replica.await, other)
    }

    /// Creates a replica with these providers and the numbers of their concurrent calls.
    async fn with(
        store: &Store,
        clock: &Clock,
        permits: usize,
        script: ProviderScript,
        providers: Vec<(Provider, usize)>,
        actors: ActorClient,
    ) -> Self {
        let metrics = NotifyMetrics::new();
        let pooled =
            |(provider, concurrency)| pooled("script", (provider, 1), concurrency, clock, &metrics);
        let pool = Arc::new(email_pool(providers.into_iter().map(pooled).collect()));
        let (store, clock) = (store.clone(), clock.clone());
        let permits = PerChannel::from_fn(|_| permits);
        let dispatch_state = Arc::new(DispatchState::new(&permits, &permits));
        let stop = CancellationToken::new();
        let pauses = ProviderPauses::new(
            store.clone(),
            Arc::clone(&pool),
            Arc::clone(&dispatch_state),
        );
        let executor = AttemptExecutor {
            templates: Arc::new(ArcSwap::from_pointee(templates())),
            actors,
            store: store.clone(),
            providers: pool,
            suppression: Arc::new(Suppression::new(store.clone())),
            unverified: UnverifiedQuota::new(Cache::memory(clock.clone()), clock.clone()),
        };
        let (context, result_writer) = DispatchContext::start(
            executor,
            Arc::clone(&dispatch_state),
            metrics.clone(),
            (clock.clone(), LeaseClock::Local),
            stop.clone(),
            None,
        )
        .await;
        let (mut submissions, mut committer) = SubmissionQueue::open(context.clone());
        (submissions.timeout, committer.timeout) = (PATIENCE, PATIENCE);
        Self {
            metrics,
            dispatcher: Dispatcher::new(Channel::Email, &context),
            result_writer,
            mover: DelayedRowMover {
                store: store.clone(),
                clock: clock.clone(),
                dispatch_state: Arc::clone(&dispatch_state),
            },
            clock,
            store,
            script,
            submissions,
            committer,
            suppression: Arc::clone(&context.runner.executor.suppression),
            templates: Arc::clone(&context.runner.executor.templates),
            runner: context.runner,
            workers: context.workers,
            dispatch_state,
            stop,
            pauses,
        }
    }

    /// Accepts one e-mail notification.
    pub(crate) async fn accept(&mut self, priority: Priority) -> NotificationId {
        ok(self.submit(draft(priority), None)).await.id
    }

    /// Submits a notification as a service.
    pub(crate) async fn submit(
        &mut self,
        draft: ValidatedRequest,
        key: Option<&str>,
    ) -> Result<AcceptedNotification, Problem> {
        self.submit_as(service_of("test"), draft, key).await
    }

    /// Submits a notification as `principal`.
    pub(crate) async fn submit_as(
        &mut self,
        principal: Principal,
        draft: ValidatedRequest,
        key: Option<&str>,
    ) -> Result<AcceptedNotification, Problem> {
        let submissions = self.submissions.clone();
        let key = key.map(str::to_owned);
        let answer = tokio::spawn(async move {
            submissions
                .submit(&principal, draft, key, BudgetPermit::default())
                .await
        });
        self.committer.step().await;
        answer.await.expect("no panic")
    }

    /// Advances the clock, and renews the lease at the end.
    pub(crate) async fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        self.workers.step().await.expect("lease renewal succeeds");
    }

    /// Advances the clock, moves due rows and runs one round.
    pub(crate) async fn pass(&mut self, seconds: u64) {
        self.advance(seconds).await;
        self.mover.step().await.expect("moved");
        self.step().await;
    }

    /// Finds the oldest row of each lane.
    pub(crate) async fn poll(&mut self) {
        self.dispatcher.poll().await.expect("polled");
    }

    /// Claims rows of known lanes, and returns their number.
    pub(crate) async fn claim(&mut self) -> usize {
        self.dispatcher.claim_available().await.expect("claimed")
    }

    /// Runs one round: poll, claim, deliver, write results. Returns the number of results written.
    pub(crate) async fn step(&mut self) -> usize {
        self.poll().await;
        self.claim().await;
        self.settle().await
    }

    /// Waits for deliveries in progress and writes their results. Returns the number of results
    /// written.
    pub(crate) async fn settle(&mut self) -> usize {
        self.runner.wait_until_idle().await;
        self.result_writer.drain().await
    }

    /// Asserts that a notification has these members, and returns all.
    pub(crate) async fn assert_view(
        &self,
        id: NotificationId,
        members: serde_json::Value,
    ) -> serde_json::Value {
        let view = self.view(id).await;
        assert_members(&view, &members);
        view
    }

    /// Makes providers refuse calls with 451 until their circuit breaker opens.
    pub(crate) async fn open_breaker(&mut self, priority: Priority) {
        self.script.refuse(&["451"; 10]);
        for _ in 0..10 {
            self.accept(priority).await;
        }
        self.step().await;
    }

    pub(crate) async fn status(&self, id: NotificationId) -> serde_json::Value {
        self.view(id).await["status"].take()
    }

    pub(crate) async fn view(&self, id: NotificationId) -> serde_json::Value {
        let snapshot = ok(self.store.read(&[id])).await.pop();
        let snapshot = snapshot.expect("a stored notification");
        let flow = |channel| self.dispatch_state.channel(channel).flow();
        let view = StatusView::of(&snapshot, self.clock.earliest(), flow);
        serde_json::to_value(view).expect("JSON")
    }
}

/// Returns a valid e-mail notification.
pub(crate) fn draft(priority: Priority) -> ValidatedRequest {
    let request = NotificationRequest {
        channel: Channel::Email,
        recipient: mailbox("ada@example.com").into(),
        template: TemplateName::parse("welcome").expect("name"),
        variables: std::iter::once(("name".to_owned(), "Ada".into())).collect(),
        locale: None,
        priority,
        send_at: None,
        expires_at: None,
    };
    ValidatedRequest {
        allows_unverified: true,
        request,
        template_version: 1,
        locale: Locale::parse("en").expect("tag"),
    }
}

/// Returns the time `seconds` after [`START`].
pub(crate) fn after(seconds: u64) -> Timestamp {
    START.plus(Duration::from_secs(seconds))
}
