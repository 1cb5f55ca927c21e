//! What all requests of one gateway share.

pub(crate) mod config_status;
pub(crate) mod request_context;
pub(crate) mod runtime_config;

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ahash::RandomState;
use arc_swap::ArcSwap;
use postern_common::token::Verifier;
use postern_common::{Clock, Code};
use uuid::Uuid;

use crate::downstream::connection_limit::Places;
use crate::downstream::response_buffers::ResponseBuffers;
use crate::rate_limiter::Limiter;
use crate::state::config_status::ConfigStatus;
use crate::state::request_context::Context;
use crate::state::runtime_config::Live;
use crate::telemetry::access_log::{AccessLog, Event};
use crate::telemetry::ids::Ids;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Traces;

/// Shared by the connections, Pingora's hooks, the reload and the admin listener.
pub(crate) struct State {
    pub(crate) live: ArcSwap<Live>,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) limiter: Limiter,
    pub(crate) places: Arc<Places>,
    pub(crate) response_buffers: Arc<ResponseBuffers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access: AccessLog,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) ids: Ids,
    pub(crate) clock: Clock,
    /// The seed of rate limit keys: clients cannot aim at one another's.
    pub(crate) keys: RandomState,
    pub(crate) born: Instant,
    /// Whether every answer closes its connection from now on.
    pub(crate) stopping: AtomicBool,
    /// What `/config/status` says.
    pub(crate) config: Mutex<ConfigStatus>,
}

impl State {
    /// A request that begins now.
    pub(crate) fn begin(&self) -> Context {
        let now = self.clock.now();
        Context::new(self.live.load_full(), self.ids.next(now), now)
    }

    /// Nanoseconds of a clock that only goes forward.
    pub(crate) fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The key of a client address: of its /64 for IPv6, of which one client has all.
    pub(crate) fn address_key(&self, address: IpAddr, salt: u64) -> u64 {
        let bits = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits() >> 64 | 1 << 127,
        };
        self.keys.hash_one((bits, salt))
    }

    /// Counts and logs what was refused before it became a request.
    pub(crate) fn note_at_door(
        &self,
        id: Uuid,
        code: Code,
        protocol: &'static str,
        client: Option<IpAddr>,
    ) {
        self.metrics.count_at_door(code);
        let mut text = Uuid::encode_buffer();
        let event = Event {
            request_id: id.hyphenated().encode_lower(&mut text),
            status: code.status().as_u16(),
            code: code.as_str(),
            protocol,
            client,
            ..Event::default()
        };
        event.write(&self.access, self.clock.now());
    }
}
