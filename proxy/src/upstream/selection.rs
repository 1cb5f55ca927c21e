//! Load balancing: the choice among the addresses that an attempt may use.
//!
//! Round robin, random choice and consistent hashing are selections of `pingora-load-balancing`,
//! built whenever the addresses change. A candidate that may not be used is skipped: round robin
//! and random choice draw again, so that the others keep their weights (the iterators of Pingora
//! would continue without weights); consistent hashing continues on the ring. Round robin visits
//! Pingora's weighted sequence, in which the entries of an address are adjacent, in an interleaved
//! order: weights of 1,000 and 333 do not send a thousand requests in a row to one address.
//!
//! The least-loaded choice is not a `BackendSelection`. It compares two addresses that may be used,
//! and which those are depends on the attempt: on health, ejection and panic mode at this moment,
//! and on the address that has just failed. The interface passes nothing but the key to a
//! selection, and applies such conditions afterwards, to one address at a time. So it works beside,
//! on the same endpoints, whose load it reads from them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pingora_load_balancing::Backend;
use pingora_load_balancing::selection::weighted::Weighted;
use pingora_load_balancing::selection::{
    BackendIter, BackendSelection, Consistent, Random, SelectionAlgorithm,
};

use crate::config::LoadBalancing;
use crate::upstream::endpoint::{Availability, Endpoint, InFlightPermit};

/// Maximum weight of an address in the sequences of round robin and random choice, which have one
/// entry per unit.
const MAX_SEQUENCE_WEIGHT: u64 = 1000;

/// Maximum weight of an address on the ring, which has 160 points per unit.
const MAX_RING_WEIGHT: u64 = 100;

/// Points of the ring per unit of weight, in Pingora's implementation.
const RING_POINTS_PER_WEIGHT: u64 = 160;

/// Points of the ring that are tried after one whose address is at capacity.
const MAX_POINTS_AT_CAPACITY: u64 = 64;

/// The addresses of an upstream and the selection built from them.
#[derive(Debug)]
pub(super) struct EndpointSet {
    pub(super) endpoints: Arc<[Arc<Endpoint>]>,
    selector: Selector,
}

/// A load balancing algorithm, built for a set of addresses.
enum Selector {
    /// With the state of its pseudo-random sequence.
    LeastLoaded(AtomicU64),
    RoundRobin(Arc<Weighted<IndexKey>>, InterleavedOrder),
    /// With the length of the sequence.
    Random(Arc<Random>, u64),
    /// With the number of points.
    Consistent(Arc<Consistent>, u64),
}

/// The algorithm of a weighted sequence whose key is an index.
struct IndexKey;

/// An endless order of the indices of a sequence: each occurs once per round, and neighbours are
/// far apart.
struct InterleavedOrder {
    len: u64,
    /// Distance between two indices, without a common divisor with `len`.
    stride: u64,
    turn: AtomicU64,
}

/// The addresses that an attempt may use.
pub(super) struct Candidates<'e> {
    endpoints: &'e [Arc<Endpoint>],
    avoid: Option<&'e Endpoint>,
    now_ms: u64,
    /// A random number that decides which addresses in slow start are passed over; `None` if none
    /// is.
    ramp_random: Option<u64>,
    /// The priority whose addresses all count as available.
    panic_priority: Option<u32>,
    /// The rank of the addresses that are used.
    best: (Availability, u32),
}

/// Returns whether more than `panic_percent` of the addresses are excluded.
pub(super) fn exceeds_panic_percent(excluded: usize, total: usize, panic_percent: u32) -> bool {
    excluded * 100 > total * panic_percent as usize
}

// === impl EndpointSet ===

impl EndpointSet {
    pub(super) fn new(algorithm: &LoadBalancing, backends: &BTreeSet<Backend>) -> Self {
        let mut endpoints: Vec<_> = backends.iter().filter_map(endpoint).cloned().collect();
        endpoints.sort_by_key(|endpoint| {
            let order = (endpoint.config_index, endpoint.priority());
            (order, endpoint.address.clone())
        });
        Self {
            endpoints: endpoints.into(),
            selector: Selector::new(algorithm, backends),
        }
    }

    /// Chooses a candidate that has less than `limit` requests in flight.
    pub(super) fn acquire(
        &self,
        candidates: &Candidates<'_>,
        key: &[u8],
        limit: usize,
    ) -> Option<InFlightPermit> {
        let chosen = match &self.selector {
            Selector::LeastLoaded(random) => least_loaded(candidates, random)
                .and_then(|chosen| InFlightPermit::try_acquire(chosen, limit)),
            Selector::RoundRobin(sequence, order) => draw(order.len, candidates, limit, || {
                sequence.iter(&order.next())
            }),
            Selector::Random(sequence, len) => draw(*len, candidates, limit, || sequence.iter(&[])),
            Selector::Consistent(ring, points) => walk(ring, *points, candidates, key, limit),
        };
        chosen.or_else(|| candidates.acquire_any(limit))
    }
}

impl Default for EndpointSet {
    fn default() -> Self {
        Self::new(&LoadBalancing::LeastLoaded, &BTreeSet::new())
    }
}

// === impl Selector ===

impl Selector {
    fn new(algorithm: &LoadBalancing, backends: &BTreeSet<Backend>) -> Self {
        match algorithm {
            LoadBalancing::LeastLoaded => Self::LeastLoaded(AtomicU64::new(0)),
            LoadBalancing::RoundRobin => {
                let (backends, total) = weighted(backends, MAX_SEQUENCE_WEIGHT);
                let order = InterleavedOrder::new(total);
                Self::RoundRobin(Arc::new(Weighted::build(&backends)), order)
            }
            LoadBalancing::Random => {
                let (backends, total) = weighted(backends, MAX_SEQUENCE_WEIGHT);
                // The expected number of draws until a rare one is drawn.
                Self::Random(Arc::new(Random::build(&backends)), total)
            }
            LoadBalancing::Consistent(_) => {
                let (backends, total) = weighted(backends, MAX_RING_WEIGHT);
                let points = total * RING_POINTS_PER_WEIGHT;
                Self::Consistent(Arc::new(Consistent::build(&backends)), points)
            }
        }
    }
}

impl std::fmt::Debug for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LeastLoaded(_) => "LeastLoaded",
            Self::RoundRobin(..) => "RoundRobin",
            Self::Random(..) => "Random",
            Self::Consistent(..) => "Consistent",
        })
    }
}

// === impl IndexKey ===

impl SelectionAlgorithm for IndexKey {
    fn new() -> Self {
        Self
    }

    fn next(&self, key: &[u8]) -> u64 {
        key.try_into().map_or(0, u64::from_le_bytes)
    }
}

// === impl InterleavedOrder ===

impl InterleavedOrder {
    fn new(len: u64) -> Self {
        // Multiples of the golden ratio are spread evenly.
        let golden = len * 618 / 1000;
        let has_no_common_divisor = |stride: &u64| greatest_common_divisor(len, *stride) == 1;
        Self {
            len,
            stride: (golden.max(1)..=len)
                .find(has_no_common_divisor)
                .unwrap_or(1),
            turn: AtomicU64::new(0),
        }
    }

    /// Returns the next index, as a key.
    fn next(&self) -> [u8; 8] {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.len.max(1);
        (turn * self.stride % self.len.max(1)).to_le_bytes()
    }
}

// === impl Candidates ===

impl<'e> Candidates<'e> {
    /// Returns the candidates of an attempt, other than `avoid` if possible; `None` if there is no
    /// address.
    ///
    /// Available addresses are preferred to ejected ones, and those to unhealthy ones; among them,
    /// the lowest priority number (RFC 2782) is used. If more than `panic_percent` of the addresses
    /// with that number are excluded, a first attempt may use any of them (panic mode), so that the
    /// remaining ones are not overloaded; a retry prefers available addresses.
    pub(super) fn new(
        endpoints: &'e [Arc<Endpoint>],
        avoid: Option<&'e Endpoint>,
        panic_percent: u32,
        now_ms: u64,
    ) -> Option<Self> {
        let with_weight = || endpoints.iter().filter(|endpoint| endpoint.weight() > 0);
        let priority = Self::priority(endpoints, now_ms)?;
        // All addresses, those with the lowest priority number, and the excluded ones of these.
        let (mut count, mut total, mut excluded) = (0_usize, 0_usize, 0_usize);
        for endpoint in with_weight() {
            count += 1;
            if endpoint.priority() == priority {
                total += 1;
                let availability = endpoint.availability(now_ms);
                excluded += usize::from(availability != Availability::Available);
            }
        }
        let is_panic = avoid.is_none() && exceeds_panic_percent(excluded, total, panic_percent);
        let mut candidates = Self {
            endpoints,
            avoid: avoid.filter(|_| count > 1),
            now_ms,
            ramp_random: None,
            panic_priority: is_panic.then_some(priority),
            best: (Availability::Unhealthy, u32::MAX),
        };
        candidates.best = candidates
            .iter()
            .map(|endpoint| candidates.rank(endpoint))
            .min()?;
        Some(candidates)
    }

    /// Passes addresses in slow start over, each with the probability of the part of its share that
    /// it does not get yet; none of them if they are the only usable ones.
    pub(super) fn with_slow_start(mut self, sequence: &AtomicU64) -> Self {
        let number = sequence.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        self.ramp_random = Some(mix(number));
        if self.usable().next().is_none() {
            self.ramp_random = None;
        }
        self
    }

    fn is_passed_over(&self, endpoint: &Endpoint) -> bool {
        let Some(random) = self.ramp_random else {
            return false;
        };
        let permille = endpoint.ramp_permille(self.now_ms);
        // A number of its own for each address.
        permille < 1000 && mix(random ^ address_hash(endpoint)) % 1000 >= permille
    }

    /// Returns the priority that is used: the lowest number with an available address, or the lowest
    /// if none is available.
    pub(super) fn priority(endpoints: &[Arc<Endpoint>], now_ms: u64) -> Option<u32> {
        let with_weight = || endpoints.iter().filter(|endpoint| endpoint.weight() > 0);
        let available = with_weight()
            .filter(|endpoint| endpoint.availability(now_ms) == Availability::Available);
        let lowest = available.map(|endpoint| endpoint.priority()).min();
        lowest.or_else(|| with_weight().map(|endpoint| endpoint.priority()).min())
    }

    /// Returns all candidates, best or not.
    fn iter(&self) -> impl Iterator<Item = &'e Arc<Endpoint>> {
        let endpoints = self.endpoints.iter();
        endpoints.filter(|endpoint| self.is_candidate(endpoint))
    }

    /// Returns the candidates of the best rank.
    fn usable(&self) -> impl Iterator<Item = &'e Arc<Endpoint>> {
        self.iter()
            .filter(|endpoint| self.rank(endpoint) == self.best && !self.is_passed_over(endpoint))
    }

    fn is_usable(&self, endpoint: &Endpoint) -> bool {
        self.is_candidate(endpoint)
            && self.rank(endpoint) == self.best
            && !self.is_passed_over(endpoint)
    }

    fn is_candidate(&self, endpoint: &Endpoint) -> bool {
        endpoint.weight() > 0
            && self
                .avoid
                .is_none_or(|avoid| avoid.address != endpoint.address)
    }

    fn rank(&self, endpoint: &Endpoint) -> (Availability, u32) {
        let priority = endpoint.priority();
        let availability = if self.panic_priority == Some(priority) {
            Availability::Available
        } else {
            endpoint.availability(self.now_ms)
        };
        (availability, priority)
    }

    /// Acquires any address of the best rank, also in slow start: the chosen one is at capacity. If
    /// a concurrent request has changed the state of all of them, any address is acceptable.
    fn acquire_any(&self, limit: usize) -> Option<InFlightPermit> {
        let is_changed = self.usable().next().is_none();
        self.iter()
            .filter(|endpoint| is_changed || self.rank(endpoint) == self.best)
            .find_map(|endpoint| InFlightPermit::try_acquire(endpoint, limit))
    }
}

/// Returns the less loaded of two random usable candidates.
fn least_loaded<'e>(
    candidates: &Candidates<'e>,
    sequence: &AtomicU64,
) -> Option<&'e Arc<Endpoint>> {
    let count = candidates.usable().count();
    let nth = |at: u64| {
        let at = usize::try_from(at % count.max(1) as u64).unwrap_or(0);
        candidates.usable().nth(at)
    };
    if count == 1 {
        return nth(0);
    }
    let random = mix(sequence.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)) >> 1;
    let (one, other) = (nth(random), nth(random.rotate_left(32)));
    let other = if one.map(Arc::as_ptr) == other.map(Arc::as_ptr) {
        nth(random + 1)
    } else {
        other
    };
    one.into_iter()
        .chain(other)
        .min_by_key(|endpoint| endpoint.load())
}

/// Draws until a usable candidate is drawn, at most `draws` times. Returns `None` also if that one
/// is at capacity.
fn draw<I: BackendIter>(
    draws: u64,
    candidates: &Candidates<'_>,
    limit: usize,
    next: impl Fn() -> I,
) -> Option<InFlightPermit> {
    (0..draws).find_map(|_| {
        let mut drawn = next();
        let endpoint = drawn.next().and_then(endpoint)?;
        let is_usable = candidates.is_usable(endpoint);
        is_usable.then(|| InFlightPermit::try_acquire(endpoint, limit))
    })?
}

/// Returns the first usable candidate on the ring after the point of the key. One at capacity is
/// skipped.
fn walk(
    ring: &Arc<Consistent>,
    points: u64,
    candidates: &Candidates<'_>,
    key: &[u8],
    limit: usize,
) -> Option<InFlightPermit> {
    let (mut point, mut points_left) = (ring.iter(key), points);
    while let Some(rest) = points_left.checked_sub(1) {
        points_left = rest;
        let endpoint = point.next().and_then(endpoint)?;
        if candidates.is_usable(endpoint) {
            match InFlightPermit::try_acquire(endpoint, limit) {
                Some(permit) => return Some(permit),
                None => points_left = points_left.min(MAX_POINTS_AT_CAPACITY),
            }
        }
    }
    None
}

fn address_hash(endpoint: &Endpoint) -> u64 {
    let mut hasher = DefaultHasher::new();
    endpoint.address.hash(&mut hasher);
    hasher.finish()
}

/// Returns the endpoint that a backend carries.
fn endpoint(backend: &Backend) -> Option<&Arc<Endpoint>> {
    backend.ext.get()
}

/// Returns the backends with a weight, and the sum of their weights. These are divided by their
/// greatest common divisor, and scaled down if one exceeds `max`.
fn weighted(backends: &BTreeSet<Backend>, max: u64) -> (BTreeSet<Backend>, u64) {
    let weights = || backends.iter().map(|backend| backend.weight as u64);
    let divisor = weights().fold(0, greatest_common_divisor).max(1);
    let largest = weights().max().unwrap_or(0) / divisor;
    let scale = |weight: u64| match weight / divisor {
        weight if largest <= max => weight,
        weight => (weight * max / largest).max(1),
    };
    let scaled = |backend: &Backend| Backend {
        weight: usize::try_from(scale(backend.weight as u64)).unwrap_or(1),
        ..backend.clone()
    };
    let with_weight = backends.iter().filter(|backend| backend.weight > 0);
    let backends: BTreeSet<Backend> = with_weight.map(scaled).collect();
    let total = backends.iter().map(|backend| backend.weight as u64).sum();
    (backends, total)
}

const fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// The finalizer of splitmix64, in which every input bit affects every output bit.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
