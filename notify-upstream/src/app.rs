//! The service: assembly from the configuration, operation and graceful shutdown.
//!
//! Input: a configuration and listeners bound by the caller. Output: a running service, until
//! shutdown. Depends on `config`, `http`, the stages that it assembles and the leaves that they
//! share; only `cli` depends on it.

mod admin_listener;
mod components;
mod shutdown;
mod tasks;

use postern_core::trace::Tracer;
use postern_service::trace::{SpanExport, SpanExportTask};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use postern_core::Clock;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_core::token::Verifier;
use postern_service::admin;
use postern_service::calls::{ServiceClient, ServiceTokens};
use postern_service::http::{Limits, RequestTelemetry, serve_observed};
use postern_service::startup::{ConfigOrigin, Listeners};
use postern_store::cache::Cache;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::components::{
    actor_client, build_providers, build_tracer, cache_probe, load_templates, verifier,
    warn_without_mail_tokens,
};
use self::tasks::{SharedParts, StoreTasks, open_store};
use crate::config::Config;
use crate::delivery::pool::MAX_CALL_DURATION;
use crate::delivery::provider::check_tls;
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::DispatchState;
use crate::housekeeping::{CacheProbe, ProviderPauses, TemplateReloader};
use crate::http::{AdminParts, ApiState, CONCURRENT_READS};
use crate::intake::group_commit::SubmissionQueue;
use crate::intake::quota::CallerQuota;
use crate::metrics::NotifyMetrics;
use crate::notification::PerChannel;
use crate::store::{Store, StoreError};
pub(crate) use components::provider_without_mail_tokens;

/// The assembled service.
pub struct App {
    config: Config,
    reloader: TemplateReloader,
    metrics: NotifyMetrics,
    clock: Clock,
    verifier: Arc<Verifier>,
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

// === impl App ===

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
        let (opened, store, clock) = open_store(&config, &machine).await?;
        let cache = Cache::open(&config.cache).await?;
        let cache_probe = cache_probe(&cache, &metrics);
        warn_without_mail_tokens(&config);
        let (providers, descriptions) = build_providers(&mut config, &cache, &clock, &metrics)?;
        let verifier = verifier(&config, &machine);
        let service_client = ServiceClient::new(
            ServiceTokens::new(&config.identity, machine).reported(metrics.dependencies()),
            postern_service::calls::http_client(),
        );
        let (tracer, span_export) = build_tracer(&config, &clock, &metrics)?;
        let calls = PerChannel::from_fn(|channel| {
            let of_channel = descriptions.iter().filter(|it| it.channel == channel);
            of_channel.map(|provider| provider.concurrency).sum()
        });
        let dispatch_state = DispatchState::new(&config.queue.permits, &calls);
        let parts = SharedParts {
            actors: actor_client(&config, &service_client, &metrics),
            clock,
            cache,
            metrics,
            templates,
            providers: Arc::clone(&providers),
            suppression: Arc::new(Suppression::new(store.clone())),
            tracer,
            stop_delivery: CancellationToken::new(),
            dispatch_state: Arc::new(dispatch_state),
            retention: config.queue.retention,
        };
        let pauses =
            ProviderPauses::new(store.clone(), providers, Arc::clone(&parts.dispatch_state));
        // Pauses must be known before the first call.
        pauses.sync().await.map_err(unavailable)?;
        let database = parts.metrics.dependencies();
        let database = database.required("database", opened.label());
        let (submissions, tasks) = parts.build((opened, store.clone()), database).await;
        let service = api_state(
            &mut config,
            &parts,
            Arc::clone(&verifier),
            (store, submissions),
        );
        Ok(Self {
            config,
            reloader,
            metrics: parts.metrics,
            clock: parts.clock,
            verifier,
            service_client,
            service: Arc::new(service),
            admin_parts: AdminParts {
                pauses,
                descriptions,
            },
            tasks,
            stop_delivery: parts.stop_delivery,
            cache_probe,
            tracer: parts.tracer,
            span_export,
        })
    }

    /// Returns the readiness checks.
    #[must_use]
    pub fn health(&self) -> Health {
        self.metrics.health().clone()
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
        background.spawn(self.admin_parts.pauses.run(background_stop.clone()));
        background.spawn(self.cache_probe.run(background_stop.clone()));
        background.spawn(self.reloader.run(background_stop.clone()));
        background.spawn(self.verifier.run(shutdown.clone()));
        let (service_client, client_stop) = (self.service_client, shutdown.clone());
        background.spawn(async move { service_client.run(client_stop).await });
        let tasks = self
            .tasks
            .start(&self.stop_delivery, &mut background, &background_stop);
        let service_check = self.metrics.health().check("service");
        service_check.set_ok();
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
        let telemetry = RequestTelemetry::new(self.metrics.http(), self.tracer);
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

#[expect(
    clippy::needless_pass_by_value,
    reason = "used as the argument of map_err"
)]
fn unavailable(error: StoreError) -> Exit {
    Exit::unavailable(error.to_string())
}

fn api_state(
    config: &mut Config,
    parts: &SharedParts,
    verifier: Arc<Verifier>,
    (store, submissions): (Store, SubmissionQueue),
) -> ApiState {
    let clock = parts.clock.clone();
    let (user_quota, service_quota) = (config.user_quota, config.service_quota);
    ApiState {
        verifier,
        actor_issuer: config.identity.actor.issuer.as_str().into(),
        quota: CallerQuota::new(
            parts.cache.clone(),
            clock.clone(),
            user_quota,
            service_quota,
        ),
        clock,
        templates: Arc::clone(&parts.templates),
        store,
        submissions,
        status_reads: Semaphore::new(CONCURRENT_READS),
        dispatch_state: Arc::clone(&parts.dispatch_state),
        mail_tokens: config.mail_tokens.clone(),
        webhooks: Arc::new(std::mem::take(&mut config.webhooks)),
        actors: parts.actors.clone(),
        unverified: UnverifiedQuota::new(parts.cache.clone(), parts.clock.clone()),
        suppression: Arc::clone(&parts.suppression),
        metrics: parts.metrics.clone(),
        trusted_proxies: config.trusted_proxies.clone(),
        readers: config.readers.clone().into(),
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
