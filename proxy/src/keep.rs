//! What goes on beside the requests: keys, names, health, numbers.

use std::sync::Arc;
use std::time::Duration;

use postern_common::Shutdown;
use postern_common::admin::{Check, Health};
use tokio_util::task::TaskTracker;

use crate::state::State;

/// How often numbers that nobody counts are looked up.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often readiness is looked at until it is there for the first time.
const IMPATIENT: Duration = Duration::from_millis(20);

/// The background tasks of one gateway.
pub(crate) struct Keepers(TaskTracker);

pub(crate) fn start(state: &Arc<State>, health: &Health, stop: &Shutdown) -> Keepers {
    let tasks = TaskTracker::new();
    tasks.spawn(Arc::clone(&state.verifier).run(stop.clone()));
    for pool in &state.live.load().pools {
        tasks.spawn(Arc::clone(pool).keep_resolved(stop.clone()));
    }
    tasks.spawn(observe(Arc::clone(state), health.check("keys"), stop.clone()));
    tasks.close();
    Keepers(tasks)
}

impl Keepers {
    /// Returns when all have ended.
    pub(crate) async fn finished(self) {
        self.0.wait().await;
    }
}

async fn observe(state: Arc<State>, keys: Check, stop: Shutdown) {
    let mut pause = IMPATIENT;
    loop {
        if state.verifier.ready() {
            keys.set_ok();
            pause = INTERVAL;
        } else {
            keys.set_failed("the keys of an issuer have not been fetched");
        }
        look(&state);
        tokio::select! {
            () = stop.begun() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn look(state: &State) {
    let metrics = &state.metrics;
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let (entries, bytes) = state.verifier.cache_size();
    metrics.token_cache.with_label_values(&["entries"]).set(number(entries));
    metrics.token_cache.with_label_values(&["bytes"]).set(number(bytes));
    metrics.limiter_keys.set(number(state.limiter.len()));
    for pool in &state.live.load().pools {
        let now = pool.now_ms();
        let all: Vec<_> = pool.endpoints().iter().map(|endpoint| endpoint.status(now)).collect();
        let count = |state: &str, is: &dyn Fn(&crate::upstream::EndpointStatus) -> bool| {
            let count = all.iter().filter(|status| is(status)).count();
            metrics.endpoints.with_label_values(&[pool.config.name.as_str(), state]).set(number(count));
        };
        count("healthy", &|status| status.healthy && !status.ejected);
        count("unhealthy", &|status| !status.healthy);
        count("ejected", &|status| status.ejected);
    }
}
