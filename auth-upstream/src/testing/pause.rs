//! Pauses of calls to stubs: a test learns that a call has arrived, and decides when it continues.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The pauses of one stub.
#[derive(Default)]
pub(crate) struct CallPauses(Mutex<Vec<Pause>>);

/// The point at which a call is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PausePoint {
    /// Before the call has an effect.
    Before,
    /// After the call has had its effect, before its response.
    After,
}

struct Pause {
    operation: String,
    point: PausePoint,
    signals: Arc<PauseSignals>,
}

#[derive(Debug, Default)]
struct PauseSignals {
    reached: Notify,
    released: Notify,
}

/// A call that is paused, or will be.
pub(crate) struct PausedCall(Arc<PauseSignals>);

impl CallPauses {
    /// Pauses the next call of this operation.
    pub(crate) fn add(&self, operation: &str, point: PausePoint) -> PausedCall {
        let signals = Arc::new(PauseSignals::default());
        let pause = Pause {
            operation: operation.to_owned(),
            point,
            signals: Arc::clone(&signals),
        };
        self.0.lock().push(pause);
        PausedCall(signals)
    }

    /// Returns when the call may continue.
    pub(super) async fn pass(&self, operation: &str, point: PausePoint) {
        let signals = {
            let mut pauses = self.0.lock();
            let index = pauses
                .iter()
                .position(|pause| pause.operation == operation && pause.point == point);
            index.map(|index| pauses.remove(index).signals)
        };
        if let Some(signals) = signals {
            signals.reached.notify_one();
            signals.released.notified().await;
        }
    }
}

impl PausedCall {
    /// Returns when the call has arrived.
    pub(crate) async fn reached(&self) {
        self.0.reached.notified().await;
    }

    /// Lets the call continue.
    pub(crate) fn release(&self) {
        self.0.released.notify_one();
    }
}
