//! The process: built from its config, run on sockets that the caller owns.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::admin::{self, Health};
use postern_common::exit::Exit;
use postern_common::http::{Limits, serve};
use tokio::net::TcpListener;

use crate::assemble::assemble;
use crate::auth::Auth;
use crate::config::Config;
use crate::doctor::{Doctor, Finding};
use crate::{http, proxies};

/// JSON bodies at most: a registration is below 40 KiB.
const MOST_BODY_BYTES: usize = 64 << 10;
/// When the doctor looks at the surroundings after a start.
const EXAMINE_AFTER: Duration = Duration::from_secs(5);
/// How often the stores are looked at.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// The sockets that the process listens on; whoever calls owns them.
#[derive(Debug)]
pub struct Listeners {
    /// For clients' requests.
    pub public: TcpListener,
    /// For `/livez`, `/readyz` and `/metrics`; none if somebody else serves them.
    pub admin: Option<TcpListener>,
}

/// One authentication upstream.
#[derive(Debug)]
pub struct App {
    auth: Arc<Auth>,
    doctor: Doctor,
    proxies: Finding,
    health: Health,
    admin_hosts: Vec<String>,
}

// === impl App ===

impl App {
    /// Opens the stores and makes everything, without touching a socket.
    ///
    /// # Errors
    /// Status 64 for a config that cannot work, 69 if the database is away.
    pub async fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let doctor = Doctor::new(config.identity.clone(), config.flow, clock.clone());
        let proxies = proxies::examine(config.listen, &config.trusted_proxies);
        let admin_hosts = config.admin_hosts.clone();
        let auth = Box::pin(assemble(config, clock)).await?;
        Ok(Self {
            auth: Arc::new(auth),
            doctor,
            proxies,
            health: Health::new(),
            admin_hosts,
        })
    }

    /// What an operator could have set wrong, in words.
    pub async fn examine(&self) -> Vec<Finding> {
        let mut findings = vec![self.proxies.clone()];
        findings.extend(Box::pin(self.doctor.examine(&self.auth)).await);
        findings
    }

    /// What stands in the way of readiness, for a process that serves it itself.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// The journeys alone, for tests that drive them.
    #[cfg(test)]
    pub(crate) fn into_auth(self) -> Arc<Auth> {
        self.auth
    }

    /// Serves until the stop begins and every request in flight has ended.
    pub async fn run(self, listeners: Listeners, shutdown: CancellationToken) {
        let Self {
            auth,
            doctor,
            proxies,
            health,
            admin_hosts,
        } = self;
        warn_of(&[proxies]);
        let limits = Limits {
            body: MOST_BODY_BYTES,
            ..Limits::default()
        };
        let background = tokio::spawn(background(
            Arc::clone(&auth),
            health.clone(),
            shutdown.clone(),
        ));
        let examination = tokio::spawn(warn_of_faults(doctor, Arc::clone(&auth)));
        let admin = listeners.admin.map(|listener| {
            let router = admin::router(health, auth.metrics.registry.clone());
            let stop = shutdown.clone();
            tokio::spawn(async move {
                admin::serve(listener, router, Limits::default(), &admin_hosts, stop).await;
            })
        });
        serve(
            listeners.public,
            http::router(Arc::clone(&auth)),
            limits,
            shutdown,
        )
        .await;
        // Each of them may be cut off anywhere: what they do is safe to repeat after a crash, so
        // after a stop, too.
        background.abort();
        examination.abort();
        for task in [background, examination].into_iter().chain(admin) {
            if let Err(error) = task.await
                && !error.is_cancelled()
            {
                tracing::error!(%error, "a background task ended badly");
            }
        }
        auth.store.close().await;
    }
}

async fn background(auth: Arc<Auth>, health: Health, shutdown: CancellationToken) {
    tokio::join!(
        Arc::clone(&auth.verifier).run(shutdown.clone()),
        auth.actors.run(shutdown.clone()),
        auth.compensate(&shutdown),
        auth.reseal(),
        probe(&auth, &health, &shutdown),
    );
}

/// Once at start, beside the service and after it: a pool that is slow to answer keeps nobody
/// waiting, and neither do the passwords that are hashed for it.
async fn warn_of_faults(doctor: Doctor, auth: Arc<Auth>) {
    tokio::time::sleep(EXAMINE_AFTER).await;
    warn_of(&Box::pin(doctor.examine(&auth)).await);
}

fn warn_of(findings: &[Finding]) {
    for finding in findings.iter().filter(|finding| finding.needs_attention()) {
        tracing::warn!(%finding, "something is not set up right, or needs a look; see `postern-auth check`");
    }
}

/// Ready while the database takes writes, until the stop. The cache is not part of it: what needs
/// it while it is away says 503, and taking every replica out would stop everything else as well.
async fn probe(auth: &Auth, health: &Health, shutdown: &CancellationToken) {
    let (service, store) = (health.check("service"), health.check("database"));
    service.set_ok();
    while !shutdown.is_cancelled() {
        let (database, cache) = tokio::join!(auth.store.takes_writes(), auth.cache.ping());
        auth.metrics.database_up.set(i64::from(database.is_ok()));
        auth.metrics.cache_up.set(i64::from(cache.is_ok()));
        match database {
            Ok(()) => store.set_ok(),
            Err(exit) => store.set_failed(exit.message()),
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(PROBE_EVERY) => {}
        }
    }
    service.set_failed("stopping");
}
