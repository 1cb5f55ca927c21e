//! Assembly of the console from its configuration.

use std::sync::Arc;

use postern_core::exit::Exit;
use postern_core::{Clock, Secret};
use postern_service::http::{AllowedHosts, Limits, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::config::Config;
use crate::frames::Frames;
use crate::http::router;
use crate::link;
use crate::processes::ProcessDirectory;
use crate::prometheus::Prometheus;
use crate::sampling::Sampler;
use crate::sessions::{ConsoleSessions, FIRST_LINK_LIFETIME};
use crate::sign_in::SignInService;
use crate::state::ConsoleState;
use crate::tail_limit::TailLimit;

/// Maximum bytes of a request body: a configuration text of 1 MiB as a JSON string, in which quotes
/// and line breaks need two bytes.
const MAX_BODY_BYTES: usize = (2 << 20) + (64 << 10);

/// The console.
#[derive(Debug)]
pub struct App {
    state: Arc<ConsoleState>,
    hosts: Vec<String>,
}

// === impl App ===

impl App {
    /// Assembles the console.
    ///
    /// # Errors
    /// Status 69 if TLS cannot be set up.
    pub fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let (links, holder) = match &config.link_secret {
            Some(secret) => (Some(secret.clone()), "standalone"),
            None => (link::create_secret(&config), "host"),
        };
        let sessions = ConsoleSessions::new(links.as_ref(), holder, clock.clone());
        let directory = Arc::new(ProcessDirectory::new(config.processes)?);
        let access = Access::new(
            Arc::clone(&directory),
            config.roles,
            sessions,
            clock.clone(),
        );
        let sign_in = SignInService::new(directory.client.clone(), config.sign_in.auth);
        let prometheus = config.prometheus;
        let prometheus = prometheus.map(|url| Prometheus::new(directory.client.clone(), url));
        let sampler = Arc::new(Sampler::new(Arc::clone(&directory), clock));
        let state = ConsoleState {
            access,
            directory,
            sampler,
            frames: Frames::default(),
            sign_in,
            tail_limit: TailLimit::default(),
            trace_link: config.trace_link,
            prometheus,
            trusted_proxies: config.trusted_proxies,
            shutdown: CancellationToken::new(),
        };
        Ok(Self {
            state: Arc::new(state),
            hosts: config.hosts,
        })
    }

    /// Creates the secret of a one-time link (`/#once=…`), which signs one person in as operator
    /// within 24 hours. It replaces an unused earlier one.
    ///
    /// # Errors
    /// Status 69 if the system has no randomness.
    pub fn create_link(&self) -> Result<Secret, Exit> {
        let created = self.state.access.sessions.create_link(FIRST_LINK_LIFETIME);
        created.map_err(|error| Exit::unavailable(error.to_string()))
    }

    /// Serves until `stop` is cancelled.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let sampling = tokio::spawn({
            let (state, stop) = (Arc::clone(&self.state), stop.clone());
            async move {
                stop.run_until_cancelled(state.sampler.run()).await;
                state.shutdown.cancel();
            }
        });
        let hosts = AllowedHosts::of(listener.local_addr().ok(), &self.hosts);
        let router = router(self.state, hosts);
        let limits = Limits {
            body: MAX_BODY_BYTES,
            ..Limits::default()
        };
        serve(listener, router, limits, stop).await;
        let _ended = sampling.await;
    }
}
