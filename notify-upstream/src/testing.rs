//! Test support: a complete replica over one store, advanced step by step.

pub(crate) mod judge;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_common::cache::Cache;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use postern_common::database::testing::{self, TestDatabase};
use postern_common::http::BudgetPermit;
use postern_common::identity::{IdentityConfig, Pool};
use postern_common::service::{ServiceClient, ServiceTokens};
use postern_common::{Clock, Problem};
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::mpsc;

use crate::address::{Address, EmailAddress};
use crate::delivery::actors::{Actors, OwnAddresses};
use crate::delivery::attempt::Courier;
use crate::delivery::pool::{Breaker, Outlet, Outlets, Shares, Turnstile};
use crate::delivery::provider::script::Script;
use crate::delivery::provider::{Codes, Provider};
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::{Board, Dispatcher, Finisher, Means, Runner};
use crate::housekeeping::Mover;
use crate::intake::group_commit::{AcceptedNotification, GroupCommitter, SubmissionQueue};
use crate::intake::request::{IdempotencyKey, NotificationRequest, ValidatedRequest};
use crate::lease::LeaseTime;
use crate::lease::Workers;
use crate::metrics::Metrics;
use crate::notification::OrderSequence;
use crate::notification::{Channel, NotificationId, Priority};
use crate::principal::Principal;
use crate::status::view::StatusView;
use crate::store::Recent;
use crate::store::Store;
use crate::templates::{Locale, TemplateName, Templates};

/// Initial time of every test.
pub(crate) const START: Timestamp = Timestamp(1_763_600_000_000);

/// A replica.
pub(crate) struct TestReplica {
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) script: Script,
    pub(crate) door: SubmissionQueue,
    pub(crate) writer: GroupCommitter,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) finisher: Finisher,
    pub(crate) runner: Arc<Runner>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) board: Arc<Board>,
    pub(crate) mover: Mover,
    pub(crate) stop: CancellationToken,
    pub(crate) recent: Arc<Recent>,
    pub(crate) suppression: Arc<Suppression>,
    pub(crate) templates: Arc<ArcSwap<Templates>>,
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
        let store = Store::open(&test.database, 4).await.expect("opens");
        store
            .keep_house(START, Timestamp(0))
            .await
            .expect("partitions");
        stores.push((store, test));
    }
    stores
}

pub(crate) fn templates() -> Templates {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conf/templates");
    Templates::load(&folder, Locale::parse("en").expect("tag"))
        .expect("the shipped templates are valid")
}

/// Returns one template of the given files.
pub(crate) fn templates_of(name: &str, files: &[(&str, &str)]) -> Templates {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
    for (file, text) in files {
        std::fs::write(folder.path().join(name).join(file), text).expect("a file");
    }
    Templates::load(folder.path(), Locale::parse("en").expect("tag")).expect("valid templates")
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

fn identity() -> IdentityConfig {
    let pool = |id: &str| Pool {
        pool_id: id.to_owned(),
        client_id: "c".to_owned(),
        client_secret: None,
        issuer: format!("http://127.0.0.1:9/{id}"),
        jwks_url: format!("http://127.0.0.1:9/{id}/jwks")
            .parse()
            .expect("URL"),
    };
    IdentityConfig {
        region: "us-west-2".to_owned(),
        endpoint: None,
        actor: pool("actor"),
        service: pool("service"),
        issuers: Vec::new(),
        service_account: None,
    }
}

impl TestReplica {
    /// Creates a replica with the given number of e-mail permits.
    pub(crate) async fn new(store: &Store, clock: &Clock, permits: usize) -> Self {
        Self::calling(store, clock, permits, 1000).await
    }

    /// Creates a replica whose provider accepts `at_once` concurrent calls.
    pub(crate) async fn calling(
        store: &Store,
        clock: &Clock,
        permits: usize,
        at_once: usize,
    ) -> Self {
        let script = Script::default();
        let actors = unreachable_actors(clock);
        Self::with(
            store,
            clock,
            permits,
            (&script, vec![outlet(&script, clock, at_once)]),
            actors,
        )
        .await
    }

    /// Creates a replica with the given provider and actor service. Its script is not used.
    pub(crate) async fn delivering(
        store: &Store,
        clock: &Clock,
        provider: Provider,
        actors: Actors,
    ) -> Self {
        let script = Script::default();
        let outlets = vec![Outlet {
            provider,
            ..outlet(&script, clock, 8)
        }];
        Self::with(store, clock, 8, (&script, outlets), actors).await
    }

    /// Creates a replica with two providers: one for `@other.example`, and one for all other
    /// addresses.
    pub(crate) async fn beside_another(
        store: &Store,
        clock: &Clock,
        permits: usize,
    ) -> (Self, Script) {
        let (script, other) = (Script::default(), Script::default());
        script.carries_all_but("@other.example");
        other.carries_only("@other.example");
        let outlets = [&script, &other]
            .map(|script| outlet(script, clock, 1000))
            .into();
        let actors = unreachable_actors(clock);
        (
            Self::with(store, clock, permits, (&script, outlets), actors).await,
            other,
        )
    }

    async fn with(
        store: &Store,
        clock: &Clock,
        permits: usize,
        (script, outlets): (&Script, Vec<Outlet>),
        actors: Actors,
    ) -> Self {
        let (store, clock, script) = (store.clone(), clock.clone(), script.clone());
        let workers = Workers::start(store.clone(), clock.clone(), LeaseTime::Own)
            .await
            .expect("registers");
        let board = Arc::new(Board::new([permits; 3], clock.clone()));
        let (metrics, stop) = (Metrics::new(), CancellationToken::new());
        let (ended, over) = mpsc::unbounded_channel();
        let suppression = Arc::new(Suppression::new(store.clone(), clock.clone()));
        let templates = Arc::new(ArcSwap::from_pointee(templates()));
        let courier = courier(&store, &clock, outlets, (&suppression, &templates), actors);
        let runner = Runner::new(
            courier,
            clock.clone(),
            Arc::clone(&workers),
            ended,
            stop.clone(),
        );
        let recent = Recent::new(clock.clone());
        let means = Means {
            recent: Arc::clone(&recent),
            store: store.clone(),
            clock: clock.clone(),
            sequence: Arc::new(OrderSequence::new(clock.clone())),
            workers: Arc::clone(&workers),
            board: Arc::clone(&board),
            runner: Arc::clone(&runner),
            metrics,
        };
        let (door, writer) = SubmissionQueue::open(means.clone());
        Self {
            dispatcher: Dispatcher::new(Channel::Email, &means),
            finisher: Finisher::new(&means, over),
            mover: Mover {
                store: store.clone(),
                clock: clock.clone(),
                board: Arc::clone(&board),
            },
            clock,
            store,
            script,
            door,
            writer,
            runner,
            workers,
            board,
            stop,
            recent,
            suppression,
            templates,
        }
    }

    /// Accepts one e-mail notification.
    pub(crate) async fn accept(&mut self, priority: Priority) -> NotificationId {
        self.submit(draft(priority), None)
            .await
            .expect("accepted")
            .id
    }

    /// Submits a notification as a service.
    pub(crate) async fn submit(
        &mut self,
        draft: ValidatedRequest,
        key: Option<&str>,
    ) -> Result<AcceptedNotification, Problem> {
        let principal = Principal {
            creator: "service:test".into(),
            actor: None,
        };
        self.submit_as(principal, draft, key).await
    }

    /// Submits a notification as `principal`.
    pub(crate) async fn submit_as(
        &mut self,
        principal: Principal,
        draft: ValidatedRequest,
        key: Option<&str>,
    ) -> Result<AcceptedNotification, Problem> {
        let (door, key) = (self.door.clone(), key.and_then(IdempotencyKey::parse));
        let answer = tokio::spawn(async move {
            door.accept(&principal, draft, key, BudgetPermit::default())
                .await
        });
        self.writer.step().await;
        answer.await.expect("no panic")
    }

    /// Runs one round: scan, claim, deliver, write results. Returns the number of results written.
    pub(crate) async fn step(&mut self) -> usize {
        self.dispatcher.survey().await.expect("looks");
        self.dispatcher.pass().await.expect("claims");
        self.settle().await
    }

    /// Waits for deliveries in progress and writes their results. Returns the number of results
    /// written.
    pub(crate) async fn settle(&mut self) -> usize {
        self.runner.idle().await;
        self.finisher.drain().await
    }

    pub(crate) async fn view(&self, id: NotificationId) -> serde_json::Value {
        let snapshot = self
            .store
            .read(&[id])
            .await
            .expect("reads")
            .pop()
            .expect("there");
        let flow = |channel| self.board.desk(channel).flow();
        let view = StatusView::of(&snapshot, self.clock.now(), flow, |_| false);
        serde_json::to_value(view).expect("JSON")
    }
}

fn outlet(script: &Script, clock: &Clock, at_once: usize) -> Outlet {
    Outlet {
        name: "script".to_owned(),
        provider: Provider::Script(script.clone()),
        weight: 1,
        turnstile: Turnstile::new(at_once, None),
        shares: Shares::new(at_once),
        breaker: Breaker::new(clock.clone()),
    }
}

/// Returns a client of the actor service at `base` with tokens of these pools.
pub(crate) fn actors(base: &str, identity: &IdentityConfig, clock: &Clock) -> Actors {
    let tokens = ServiceTokens::new(identity, Cache::memory(clock.clone()), clock.clone());
    let calls = ServiceClient::new(tokens, postern_common::service::http_client());
    let own = OwnAddresses {
        anyone: false,
        unverified: [false; 3],
    };
    Actors::new(base.parse().expect("URL"), calls, own)
}

fn unreachable_actors(clock: &Clock) -> Actors {
    actors("http://127.0.0.1:9", &identity(), clock)
}

fn courier(
    store: &Store,
    clock: &Clock,
    outlets: Vec<Outlet>,
    (suppression, templates): (&Arc<Suppression>, &Arc<ArcSwap<Templates>>),
    actors: Actors,
) -> Courier {
    Courier {
        templates: Arc::clone(templates),
        actors,
        store: store.clone(),
        outlets: Outlets::new([outlets, Vec::new(), Vec::new()], Codes::shipped()),
        suppression: Arc::clone(suppression),
        unverified: UnverifiedQuota::new(Cache::memory(clock.clone()), clock.clone()),
    }
}

/// Returns a valid e-mail notification.
pub(crate) fn draft(priority: Priority) -> ValidatedRequest {
    let address = EmailAddress::parse("ada@example.com").expect("address");
    let request = NotificationRequest {
        channel: Channel::Email,
        recipient: Address::Email(address).into(),
        template: TemplateName::parse("welcome").expect("name"),
        variables: serde_json::json!({"name": "Ada"})
            .as_object()
            .cloned()
            .expect("object"),
        locale: None,
        priority,
        send_at: None,
        expires_at: None,
    };
    ValidatedRequest {
        request,
        template_version: 1,
        locale: Locale::parse("en").expect("tag"),
    }
}

/// Returns the time `seconds` after [`START`].
pub(crate) fn after(seconds: u64) -> Timestamp {
    START.plus(Duration::from_secs(seconds))
}
