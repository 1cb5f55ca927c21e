//! The process: what is built from the configuration, and what runs.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use postern_common::Clock;
use postern_common::admin::{self, Check, Health};
use postern_common::cache::Cache;
use postern_common::clock::Timestamp;
use postern_common::database::{Database, Options};
use postern_common::exit::Exit;
use postern_common::http::Limits;
use postern_common::service::{ServiceClient, ServiceTokens};
use postern_common::token::{Verifier, VerifierOptions};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Config;
use crate::delivery::actors::{ActorClient, UserAddressPolicy};
use crate::delivery::attempt::AttemptExecutor;
use crate::delivery::mail_token::KEY_VARIABLE;
use crate::delivery::pool::{MAX_CALL_DURATION, ProviderPool};
use crate::delivery::pool::{ProviderConfig, ProviderSettings};
use crate::delivery::provider::check_tls;
use crate::delivery::suppression::SuppressionCache;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::{
    AttemptRunner, CompletedJob, DispatchContext, DispatchState, Dispatcher, ResultWriter,
    WakeupPublisher,
};
use crate::housekeeping::{DelayedRowMover, StoreMaintenance, TemplateReloader};
use crate::http::ApiState;
use crate::intake::group_commit::{self, SubmissionQueue};
use crate::intake::quota::CallerQuota;
use crate::lease::LeaseClock;
use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::notification::Channel;
use crate::notification::OrderSequence;
use crate::status::reader::{StatusBatcher, StatusReader};
use crate::store::SnapshotCache;
use crate::store::Store;
use crate::templates::{Templates, fingerprint};

/// The sockets, which the caller owns.
#[derive(Debug)]
pub struct Listeners {
    /// Requests of the gateway and of services.
    pub public: TcpListener,
    /// `/livez`, `/readyz`, `/metrics`.
    pub admin: Option<TcpListener>,
}

/// The service, ready to run.
pub struct App {
    config: Config,
    context: DispatchContext,
    reloader: TemplateReloader,
    health: Health,
    database: Check,
    verifier: Arc<Verifier>,
    calls: ServiceClient,
    service: ApiState,
    batcher: StatusBatcher,
    committer: group_commit::GroupCommitter,
    finisher: ResultWriter,
    dispatchers: Vec<Dispatcher>,
    stop_delivery: CancellationToken,
    suppression: Arc<SuppressionCache>,
    opened: Database,
}

/// How long a stop takes at most: the longest call, and [`FINAL_WRITE_TIMEOUT`] before and twice
/// after it. Whoever stops the process by force waits longer.
pub const MAX_SHUTDOWN_DURATION: Duration =
    Duration::from_secs(MAX_CALL_DURATION.as_secs() + 3 * FINAL_WRITE_TIMEOUT.as_secs());

/// How long a stop waits for what was submitted to be written and the last claims to be heard of,
/// and again for the last results to be written.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

// === impl App ===

impl App {
    /// Opens the stores, loads the templates, takes a lease. Nothing is claimed yet.
    ///
    /// # Errors
    /// Status 64 for templates or settings that are wrong, 69 for a store that is away and for a
    /// system without CA certificates.
    pub async fn build(mut config: Config, clock: Clock) -> Result<Self, Exit> {
        check_tls().map_err(Exit::unavailable)?;
        let (templates, reloader) = load_templates(&config)?;
        let opened = Database::open(&config.database, Options::new("postern-notify")).await?;
        let store = Store::open(&opened, config.queue.connections).await?;
        let unavailable = |error: crate::store::StoreError| Exit::unavailable(error.to_string());
        store
            .maintain(clock.now(), keep_from(&config, clock.now()))
            .await
            .map_err(unavailable)?;
        let cache = Cache::open(&config.cache).await?;
        warn_without_mail_tokens(&config);
        let providers = ProviderPool::build(
            std::mem::take(&mut config.providers),
            &config.queue.permits,
            &cache,
            &clock,
        )?;
        let verifier = Verifier::new(
            config.identity.issuers(),
            VerifierOptions {
                clock: clock.clone(),
                ..VerifierOptions::default()
            },
        );
        let calls = ServiceClient::new(
            ServiceTokens::new(&config.identity, cache.clone(), clock.clone()),
            postern_common::service::http_client(),
        );
        let suppression = Arc::new(SuppressionCache::new(store.clone(), clock.clone()));
        // Before anything is sent it is known where nothing is to be sent.
        suppression.sync().await.map_err(unavailable)?;
        let own = UserAddressPolicy {
            anyone: config.users_may_address_anyone,
            unverified: config.unverified_addresses,
        };
        let executor = AttemptExecutor {
            templates: Arc::clone(&templates),
            actors: ActorClient::new(config.actor_service.clone(), calls.clone(), own),
            store: store.clone(),
            providers,
            suppression: Arc::clone(&suppression),
            unverified: UnverifiedQuota::new(cache.clone(), clock.clone()),
        };
        let quota = CallerQuota::new(
            cache,
            clock.clone(),
            config.user_quota,
            config.service_quota,
        );
        let workers = WorkerRegistry::start(store.clone(), clock.clone(), LeaseClock::Store)
            .await
            .map_err(unavailable)?;
        let stop_delivery = CancellationToken::new();
        let (completed, over) = mpsc::unbounded_channel();
        let runner = AttemptRunner::new(
            executor,
            clock.clone(),
            Arc::clone(&workers),
            completed,
            stop_delivery.clone(),
        );
        let context = DispatchContext {
            snapshot_cache: SnapshotCache::new(clock.clone()),
            sequence: Arc::new(OrderSequence::new(clock.clone())),
            dispatch_state: Arc::new(DispatchState::new(&config.queue.permits, clock.clone())),
            metrics: NotifyMetrics::new(),
            store,
            clock,
            workers,
            runner,
        };
        let parts = AppParts {
            config,
            templates,
            reloader,
            opened,
            verifier,
            calls,
            suppression,
            context,
            over,
            stop_delivery,
        };
        Ok(Self::assemble(parts, quota))
    }

    fn assemble(mut parts: AppParts, quota: CallerQuota) -> Self {
        let context = parts.context;
        let (submissions, committer) = SubmissionQueue::open(context.clone());
        let (reader, batcher) =
            StatusReader::open(context.store.clone(), Arc::clone(&context.snapshot_cache));
        let health = Health::new();
        let database = health.check("database");
        let service = ApiState {
            verifier: Arc::clone(&parts.verifier),
            actor_issuer: parts.config.identity.actor.issuer.as_str().into(),
            clock: context.clock.clone(),
            templates: parts.templates,
            submissions,
            reader,
            snapshot_cache: Arc::clone(&context.snapshot_cache),
            store: context.store.clone(),
            dispatch_state: Arc::clone(&context.dispatch_state),
            quota,
            mail_tokens: parts.config.mail_tokens.clone(),
            webhooks: Arc::new(std::mem::take(&mut parts.config.webhooks)),
            suppression: Arc::clone(&parts.suppression),
            metrics: context.metrics.clone(),
            trusted_proxies: parts.config.trusted_proxies.clone(),
            users_may_address_anyone: parts.config.users_may_address_anyone,
            users_may_send_urgent: parts.config.users_may_send_urgent,
        };
        Self {
            finisher: ResultWriter::new(&context, parts.over),
            dispatchers: Channel::ALL
                .map(|channel| Dispatcher::new(channel, &context))
                .into(),
            context,
            config: parts.config,
            reloader: parts.reloader,
            health,
            database,
            verifier: parts.verifier,
            calls: parts.calls,
            service,
            batcher,
            committer,
            stop_delivery: parts.stop_delivery,
            suppression: parts.suppression,
            opened: parts.opened,
        }
    }

    /// What stands in the way of readiness.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Serves until the stop; then accepts nothing, begins nothing, hands back what has not begun
    /// and finishes what has.
    pub async fn run(self, listeners: Listeners, shutdown: CancellationToken) {
        let DispatchContext {
            store,
            clock,
            workers,
            dispatch_state,
            runner,
            metrics,
            sequence: _,
            snapshot_cache: _,
        } = self.context;
        let mut background = JoinSet::new();
        let late = CancellationToken::new();
        background.spawn(self.verifier.run(shutdown.clone()));
        let (calls, end) = (self.calls, shutdown.clone());
        background.spawn(async move { calls.run(end).await });
        background.spawn(Arc::clone(&workers).run(late.clone()));
        let mut claiming = JoinSet::new();
        for dispatcher in self.dispatchers {
            claiming.spawn(dispatcher.run(self.stop_delivery.clone()));
        }
        let publisher =
            WakeupPublisher::new(store.clone(), Arc::clone(&dispatch_state)).map(Arc::new);
        if let Some(publisher) = &publisher {
            background.spawn(Arc::clone(publisher).listen());
            background.spawn(Arc::clone(publisher).run());
        }
        let mover = DelayedRowMover {
            store: store.clone(),
            clock: clock.clone(),
            dispatch_state,
        };
        background.spawn(mover.run(self.stop_delivery.clone()));
        let closing = store.clone();
        let keeper = StoreMaintenance {
            store,
            clock,
            workers: Arc::clone(&workers),
            suppression: self.suppression,
            metrics: metrics.clone(),
            database: self.database,
            opened: self.opened.clone(),
            retention: self.config.queue.retention,
        };
        background.spawn(keeper.run(late.clone()));
        background.spawn(self.reloader.run(late.clone()));
        let serves = self.health.check("service");
        serves.set_ok();
        let writer = tokio::spawn(self.committer.run());
        let finisher = tokio::spawn(self.finisher.run());
        background.spawn(self.batcher.run());
        if let Some(listener) = listeners.admin {
            let router = admin::router(self.health, metrics.registry());
            let (hosts, stop) = (self.config.admin_hosts.clone(), late.child_token());
            background.spawn(async move {
                admin::serve(listener, router, Limits::default(), &hosts, stop).await;
            });
        }
        let router = crate::http::router(self.service);
        let limits = Limits {
            bodies: self.config.queue.bodies,
            ..Limits::default()
        };
        let serving =
            postern_common::http::serve(listeners.public, router, limits, shutdown.clone());
        // The last requests and the last calls end side by side; what is accepted meanwhile is left
        // to others.
        let giving_back = async {
            shutdown.cancelled().await;
            serves.set_failed("stopping");
            self.stop_delivery.cancel();
        };
        tokio::join!(serving, giving_back);
        DeliveryTasks {
            workers: Arc::clone(&workers),
            claiming,
            writer,
            runner,
            finisher,
            publisher,
        }
        .end()
        .await;
        late.cancel();
        background.shutdown().await;
        sign_off(&workers, &closing, &self.opened).await;
    }
}

/// Ends the lease and closes the connections. A store that is silent is not waited for: the lease
/// ends by itself.
async fn sign_off(workers: &WorkerRegistry, store: &Store, opened: &Database) {
    let leaving = async {
        workers.retire_all().await;
        store.close().await;
        opened.close().await;
    };
    if tokio::time::timeout(FINAL_WRITE_TIMEOUT, leaving)
        .await
        .is_err()
    {
        tracing::warn!("stopped without signing off from the database");
    }
}

/// What a stop waits for.
struct DeliveryTasks {
    workers: Arc<WorkerRegistry>,
    writer: JoinHandle<()>,
    claiming: JoinSet<()>,
    runner: Arc<AttemptRunner>,
    finisher: JoinHandle<()>,
    publisher: Option<Arc<WakeupPublisher>>,
}

impl DeliveryTasks {
    /// Once nothing is begun any more: returns when the last result is written and the others know
    /// what is left to them.
    async fn end(mut self) {
        // The last door is closed: what was submitted is committed, and the writer ends. A claim
        // that is under way is heard of, and what it took is handed back; else it is rescued.
        let heard_of = async { while self.claiming.join_next().await.is_some() {} };
        let written = tokio::time::timeout(FINAL_WRITE_TIMEOUT, self.writer);
        if let (_, Err(_)) =
            tokio::join!(written, tokio::time::timeout(FINAL_WRITE_TIMEOUT, heard_of))
        {
            self.workers.doubt(&self.workers.current());
            self.claiming.shutdown().await;
        }
        // Leases are renewed until then. Each call has its deadline: there is no second one here
        // that could cut it off.
        self.runner.wait_until_idle().await;
        drop(self.runner);
        let last_words = async {
            let _ = self.finisher.await;
            match self.publisher {
                Some(publisher) => publisher.flush().await,
                None => Ok(()),
            }
        };
        if !matches!(
            tokio::time::timeout(FINAL_WRITE_TIMEOUT, last_words).await,
            Ok(Ok(()))
        ) {
            tracing::warn!(
                "stopped with results that could not be written, or with nobody told of what was handed back"
            );
        }
    }
}

/// What [`App::build`] has opened.
struct AppParts {
    config: Config,
    templates: Arc<ArcSwap<Templates>>,
    reloader: TemplateReloader,
    opened: Database,
    verifier: Arc<Verifier>,
    calls: ServiceClient,
    suppression: Arc<SuppressionCache>,
    context: DispatchContext,
    over: mpsc::UnboundedReceiver<CompletedJob>,
    stop_delivery: CancellationToken,
}

/// The templates, and what follows their folder from now on.
fn load_templates(config: &Config) -> Result<(Arc<ArcSwap<Templates>>, TemplateReloader), Exit> {
    let (folder, default_locale) = (&config.templates.folder, &config.templates.default_locale);
    if !folder.is_dir() {
        let place = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        return Err(Exit::usage(format!(
            "templates.folder: there is no folder {}",
            place.display()
        )));
    }
    // Before they are read: what changes meanwhile is noticed.
    let seen = fingerprint(folder);
    let templates = Templates::load(folder, default_locale.clone()).map_err(Exit::usage)?;
    let templates = Arc::new(ArcSwap::from_pointee(templates));
    let reloader = TemplateReloader {
        folder: folder.clone(),
        default_locale: default_locale.clone(),
        templates: Arc::clone(&templates),
        seen,
    };
    Ok((templates, reloader))
}

fn keep_from(config: &Config, now: Timestamp) -> Timestamp {
    Timestamp(now.0 - i64::try_from(config.queue.retention.as_millis()).unwrap_or(i64::MAX))
}

/// Mail that could offer a click or whose reports could be read does neither without a key.
fn warn_without_mail_tokens(config: &Config) {
    let needs = |pooled: &&ProviderConfig| match &pooled.provider {
        ProviderSettings::Smtp(smtp) => smtp.unsubscribe.is_some() || smtp.return_path.is_some(),
        ProviderSettings::Twilio(_)
        | ProviderSettings::Http(_)
        | ProviderSettings::Fcm(_)
        | ProviderSettings::WebPush(_)
        | ProviderSettings::File(_)
        | ProviderSettings::Null => false,
    };
    if config.mail_tokens.is_none()
        && let Some(pooled) = config.providers.iter().find(needs)
    {
        tracing::warn!(
            provider = pooled.name,
            variable = KEY_VARIABLE,
            "variable not set: mail offers no one-click unsubscription, and delivery reports are not believed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds behind a key, from a place in a file on.
    fn seconds(text: &str, from: &str, key: &str) -> u64 {
        let (_, rest) = text.split_once(from).expect("the place is there");
        let (_, value) = rest.split_once(key).expect("the key is there");
        let digits: String = value
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().expect("a number")
    }

    #[test]
    fn whoever_ends_it_by_force_waits_longer_than_a_stop_takes() {
        let unit = include_str!("../../conf/deploy/postern-notify.service");
        let cluster = include_str!("../../conf/deploy/kubernetes.yaml");
        let systemd = seconds(unit, "[Service]", "TimeoutStopSec=");
        let kubernetes = seconds(
            cluster,
            "name: postern-notify",
            "terminationGracePeriodSeconds:",
        );
        for given in [systemd, kubernetes] {
            assert!(given >= MAX_SHUTDOWN_DURATION.as_secs() + 10, "{given} s");
        }
    }
}
