//! Background tasks: token keys, name resolution, health checks and gauges.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use parking_lot::Mutex;
use postern_core::health::{Check, Health};
use tokio_util::task::TaskTracker;

use crate::lifecycle::gauges::GaugeUpdater;
use crate::state::GatewayState;
use crate::upstream::{NameResolution, UpstreamPool};

const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which readiness is checked until the gateway is ready for the first time.
const STARTUP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time after which readiness does not wait for name servers that do not answer.
const NAMES_TIMEOUT: Duration = Duration::from_secs(5);

struct ObservedChecks {
    keys: Check,
    /// The first look-ups of the names of upstreams; `None` without names, and once they have
    /// ended.
    names: Option<Check>,
}

pub(crate) struct BackgroundTasks {
    tasks: TaskTracker,
    pub(crate) pools: Arc<PoolTasks>,
}

pub(crate) struct PoolTasks {
    tasks: TaskTracker,
    stop: CancellationToken,
    running: Mutex<Vec<(Arc<UpstreamPool>, CancellationToken)>>,
}

pub(crate) fn start(
    state: &Arc<GatewayState>,
    health: &Health,
    stop: &CancellationToken,
) -> BackgroundTasks {
    let tasks = TaskTracker::new();
    tasks.spawn(Arc::clone(&state.verifier).run(stop.clone()));
    let has_pending_names = has_pending_names(state);
    let checks = ObservedChecks {
        keys: health.check("keys"),
        names: has_pending_names.then(|| health.check("names")),
    };
    tasks.spawn(run_observer(Arc::clone(state), checks, stop.clone()));
    let pools = PoolTasks {
        tasks: tasks.clone(),
        stop: stop.clone(),
        running: Mutex::default(),
    };
    pools.sync(&state.runtime_config.load().pools);
    BackgroundTasks {
        tasks,
        pools: Arc::new(pools),
    }
}

impl BackgroundTasks {
    /// Spawns a task, which must end with the shutdown.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Waits until all tasks have ended.
    pub(crate) async fn wait(self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl PoolTasks {
    /// Starts tasks for new pools and stops those of removed pools.
    pub(crate) fn sync(&self, pools: &[Arc<UpstreamPool>]) {
        let mut running = self.running.lock();
        running.retain(|(pool, stop)| {
            let stays = pools.iter().any(|live| Arc::ptr_eq(live, pool));
            if !stays {
                stop.cancel();
            }
            stays
        });
        for pool in pools {
            if running.iter().any(|(known, _)| Arc::ptr_eq(known, pool)) {
                continue;
            }
            let stop = self.stop.child_token();
            self.tasks
                .spawn(Arc::clone(pool).run_discovery(stop.clone()));
            self.tasks
                .spawn(Arc::clone(pool).run_health_checks(stop.clone()));
            running.push((Arc::clone(pool), stop));
        }
    }
}

async fn run_observer(
    state: Arc<GatewayState>,
    mut checks: ObservedChecks,
    stop: CancellationToken,
) {
    let (mut has_keys, mut gauges) = (false, GaugeUpdater::default());
    loop {
        // `/jwks/status` reports each issuer.
        let config = state.runtime_config.load();
        if config
            .identity
            .is_usable(|it| state.verifier.can_verify(it))
        {
            checks.keys.set_ok();
            has_keys = true;
        } else {
            let reason = "the keys of an issuer have not been fetched";
            checks.keys.set_failed(reason);
        }
        drop(config);
        // A name that is not found does not make the gateway unready: other upstreams work.
        let is_late = state.started_at.elapsed() >= NAMES_TIMEOUT;
        if let Some(names) = checks
            .names
            .take_if(|_| is_late || !has_pending_names(&state))
        {
            names.set_ok();
        }
        gauges.update(&state);
        let is_started = has_keys && checks.names.is_none();
        let pause = match is_started {
            true => UPDATE_INTERVAL,
            false => STARTUP_POLL_INTERVAL,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Returns whether the first look-up of a name has not ended.
fn has_pending_names(state: &GatewayState) -> bool {
    let config = state.runtime_config.load();
    let mut names = config.pools.iter().flat_map(|pool| pool.names());
    names.any(|name| name.state == NameResolution::Pending)
}
