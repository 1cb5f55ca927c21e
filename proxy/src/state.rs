//! State that all requests of the gateway share, and the state of one request.
//!
//! - **Contains:** the runtime configuration in force, the token verifier, limiters, metrics and
//!   logs; and [`request_context::RequestContext`], which travels with a request through admission
//!   and forwarding.
//! - **May depend on:** [`crate::config`], [`crate::api_keys`], [`crate::certificates`],
//!   [`crate::external_authorization`], [`crate::routing`], [`crate::rate_limiter`],
//!   [`crate::upstream`], [`crate::downstream`], [`postern_http::compression`], [`postern_http::client_shares`] and
//!   [`crate::telemetry`].

pub(crate) mod config_status;
pub(crate) mod listener_access;
pub(crate) mod request_context;
pub(crate) mod runtime_config;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ahash::RandomState;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_core::network::client_limit_bits;
use postern_core::token::Verifier;
use postern_core::trace::Tracer;
use postern_core::{Clock, Code};
use postern_http::client_shares::SharedBudget;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::certificates::HostGuard;
use crate::rate_limiter::RateLimiter;
use crate::state::config_status::ConfigStatus;
use crate::state::request_context::{GaugeGuard, RequestContext};
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::access_log::{AccessEvent, AccessLog};
use crate::telemetry::ids::IdGenerator;
use crate::telemetry::live_tail::{LiveTail, TailDetails};
use crate::telemetry::metrics::GatewayMetrics;

/// The state shared by connections, Pingora hooks, reloads and the admin listener.
pub(crate) struct GatewayState {
    pub(crate) runtime_config: ArcSwap<RuntimeConfig>,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) limiter: RateLimiter,
    pub(crate) connection_limit: Arc<Semaphore>,
    pub(crate) response_buffers: Arc<SharedBudget>,
    /// The memory of compressed responses.
    pub(crate) encoders: Arc<SharedBudget>,
    pub(crate) metrics: Arc<GatewayMetrics>,
    pub(crate) access_log: AccessLog,
    pub(crate) live_tail: Arc<LiveTail>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) ids: IdGenerator,
    pub(crate) clock: Clock,
    /// The hash seed of rate limit keys, so that clients cannot cause collisions.
    pub(crate) key_seed: RandomState,
    pub(crate) started_at: Instant,
    /// Whether every response closes its connection.
    pub(crate) is_draining: AtomicBool,
    /// The status that `/config/status` returns.
    pub(crate) config_status: Mutex<ConfigStatus>,
    /// The hosts whose server name has client authentication; `None` if there is none.
    pub(crate) host_guard: Option<HostGuard>,
}

impl GatewayState {
    pub(crate) fn new_context(&self) -> RequestContext {
        let now = self.clock.now();
        let in_flight = GaugeGuard::new(&self.metrics.requests_in_flight);
        let (config, id) = (self.runtime_config.load_full(), self.ids.next_id(now));
        RequestContext::new(config, id, now, in_flight)
    }

    pub(crate) fn monotonic_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started_at).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the rate limit key of a client address (of its /64 for IPv6).
    pub(crate) fn address_key(&self, address: IpAddr, salt: u64) -> u64 {
        self.key_seed.hash_one((client_limit_bits(address), salt))
    }

    pub(crate) fn record_rejected_head(
        &self,
        id: Uuid,
        code: Code,
        protocol: &'static str,
        client: Option<IpAddr>,
    ) {
        let rejected = &self.metrics.rejected_before_routing;
        rejected.with_label_values(&[code.as_str()]).inc();
        let mut text = Uuid::encode_buffer();
        let event = AccessEvent {
            request_id: id.hyphenated().encode_lower(&mut text),
            status: code.status().as_u16(),
            code: code.as_str(),
            protocol,
            client,
            ..AccessEvent::default()
        };
        let details = TailDetails {
            host: "",
            decision: "rejected",
            groups: &[],
            scopes: &[],
        };
        let now = self.clock.now();
        event.write(&self.access_log, &self.live_tail, &details, now);
    }
}
