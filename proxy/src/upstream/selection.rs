//! Load balancing: the choice among the addresses that an attempt may use.
//!
//! `round_robin` is that of `pingora-load-balancing`. Which addresses may be used depends on the
//! attempt, so that others are passed over. `least_loaded` compares the load of two addresses, which a
//! `BackendSelection` does not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pingora_load_balancing::selection::{BackendIter, BackendSelection, RoundRobin};

use crate::config::LoadBalancing;
use crate::upstream::endpoint::{Availability, Endpoint, InFlightPermit};

/// The addresses that an attempt may use.
pub(super) struct Candidates<'e> {
    endpoints: &'e [Arc<Endpoint>],
    avoid: Option<&'e Endpoint>,
    now_ms: u64,
    /// Whether all addresses count as available.
    is_panic: bool,
    /// The availability of the addresses that are used.
    best: Availability,
}

/// Returns the number of addresses that are ejected or unhealthy.
pub(super) fn count_excluded(endpoints: &[Arc<Endpoint>], now_ms: u64) -> usize {
    let is_excluded = |it: &&Arc<Endpoint>| it.availability(now_ms) != Availability::Available;
    endpoints.iter().filter(is_excluded).count()
}

/// Returns whether more than `panic_percent` of the addresses are excluded.
pub(super) fn exceeds_panic_percent(total: usize, excluded: usize, panic_percent: u32) -> bool {
    excluded * 100 > total * panic_percent as usize
}

/// Returns the order in which `round_robin` visits the addresses.
pub(super) fn rotation(endpoints: &[Arc<Endpoint>]) -> RoundRobin {
    RoundRobin::build(&endpoints.iter().map(Endpoint::backend).collect())
}

impl<'e> Candidates<'e> {
    /// Returns the candidates of an attempt, other than `avoid` if possible; `None` if there is no
    /// address.
    ///
    /// Available addresses are preferred to ejected ones, and those to unhealthy ones. If more than
    /// `panic_percent` are excluded, a first attempt may use any of them (panic mode), so that the
    /// remaining ones are not overloaded; a retry prefers available addresses.
    pub(super) fn new(
        endpoints: &'e [Arc<Endpoint>],
        avoid: Option<&'e Endpoint>,
        panic_percent: u32,
        now_ms: u64,
    ) -> Option<Self> {
        let (total, excluded) = (endpoints.len(), count_excluded(endpoints, now_ms));
        let mut candidates = Self {
            endpoints,
            avoid: avoid.filter(|_| total > 1),
            now_ms,
            is_panic: avoid.is_none() && exceeds_panic_percent(total, excluded, panic_percent),
            best: Availability::Unhealthy,
        };
        let all = candidates.iter();
        candidates.best = all.map(|it| candidates.availability(it)).min()?;
        Some(candidates)
    }

    /// Chooses a candidate that has less than `limit` requests in flight.
    pub(super) fn acquire(
        &self,
        algorithm: LoadBalancing,
        rotation: &Arc<RoundRobin>,
        turn: &AtomicU64,
        limit: usize,
    ) -> Option<InFlightPermit> {
        let acquire = |endpoint: &Arc<Endpoint>| InFlightPermit::try_acquire(endpoint, limit);
        let chosen = match algorithm {
            LoadBalancing::LeastLoaded => self
                .less_loaded(turn.fetch_add(1, Ordering::Relaxed))
                .and_then(acquire),
            LoadBalancing::RoundRobin => (0..self.endpoints.len())
                .filter_map(|_| rotation.iter(&[]).next()?.ext.get().cloned())
                .find(|visited: &Arc<Endpoint>| self.usable().any(|it| Arc::ptr_eq(it, visited)))
                .and_then(|visited| acquire(&visited)),
        };
        // The chosen one is at capacity, or a concurrent request has changed the state of all.
        let is_changed = || self.usable().next().is_none();
        chosen
            .or_else(|| self.usable().find_map(acquire))
            .or_else(|| self.iter().filter(|_| is_changed()).find_map(acquire))
    }

    /// Returns the less loaded of two random candidates.
    fn less_loaded(&self, turn: u64) -> Option<&'e Arc<Endpoint>> {
        let count = self.usable().count();
        let nth = |at: u64| {
            let at = usize::try_from(at % count.max(1) as u64).unwrap_or(0);
            self.usable().nth(at)
        };
        if count == 1 {
            return nth(0);
        }
        let random = mix(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 1;
        let (one, other) = (nth(random), nth(random.rotate_left(32)));
        let other = match one.map(Arc::as_ptr) == other.map(Arc::as_ptr) {
            true => nth(random + 1),
            false => other,
        };
        let two = one.into_iter().chain(other);
        two.min_by_key(|endpoint| endpoint.load())
    }

    /// Returns all candidates, best or not.
    fn iter(&self) -> impl Iterator<Item = &'e Arc<Endpoint>> {
        let avoid = self.avoid.map(|avoid| &avoid.address);
        let endpoints = self.endpoints.iter();
        endpoints.filter(move |it| Some(&it.address) != avoid)
    }

    /// Returns the candidates of the best availability.
    fn usable(&self) -> impl Iterator<Item = &'e Arc<Endpoint>> {
        self.iter()
            .filter(|endpoint| self.availability(endpoint) == self.best)
    }

    fn availability(&self, endpoint: &Endpoint) -> Availability {
        match self.is_panic {
            true => Availability::Available,
            false => endpoint.availability(self.now_ms),
        }
    }
}

/// The finalizer of splitmix64, in which every input bit affects every output bit.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
