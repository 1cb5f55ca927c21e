//! The service: assembly from the configuration, operation and graceful shutdown.
//!
//! Input: a configuration and listeners bound by the caller. Output: a running service, until
//! shutdown. Depends on `config`, `http`, the stages that it assembles and the leaves that they
//! share; only `cli` depends on it.

mod admin_listener;
mod components;
mod shutdown;

use postern_common::trace::{SpanExport, SpanExportTask, Tracer};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use axum::Router;
use postern_common::Clock;
use postern_common::admin::{self, Health};
use postern_common::cache::Cache;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use postern_common::dependency::Dependency;
use postern_common::exit::Exit;
use postern_common::http::{Limits, RequestTelemetry, serve_observed};
use postern_common::service::{ServiceClient, ServiceTokens};
use postern_common::startup::{ConfigOrigin, Listeners};
use postern_common::token::Verifier;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::components::{
    actor_client, build_providers, build_tracer, cache_probe, load_templates, verifier,
    warn_without_mail_tokens,
};
use self::shutdown::{DeliveryTasks, retire_workers};
use crate::config::Config;
use crate::delivery::attempt::AttemptExecutor;
use crate::delivery::pool::MAX_CALL_DURATION;
use crate::delivery::provider::check_tls;
use crate::delivery::suppression::SuppressionCache;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::{
    AttemptRunner, CompletedJob, DispatchContext, DispatchState, Dispatcher, ResultWriter,
    WakeupPublisher,
};
use crate::housekeeping::{
    CacheProbe, DelayedRowMover, ProviderPauses, StoreMaintenance, TemplateReloader,
};
use crate::http::{AdminParts, ApiState};
use crate::intake::group_commit::{self, SubmissionQueue};
use crate::intake::quota::CallerQuota;
use crate::lease::{LeaseClock, WorkerRegistry};
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, OrderSequence};
use crate::status::reader::{StatusBatcher, StatusReader};
use crate::store::{SnapshotCache, Store, StoreError};
use crate::templates::Templates;
pub(crate) use components::provider_without_mail_tokens;

/// The assembled service.
pub struct App {
    config: Config,
    context: DispatchContext,
    reloader: TemplateReloader,
    health: Health,
    database: Arc<Dependency>,
    verifier: Arc<Verifier>,
    service_client: ServiceClient,
    service: Arc<ApiState>,
    admin_parts: AdminParts,
    batcher: StatusBatcher,
    committer: group_commit::GroupCommitter,
    result_writer: ResultWriter,
    dispatchers: Vec<Dispatcher>,
    stop_delivery: CancellationToken,
    suppression: Arc<SuppressionCache>,
    opened: Database,
    cache_probe: CacheProbe,
    tracer: Option<Tracer>,
    span_export: Option<SpanExportTask>,
}

/// Maximum duration of a graceful shutdown: the longest call, and the timeout of final writes once
/// before and twice after it. A service manager must wait longer before it kills the process.
pub const MAX_SHUTDOWN_DURATION: Duration =
    Duration::from_secs(MAX_CALL_DURATION.as_secs() + 3 * FINAL_WRITE_TIMEOUT.as_secs());

/// Maximum wait for pending submissions and claims at shutdown, and again for the last results and
/// for the retirement of the lease.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

// === impl App ===

impl App {
    /// Opens the store and the cache, loads the templates, and registers a worker lease. Nothing is
    /// claimed yet.
    ///
    /// # Errors
    /// Exit code 64 for invalid templates or settings; 69 if the store is unavailable or the system
    /// has no CA certificates.
    pub async fn build(mut config: Config, clock: Clock) -> Result<Self, Exit> {
        check_tls().map_err(Exit::unavailable)?;
        let (templates, reloader) = load_templates(&config)?;
        let (opened, store) = open_store(&config, &clock).await?;
        let cache = Cache::open(&config.cache).await?;
        let metrics = NotifyMetrics::new();
        let cache_probe = cache_probe(&cache, &metrics);
        warn_without_mail_tokens(&config);
        let (providers, descriptions) = build_providers(&mut config, &cache, &clock, &metrics)?;
        let verifier = verifier(&config, &clock);
        let service_client = ServiceClient::new(
            ServiceTokens::new(&config.identity, cache.clone(), clock.clone()),
            postern_common::service::http_client(),
        );
        let suppression = Arc::new(SuppressionCache::new(store.clone(), clock.clone()));
        // The suppression lists must be loaded before the first message is sent.
        suppression.sync().await.map_err(unavailable)?;
        let executor = AttemptExecutor {
            templates: Arc::clone(&templates),
            actors: actor_client(&config, &service_client, &metrics),
            store: store.clone(),
            providers: Arc::clone(&providers),
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
        let (completed, completed_jobs) = mpsc::unbounded_channel();
        let (tracer, span_export) = build_tracer(&config, &clock, &metrics)?;
        let runner = AttemptRunner::new(
            executor,
            clock.clone(),
            Arc::clone(&workers),
            completed,
            stop_delivery.clone(),
            tracer.clone(),
        );
        let context = dispatch_context(&config, (store, metrics), clock, workers, runner);
        let pauses = ProviderPauses::new(&context, providers);
        // Pauses must be known before the first call.
        pauses.sync().await.map_err(unavailable)?;
        let parts = AppParts {
            config,
            templates,
            reloader,
            admin_parts: AdminParts {
                pauses,
                descriptions,
            },
            opened,
            verifier,
            service_client,
            suppression,
            context,
            completed_jobs,
            stop_delivery,
            cache_probe,
            tracer,
            span_export,
        };
        Ok(Self::assemble(parts, quota))
    }

    fn assemble(mut parts: AppParts, quota: CallerQuota) -> Self {
        let context = parts.context;
        let (submissions, committer) = SubmissionQueue::open(context.clone());
        let (reader, batcher) =
            StatusReader::open(context.store.clone(), Arc::clone(&context.snapshot_cache));
        let health = context.metrics.health().clone();
        let dependencies = context.metrics.dependencies();
        let database = dependencies.required("database", parts.opened.label());
        let database = Arc::new(database);
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
            readers: parts.config.readers.clone().into(),
            users_may_address_anyone: parts.config.users_may_address_anyone,
            users_may_send_urgent: parts.config.users_may_send_urgent,
        };
        Self {
            result_writer: ResultWriter::new(&context, parts.completed_jobs),
            dispatchers: Channel::ALL
                .map(|channel| Dispatcher::new(channel, &context))
                .into(),
            context,
            config: parts.config,
            reloader: parts.reloader,
            health,
            database,
            verifier: parts.verifier,
            service_client: parts.service_client,
            service: Arc::new(service),
            admin_parts: parts.admin_parts,
            batcher,
            committer,
            stop_delivery: parts.stop_delivery,
            suppression: parts.suppression,
            opened: parts.opened,
            cache_probe: parts.cache_probe,
            tracer: parts.tracer,
            span_export: parts.span_export,
        }
    }

    fn maintenance(&self) -> StoreMaintenance {
        let context = &self.context;
        StoreMaintenance {
            store: context.store.clone(),
            clock: context.clock.clone(),
            workers: Arc::clone(&context.workers),
            suppression: Arc::clone(&self.suppression),
            dispatch_state: Arc::clone(&context.dispatch_state),
            metrics: context.metrics.clone(),
            database: Arc::clone(&self.database),
            opened: self.opened.clone(),
            retention: self.config.queue.retention,
        }
    }

    fn delayed_row_mover(&self) -> DelayedRowMover {
        DelayedRowMover {
            store: self.context.store.clone(),
            clock: self.context.clock.clone(),
            dispatch_state: Arc::clone(&self.context.dispatch_state),
        }
    }

    /// Returns the readiness checks.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Serves until `shutdown` is cancelled; then accepts no requests, starts no attempts, releases
    /// claimed rows and completes attempts in progress.
    /// `origin` is the configuration that `GET /admin/info` names.
    pub async fn run(
        mut self,
        listeners: Listeners,
        origin: ConfigOrigin,
        shutdown: CancellationToken,
    ) {
        let admin_router = self.admin_router(origin);
        let limits = api_limits(&self.config);
        let background_stop = CancellationToken::new();
        let mut background = JoinSet::new();
        let span_export = SpanExport::start(self.span_export.take());
        background.spawn(self.maintenance().run(background_stop.clone()));
        background.spawn(self.delayed_row_mover().run(self.stop_delivery.clone()));
        background.spawn(self.admin_parts.pauses.run(background_stop.clone()));
        background.spawn(self.cache_probe.run(background_stop.clone()));
        background.spawn(self.reloader.run(background_stop.clone()));
        background.spawn(self.verifier.run(shutdown.clone()));
        let (service_client, client_stop) = (self.service_client, shutdown.clone());
        background.spawn(async move { service_client.run(client_stop).await });
        let DispatchContext {
            store,
            workers,
            dispatch_state,
            runner,
            metrics,
            ..
        } = self.context;
        background.spawn(Arc::clone(&workers).run(background_stop.clone()));
        let mut dispatch_tasks = JoinSet::new();
        for dispatcher in self.dispatchers {
            dispatch_tasks.spawn(dispatcher.run(self.stop_delivery.clone()));
        }
        let publisher = start_publisher(&store, dispatch_state, &workers, &mut background);
        let service_check = self.health.check("service");
        service_check.set_ok();
        let committer = tokio::spawn(self.committer.run());
        let result_writer = tokio::spawn(self.result_writer.run());
        background.spawn(self.batcher.run());
        if let Some(listener) = listeners.admin {
            let stop = background_stop.child_token();
            background.spawn(serve_admin(
                listener,
                admin_router,
                self.config.admin.hosts,
                stop,
            ));
        }
        let router = crate::http::router(self.service);
        let telemetry = RequestTelemetry::new(metrics.http(), self.tracer);
        let stop = shutdown.clone();
        let serving = serve_observed(listeners.public, router, limits, telemetry, stop);
        // The last requests and the last calls complete concurrently. Notifications accepted
        // meanwhile are left in the queue for other replicas.
        let delivery_stop = async {
            shutdown.cancelled().await;
            service_check.set_failed("stopping");
            self.stop_delivery.cancel();
        };
        tokio::join!(serving, delivery_stop);
        DeliveryTasks {
            workers: Arc::clone(&workers),
            dispatch_tasks,
            committer,
            runner,
            result_writer,
            publisher,
        }
        .wait()
        .await;
        background_stop.cancel();
        background.shutdown().await;
        retire_workers(&workers, &store, &self.opened).await;
        span_export.finish().await;
    }
}

/// Starts the exchange of wake-ups with other replicas, if the store is shared.
fn start_publisher(
    store: &Store,
    dispatch_state: Arc<DispatchState>,
    workers: &Arc<WorkerRegistry>,
    background: &mut JoinSet<()>,
) -> Option<Arc<WakeupPublisher>> {
    let publisher = Arc::new(WakeupPublisher::new(store.clone(), dispatch_state)?);
    background.spawn(Arc::clone(&publisher).listen());
    background.spawn(Arc::clone(&publisher).run(Arc::clone(workers)));
    Some(publisher)
}

fn api_limits(config: &Config) -> Limits {
    Limits {
        bodies: config.queue.bodies,
        ..Limits::default()
    }
}

async fn serve_admin(
    listener: TcpListener,
    router: Router,
    hosts: Vec<String>,
    stop: CancellationToken,
) {
    admin::serve(listener, router, Limits::default(), &hosts, stop).await;
}

/// Opens the database, migrates its tables and creates the partitions of the near future.
async fn open_store(config: &Config, clock: &Clock) -> Result<(Database, Store), Exit> {
    let opened = Database::open(&config.database, config.database_options()).await?;
    let store = Store::open(&opened, config.queue.connections).await?;
    store
        .maintain(clock.now(), keep_from(config, clock.now()))
        .await
        .map_err(unavailable)?;
    Ok((opened, store))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "used as the argument of map_err"
)]
fn unavailable(error: StoreError) -> Exit {
    Exit::unavailable(error.to_string())
}

fn dispatch_context(
    config: &Config,
    (store, metrics): (Store, NotifyMetrics),
    clock: Clock,
    workers: Arc<WorkerRegistry>,
    runner: Arc<AttemptRunner>,
) -> DispatchContext {
    let dispatch_state = DispatchState::new(&config.queue.permits, clock.clone());
    DispatchContext {
        snapshot_cache: SnapshotCache::new(clock.clone()),
        sequence: Arc::new(OrderSequence::new(clock.clone())),
        dispatch_state: Arc::new(dispatch_state),
        metrics,
        store,
        clock,
        workers,
        runner,
    }
}

/// The components that [`App::build`] has created.
struct AppParts {
    config: Config,
    templates: Arc<ArcSwap<Templates>>,
    reloader: TemplateReloader,
    admin_parts: AdminParts,
    opened: Database,
    verifier: Arc<Verifier>,
    service_client: ServiceClient,
    suppression: Arc<SuppressionCache>,
    context: DispatchContext,
    completed_jobs: mpsc::UnboundedReceiver<CompletedJob>,
    stop_delivery: CancellationToken,
    cache_probe: CacheProbe,
    tracer: Option<Tracer>,
    span_export: Option<SpanExportTask>,
}

fn keep_from(config: &Config, now: Timestamp) -> Timestamp {
    Timestamp(now.0 - i64::try_from(config.queue.retention.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds of `key` after the text `from` in a file.
    fn seconds(text: &str, from: &str, key: &str) -> u64 {
        let (_, rest) = text.split_once(from).expect("the position is known");
        let (_, value) = rest.split_once(key).expect("the key is stored");
        let digits: String = value
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().expect("a number")
    }

    #[test]
    fn supervisors_wait_longer_than_a_graceful_shutdown() {
        let unit = include_str!("../../conf/deploy/postern-notify.service");
        let cluster = include_str!("../../conf/deploy/kubernetes/base/notify.yaml");
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
