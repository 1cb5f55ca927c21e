//! The service: assembly from the configuration, operation and graceful shutdown.
//!
//! Input: a configuration and listeners bound by the caller. Output: a running service, until
//! shutdown. Depends on `config`, `http`, the stages that it assembles and the leaves that they
//! share; only `cli` depends on it.

mod admin_listener;
mod components;
mod shutdown;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_core::token::Verifier;
use postern_core::trace::Tracer;
use postern_service::admin;
use postern_service::calls::{ServiceClient, ServiceTokens};
use postern_service::http::{Limits, RequestTelemetry, serve_observed};
use postern_service::startup::{ConfigOrigin, Listeners};
use postern_service::trace::{SpanExport, SpanExportTask};
use postern_store::cache::Cache;
use postern_store::database::Database;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::components::{
    actor_client, build_providers, build_tracer, dispatch_state, load_templates, verifier,
    warn_without_mail_tokens,
};
use self::tasks::StoreTasks;
use crate::config::Config;
use crate::delivery::attempt::AttemptExecutor;
use crate::delivery::pool::MAX_CALL_DURATION;
use crate::delivery::provider::check_tls;
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::DispatchContext;
use crate::housekeeping::{CacheProbe, ProviderPauses, TemplateReloader};
use crate::http::{AdminParts, ApiState, CONCURRENT_READS};
use crate::intake::group_commit::SubmissionQueue;
use crate::intake::quota::CallerQuota;
use crate::lease::LeaseClock;
use crate::metrics::NotifyMetrics;
use crate::store::Store;

pub(crate) use components::provider_without_mail_tokens;

/// The assembled service.
pub struct App {
    config: Config,
    reloader: TemplateReloader,
    service_client: ServiceClient,
    service: Arc<ApiState>,
    admin_parts: AdminParts,
    tasks: StoreTasks,
    stop_delivery: CancellationToken,
    cache_probe: CacheProbe,
    tracer: Option<Tracer>,
    span_export: Option<SpanExportTask>,
}

/// Maximum duration of a graceful shutdown: the longest call, and the timeout of final writes once
/// before and twice after it. A service manager must wait longer before it kills the process.
pub const MAX_SHUTDOWN_DURATION: Duration =
    Duration::from_secs(MAX_CALL_DURATION.as_secs() + 3 * FINAL_WRITE_TIMEOUT.as_secs());

/// Maximum wait for pending submissions and claims at shutdown, and again for the last results, and
/// for the retirement of the lease.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

impl App {
    /// Opens the store and the cache, loads the templates, and registers a worker lease. Nothing is
    /// claimed yet. Identity tokens are checked by the clock of the machine; whatever is stored has
    /// the time of the database.
    ///
    /// # Errors
    /// Exit code 64 for invalid templates or settings; 69 if the store is unavailable or the system
    /// has no CA certificates.
    pub async fn build(mut config: Config, machine: Clock) -> Result<Self, Exit> {
        check_tls().map_err(Exit::unavailable)?;
        let metrics = NotifyMetrics::new();
        let (templates, reloader) = load_templates(&config, &metrics)?;
        let database = Database::open(&config.database, config.database_options()).await?;
        let store = Store::open(&database, config.queue.connections).await?;
        let clock = database.clock(&machine).await?;
        let cache = Cache::open(&config.cache, &Clock::system())?;
        warn_without_mail_tokens(&config);
        let (providers, descriptions) = build_providers(&mut config, &cache, &clock, &metrics)?;
        let dispatch_state = Arc::new(dispatch_state(&config, &descriptions));
        let pauses = ProviderPauses::new(store.clone(), providers, Arc::clone(&dispatch_state));
        // Pauses must be known before the first call.
        pauses.sync().await?;
        let verifier = verifier(&config, &machine);
        let service_client = ServiceClient::new(
            ServiceTokens::new(&config.identity, machine).reported(&metrics.dependencies),
            postern_service::calls::http_client(),
        );
        let (tracer, span_export) = build_tracer(&config, &clock, &metrics)?;
        let executor = AttemptExecutor {
            templates,
            actors: actor_client(&config, &service_client, &metrics),
            store: store.clone(),
            providers: Arc::clone(&pauses.pool),
            suppression: Arc::new(Suppression::new(store)),
            unverified: UnverifiedQuota::new(cache.clone(), clock.clone()),
        };
        let stop_delivery = CancellationToken::new();
        let (context, result_writer) = DispatchContext::start(
            executor,
            dispatch_state,
            metrics,
            (clock, LeaseClock::Store),
            stop_delivery.clone(),
            tracer.clone(),
        )
        .await;
        let (submissions, committer) = SubmissionQueue::open(context.clone());
        let service = api_state(&mut config, verifier, &context, submissions, &cache);
        Ok(Self {
            reloader,
            service_client,
            admin_parts: AdminParts {
                pauses,
                descriptions,
            },
            tasks: StoreTasks {
                retention: config.queue.retention,
                context,
                database,
                committer,
                result_writer,
            },
            stop_delivery,
            cache_probe: CacheProbe::new(cache, &service.metrics.dependencies),
            service: Arc::new(service),
            config,
            tracer,
            span_export,
        })
    }

    /// Returns the readiness checks.
    #[must_use]
    pub fn health(&self) -> Health {
        self.service.metrics.health.clone()
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
        let limits = Limits {
            bodies: self.config.queue.bodies,
            ..Limits::default()
        };
        let metrics = self.service.metrics.clone();
        let background_stop = CancellationToken::new();
        let mut background = JoinSet::new();
        let span_export = SpanExport::start(self.span_export.take());
        background.spawn(self.admin_parts.pauses.run(background_stop.clone()));
        background.spawn(self.cache_probe.run(background_stop.clone()));
        background.spawn(self.reloader.run(background_stop.clone()));
        background.spawn(Arc::clone(&self.service.verifier).run(shutdown.clone()));
        let (service_client, client_stop) = (self.service_client, shutdown.clone());
        background.spawn(async move { service_client.run(client_stop).await });
        let tasks = self
            .tasks
            .start(&self.stop_delivery, &mut background, &background_stop);
        let service_check = metrics.health.check("service");
        service_check.set_ok();
        if let Some(listener) = listeners.admin {
            let (hosts, stop) = (self.config.admin.hosts, background_stop.child_token());
            background.spawn(async move {
                admin::serve(listener, admin_router, Limits::default(), &hosts, stop).await;
            });
        }
        let router = crate::http::router(self.service);
        let telemetry = RequestTelemetry::new(metrics.http, self.tracer);
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
        tasks.finish(background_stop, background).await;
        span_export.finish().await;
    }
}

fn api_state(
    config: &mut Config,
    verifier: Arc<Verifier>,
    context: &DispatchContext,
    submissions: SubmissionQueue,
    cache: &Cache,
) -> ApiState {
    let (executor, clock) = (&context.runner.executor, context.clock.clone());
    let (user_quota, service_quota) = (config.user_quota, config.service_quota);
    ApiState {
        verifier,
        actor_issuer: config.identity.actor.issuer.as_str().into(),
        quota: CallerQuota::new(cache.clone(), clock.clone(), user_quota, service_quota),
        clock,
        templates: Arc::clone(&executor.templates),
        store: context.store.clone(),
        submissions,
        status_reads: Semaphore::new(CONCURRENT_READS),
        dispatch_state: Arc::clone(&context.dispatch_state),
        mail_tokens: config.mail_tokens.clone(),
        webhooks: Arc::new(std::mem::take(&mut config.webhooks)),
        actors: executor.actors.clone(),
        unverified: executor.unverified.clone(),
        suppression: Arc::clone(&executor.suppression),
        metrics: context.metrics.clone(),
        trusted_proxies: config.trusted_proxies.clone(),
        readers: config.access.readers.clone().into(),
        users_may_address_anyone: config.users_may_address_anyone,
        users_may_send_urgent: config.users_may_send_urgent,
    }
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
