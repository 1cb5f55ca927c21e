//! The service: assembly from the configuration, operation and graceful shutdown.
//!
//! Input: a configuration and listeners bound by the caller. Output: a running service, until
//! shutdown. Depends on `config`, `http`, the stages that it assembles and the leaves that they
//! share; only `cli` depends on it.

mod admin_listener;
mod components;
mod shards;
mod shutdown;

use postern_common::trace::{SpanExport, SpanExportTask, Tracer};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use futures_util::future::try_join_all;
use postern_common::Clock;
use postern_common::admin::{self, Health};
use postern_common::cache::Cache;
use postern_common::database::Database;
use postern_common::exit::Exit;
use postern_common::http::{Limits, RequestTelemetry, serve_observed};
use postern_common::service::{ServiceClient, ServiceTokens};
use postern_common::startup::{ConfigOrigin, Listeners};
use postern_common::token::Verifier;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::components::{
    actor_client, build_providers, build_tracer, cache_probe, load_templates, verifier,
    warn_without_mail_tokens,
};
use self::shards::{ShardOpener, ShardTasks, SharedParts, StoreSettings};
use crate::config::Config;
use crate::delivery::pool::MAX_CALL_DURATION;
use crate::delivery::provider::check_tls;
use crate::delivery::suppression::SuppressionCache;
use crate::dispatch::DispatchState;
use crate::housekeeping::{CacheProbe, ProviderPauses, TemplateReloader};
use crate::http::{AdminParts, ApiState};
use crate::intake::quota::CallerQuota;
use crate::metrics::NotifyMetrics;
use crate::notification::ShardNumber;
use crate::shard::{Shard, Shards};
use crate::store::{StoreError, Stores};
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
    /// The tasks of shard 0.
    first: ShardTasks,
    /// The other shards.
    others: Vec<ShardOpener>,
    stop_delivery: CancellationToken,
    cache_probe: CacheProbe,
    tracer: Option<Tracer>,
    span_export: Option<SpanExportTask>,
}

/// Maximum duration of a graceful shutdown: the longest call, and the timeout of final writes once
/// before and three times after it. A service manager must wait longer before it kills the process.
pub const MAX_SHUTDOWN_DURATION: Duration =
    Duration::from_secs(MAX_CALL_DURATION.as_secs() + 4 * FINAL_WRITE_TIMEOUT.as_secs());

/// Maximum wait for pending submissions and claims at shutdown, and again for the last results, for
/// the retirement of the lease, and for suppressed addresses.
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
        let settings = StoreSettings::of(&config);
        let first_database = (0, config.database.first_url());
        let opened = settings.open(first_database, &clock).await?;
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
        let suppression = Arc::new(SuppressionCache::new(opened.1.clone(), clock.clone()));
        // The suppression lists must be loaded before the first message is sent.
        suppression.sync().await.map_err(unavailable)?;
        let (tracer, span_export) = build_tracer(&config, &clock, &metrics)?;
        let dispatch_states = dispatch_states(&config, &clock);
        let parts = SharedParts {
            actors: actor_client(&config, &service_client, &metrics),
            clock,
            cache,
            metrics,
            templates,
            providers: Arc::clone(&providers),
            suppression,
            tracer,
            stop_delivery: CancellationToken::new(),
            dispatch_states,
            settings,
        };
        let pauses = ProviderPauses::new(
            opened.1.clone(),
            providers,
            Arc::clone(&parts.dispatch_states),
        );
        // Pauses must be known before the first call.
        pauses.sync().await.map_err(unavailable)?;
        let database = parts.metrics.dependencies();
        let database = Arc::new(database.required("database", opened.0.label()));
        let (shard, first) = parts.build(0, opened, database).await?;
        let service = api_state(&mut config, &parts, Arc::clone(&verifier), shard);
        let service = Arc::new(service);
        let mut others = openers(&config, &parts, &service);
        try_join_all(others.iter_mut().map(ShardOpener::prepare)).await?;
        Ok(Self {
            others,
            config,
            reloader,
            metrics: parts.metrics,
            clock: parts.clock,
            verifier,
            service_client,
            service,
            admin_parts: AdminParts {
                pauses,
                descriptions,
            },
            first,
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
        let first = self.first.start(&self.stop_delivery);
        let (drained, mut others) = (CancellationToken::new(), JoinSet::new());
        for opener in self.others {
            others.spawn(opener.run(drained.clone()));
        }
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
        let suppression = Arc::clone(&self.service.suppression);
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
        drained.cancel();
        let others_closed = async { while others.join_next().await.is_some() {} };
        let (first, ()) = tokio::join!(first.drain(), others_closed);
        background_stop.cancel();
        background.shutdown().await;
        write_suppressed(&suppression).await;
        first.close().await;
        span_export.finish().await;
    }
}

/// Writes the addresses that were suppressed since the last round of maintenance.
async fn write_suppressed(suppression: &SuppressionCache) {
    match tokio::time::timeout(FINAL_WRITE_TIMEOUT, suppression.flush()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "suppressed addresses not stored"),
        Err(_) => tracing::warn!(error = "timeout", "suppressed addresses not stored"),
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

/// Creates the state of each shard.
fn dispatch_states(config: &Config, clock: &Clock) -> Arc<[Arc<DispatchState>]> {
    let permits = config.permits_per_shard();
    let state = |_: &String| Arc::new(DispatchState::new(&permits, clock.clone()));
    config.database.shards.iter().map(state).collect()
}

fn api_state(
    config: &mut Config,
    parts: &SharedParts,
    verifier: Arc<Verifier>,
    first: Shard,
) -> ApiState {
    let clock = parts.clock.clone();
    let (user_quota, service_quota) = (config.user_quota, config.service_quota);
    let stores = Stores::new(config.database.shards.len(), first.store.clone());
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
        shards: Shards::new(stores, &config.database.accept, first),
        mail_tokens: config.mail_tokens.clone(),
        webhooks: Arc::new(std::mem::take(&mut config.webhooks)),
        suppression: Arc::clone(&parts.suppression),
        metrics: parts.metrics.clone(),
        trusted_proxies: config.trusted_proxies.clone(),
        readers: config.readers.clone().into(),
        users_may_address_anyone: config.users_may_address_anyone,
        users_may_send_urgent: config.users_may_send_urgent,
    }
}

/// Creates what opens the shards other than 0.
fn openers(config: &Config, parts: &SharedParts, api: &Arc<ApiState>) -> Vec<ShardOpener> {
    let dependencies = parts.metrics.dependencies();
    let others = config
        .database
        .shards
        .iter()
        .zip(0..=ShardNumber::MAX)
        .skip(1);
    let opener = |(url, number): (&String, _)| {
        let label = Database::label_of(url);
        let availability = dependencies.optional(format!("database-{number}"), label);
        ShardOpener {
            number,
            url: url.clone(),
            parts: parts.clone(),
            availability: Arc::new(availability),
            opened: None,
            api: Arc::downgrade(api),
        }
    };
    others.map(opener).collect()
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
