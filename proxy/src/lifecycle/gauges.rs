//! Gauges that are read from the state of the gateway once per second.

use prometheus::IntGaugeVec;

use crate::state::GatewayState;
use crate::telemetry::metrics::UpstreamMetrics;
use crate::upstream::{EndpointStatus, NameResolution, UpstreamPool};

/// Updates the gauges, and removes those of upstreams that are no longer configured.
#[derive(Debug, Default)]
pub(super) struct GaugeUpdater {
    upstreams: Vec<String>,
}

impl GaugeUpdater {
    pub(super) fn update(&mut self, state: &GatewayState) {
        update_credentials(state);
        let metrics = &state.metrics;
        let used = number(state.response_buffers.used());
        metrics.response_buffers.set(used);
        let keys = number(state.limiter.key_count());
        metrics.rate_limits.keys.set(keys);
        let config = state.runtime_config.load();
        let names = config.pools.iter().map(|pool| pool.config.name.clone());
        let names: Vec<String> = names.collect();
        if self.upstreams != names {
            let by_state = [&metrics.upstream.endpoints, &metrics.upstream.names];
            let by_name = gauges_by_name(&metrics.upstream).into_iter();
            by_name.chain(by_state).for_each(IntGaugeVec::reset);
        }
        self.upstreams = names;
        for pool in &config.pools {
            update_upstream(&metrics.upstream, pool);
        }
    }
}

fn update_credentials(state: &GatewayState) {
    let metrics = &state.metrics;
    let (entries, bytes) = state.verifier.cache_size();
    let credentials = &metrics.credentials;
    credentials.token_cache_entries.set(number(entries));
    credentials.token_cache_bytes.set(number(bytes));
    for keys in state.verifier.status() {
        if let Some(age_s) = keys.age_s {
            let age_s = i64::try_from(age_s).unwrap_or(i64::MAX);
            let issuer = [keys.issuer.as_str()];
            metrics.jwks_age.with_label_values(&issuer).set(age_s);
        }
    }
    if let Some(file) = &state.runtime_config.load().api_keys {
        let last_used = &credentials.api_key_last_used;
        // Keys that were removed have no value.
        last_used.reset();
        for key in file.keys().uses() {
            let labels = [&*key.name, &*key.id];
            last_used.with_label_values(&labels).set(key.last_used);
        }
    }
}

fn update_upstream(metrics: &UpstreamMetrics, pool: &UpstreamPool) {
    pool.evict_idle_connections();
    let is_in_panic = pool.observe();
    let name = pool.config.name.as_str();
    let (endpoints, now_ms) = (pool.endpoints(), pool.now_ms());
    let statuses: Vec<_> = endpoints.iter().map(|one| one.status(now_ms)).collect();
    let count = |is: fn(&EndpointStatus) -> bool| statuses.iter().filter(|it| is(it)).count();
    for (state, count) in [
        ("healthy", count(|it| it.healthy && !it.ejected)),
        ("unhealthy", count(|it| !it.healthy)),
        ("ejected", count(|it| it.ejected)),
    ] {
        let gauge = metrics.endpoints.with_label_values(&[name, state]);
        gauge.set(number(count));
    }
    let values = [
        number(statuses.iter().map(|it| it.in_flight).sum()),
        number(endpoints.iter().map(|one| one.idle.count()).sum()),
        pool.available_retries(),
        i64::from(is_in_panic),
    ];
    for (gauge, value) in gauges_by_name(metrics).into_iter().zip(values) {
        gauge.with_label_values(&[name]).set(value);
    }
    let names = pool.names();
    let states = NameResolution::ALL.into_iter();
    for state in states.filter(|_| !names.is_empty()) {
        let count = names.iter().filter(|name| name.state == state).count();
        let label: &'static str = state.into();
        let gauge = metrics.names.with_label_values(&[name, label]);
        gauge.set(number(count));
    }
}

/// Returns the gauges whose only label is the upstream.
fn gauges_by_name(metrics: &UpstreamMetrics) -> [&IntGaugeVec; 4] {
    [
        &metrics.in_flight,
        &metrics.idle_connections,
        &metrics.retry_budget,
        &metrics.panic_mode,
    ]
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
