use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Stops a stub at a call: the test learns that the call came, and its caller gets no answer until
/// the test lets it go on.
#[derive(Default)]
pub(crate) struct Holds(Mutex<Vec<(String, When, Arc<Gate>)>>);

#[derive(Debug, Default)]
struct Gate {
    reached: Notify,
    released: Notify,
}

/// Where a call stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// It has had no effect.
    Before,
    /// It has had its effect, which its caller does not know.
    After,
}

/// A call that will be stopped.
pub(crate) struct Held(Arc<Gate>);

impl Holds {
    /// Stops the next call of this operation.
    pub(crate) fn add(&self, operation: &str, when: When) -> Held {
        let gate = Arc::new(Gate::default());
        let hold = (operation.to_owned(), when, Arc::clone(&gate));
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hold);
        Held(gate)
    }

    /// Goes on, once it is let.
    pub(super) async fn pass(&self, operation: &str, when: When) {
        let found = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = all
                .iter()
                .position(|(name, at, _)| name == operation && *at == when);
            at.map(|at| all.remove(at).2)
        };
        if let Some(gate) = found {
            gate.reached.notify_one();
            gate.released.notified().await;
        }
    }
}

impl Held {
    /// Returns when the call has come.
    pub(crate) async fn reached(&self) {
        self.0.reached.notified().await;
    }

    /// Lets the call go on.
    pub(crate) fn release(&self) {
        self.0.released.notify_one();
    }
}
