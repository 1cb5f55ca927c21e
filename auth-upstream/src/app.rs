//! Startup, background tasks and shutdown of the authentication upstream.

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use postern_core::check::CheckResult;
use postern_core::config::AdminListener;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_core::identity::IdentityConfig;
use postern_core::trace::Tracer;
use postern_service::admin;
use postern_service::admin_api::{self, ProcessInfo};
use postern_service::http::{Limits, RequestTelemetry, serve_observed};
use postern_service::startup::{ConfigOrigin, Listeners};
use postern_service::trace::{SpanExport, SpanExportTask};
use postern_store::database::StatementHealth;
use tokio_util::sync::CancellationToken;

use crate::assembly::AuthService;
use crate::config::Config;
use crate::diagnostics::{check_trusted_proxies, run_checks};
use crate::http;

/// Maximum size of a request body. A registration is below 40 KiB.
const MAX_BODY_BYTES: usize = 64 << 10;
/// The time between the start and the checks whose results are logged.
const STARTUP_CHECK_DELAY: Duration = Duration::from_secs(5);
/// Maximum time at shutdown for storing the audit events that are queued.
const FINAL_AUDIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two probes of the stores.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// An authentication upstream.
#[derive(Debug)]
pub struct App {
    service: Arc<AuthService>,
    identity: IdentityConfig,
    proxy_check: CheckResult,
    admin: AdminListener,
    clock: Clock,
    tracer: Option<Tracer>,
    span_export: Option<SpanExportTask>,
}

// === impl App ===

impl App {
    /// Opens the stores and builds the service, without binding a socket.
    ///
    /// # Errors
    /// Status 64 if the sealing key stored in the database is invalid. Status 69 if the database is
    /// unavailable, or if an HTTPS client cannot be built, for instance without CA certificates.
    pub async fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let identity = config.identity.clone();
        let proxy_check = check_trusted_proxies(config.listen, &config.trusted_proxies);
        let admin = config.admin.clone();
        let tracing = config.tracing.clone();
        let service = Box::pin(AuthService::build(config, clock.clone())).await?;
        let (tracer, span_export) = postern_service::trace::tracer(
            tracing.as_ref(),
            "postern-auth",
            &clock,
            &service.metrics.own.spans_dropped,
        )?;
        Ok(Self {
            service: Arc::new(service),
            identity,
            proxy_check,
            admin,
            clock,
            tracer,
            span_export,
        })
    }

    /// Checks the configuration against pools, stores and clock.
    pub async fn check(&self) -> Vec<CheckResult> {
        let mut results = vec![self.proxy_check.clone()];
        let checks = run_checks(&self.identity, &self.clock, &self.service);
        results.extend(Box::pin(checks).await);
        results
    }

    /// Returns the readiness of the service, for a caller that serves `/readyz` itself.
    #[must_use]
    pub fn health(&self) -> Health {
        self.service.metrics.health.clone()
    }

    #[cfg(test)]
    pub(crate) fn into_service(self) -> Arc<AuthService> {
        self.service
    }

    /// Serves until shutdown, then drains requests in flight for at most [`Limits::drain`].
    /// `origin` is the configuration that `GET /admin/info` names.
    pub async fn run(
        self,
        listeners: Listeners,
        origin: ConfigOrigin,
        shutdown: CancellationToken,
    ) {
        let (service, health) = (Arc::clone(&self.service), self.health());
        let (admin, clock) = (self.admin, self.clock);
        let span_export = SpanExport::start(self.span_export);
        log_warnings(&[self.proxy_check]);
        let limits = Limits {
            body: MAX_BODY_BYTES,
            ..Limits::default()
        };
        // The admin listener may be served before the first probe of the stores.
        health.check("service").set_failed("starting");
        let background = tokio::spawn(run_background_tasks(
            Arc::clone(&service),
            health.clone(),
            shutdown.clone(),
        ));
        let audit_stop = CancellationToken::new();
        let audit_writer = service
            .audit_trail
            .take_writer()
            .map(|writer| tokio::spawn(writer.run(audit_stop.clone())));
        let startup_check = run_startup_check(self.identity, clock.clone(), Arc::clone(&service));
        let startup_check = tokio::spawn(startup_check);
        let admin_task = listeners.admin.map(|listener| {
            origin.export(&service.metrics.registry);
            let info = process_info(origin, &clock);
            let routes = http::admin_routes(&service.audit_trail.reader, &service.flows).merge(
                admin_api::info_route(move || info.clone(), health.clone(), clock),
            );
            let router = admin::router(health, service.metrics.registry.clone())
                .merge(admin_api::protect(admin.token.as_ref(), routes));
            let (hosts, shutdown) = (admin.hosts, shutdown.clone());
            tokio::spawn(async move {
                admin::serve(listener, router, Limits::default(), &hosts, shutdown).await;
            })
        });
        let router = http::router(Arc::clone(&service.flows), service.trusted_proxies.clone());
        let telemetry = RequestTelemetry::new(service.metrics.http.clone(), self.tracer);
        serve_observed(listeners.public, router, limits, telemetry, shutdown).await;
        tracing::info!("requests drained");
        // Aborting is safe at any point: these tasks tolerate a crash.
        background.abort();
        startup_check.abort();
        for task in [background, startup_check].into_iter().chain(admin_task) {
            if let Err(error) = task.await
                && !error.is_cancelled()
            {
                tracing::error!(%error, "background task failed");
            }
        }
        audit_stop.cancel();
        if let Some(writer) = audit_writer
            && tokio::time::timeout(FINAL_AUDIT_TIMEOUT, writer)
                .await
                .is_err()
        {
            tracing::warn!("audit events not stored at shutdown");
        }
        service.store.database().close().await;
        span_export.finish().await;
    }
}

fn process_info(origin: ConfigOrigin, clock: &Clock) -> ProcessInfo {
    ProcessInfo {
        service: "postern-auth",
        version: env!("CARGO_PKG_VERSION"),
        config_file: origin.file,
        config_hash: origin.hash,
        started_at: clock.now(),
    }
}

async fn run_background_tasks(
    service: Arc<AuthService>,
    health: Health,
    shutdown: CancellationToken,
) {
    tokio::join!(
        Arc::clone(&service.verifier).run(shutdown.clone()),
        service.actor_service.run(shutdown.clone()),
        service.flows.run_compensation(&shutdown),
        service.audit_trail.run_retention(&shutdown),
        probe_stores(&service, &health, &shutdown),
    );
}

/// Runs the checks once, after the start and concurrently with requests, so that a slow pool and
/// the password hashes of the checks do not delay the start.
async fn run_startup_check(identity: IdentityConfig, clock: Clock, service: Arc<AuthService>) {
    tokio::time::sleep(STARTUP_CHECK_DELAY).await;
    let results = Box::pin(run_checks(&identity, &clock, &service)).await;
    log_warnings(&results);
    tracing::info!(checks = results.len(), "startup check completed");
}

fn log_warnings(results: &[CheckResult]) {
    for result in results.iter().filter(|result| result.needs_attention()) {
        tracing::warn!(%result, "startup check failed, see `postern-auth check`");
    }
}

/// Reports readiness until shutdown. The service is ready while the database accepts writes. An
/// unavailable cache degrades the service only: requests that need it fail with 503, but all
/// replicas share the cache, and removing all of them from the load balancer would also fail the
/// requests that do not need it.
async fn probe_stores(service: &AuthService, health: &Health, shutdown: &CancellationToken) {
    let service_check = health.check("service");
    let dependencies = &service.metrics.dependencies;
    let database_state = dependencies.required("database", service.store.database().label());
    // The cache logs its outages itself, because it notices them earlier.
    let cache_state = dependencies.optional("cache", service.cache.label());
    let cache_state = cache_state.without_events();
    let registry = &service.metrics.registry;
    let statements = StatementHealth::new(service.store.database(), dependencies, registry);
    service_check.set_ok();
    while !shutdown.is_cancelled() {
        let (database, cache) = tokio::join!(service.store.check_writable(), service.cache.ping());
        service
            .metrics
            .pools
            .record("main", service.store.database().usage());
        cache_state.record(&cache);
        match database {
            Ok(()) => database_state.record_success(),
            Err(exit) => database_state.record_failure(exit.message()),
        }
        statements.check().await;
        let pause = tokio::time::sleep(PROBE_INTERVAL);
        shutdown.run_until_cancelled(pause).await;
    }
    service_check.set_failed("stopping");
}
