use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Stops a stub at a call: the test learns that the call came, and its caller never gets an answer.
#[derive(Default)]
pub(crate) struct Holds(Mutex<Vec<(String, When, Arc<Notify>)>>);

/// Where a call stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// It has had no effect.
    Before,
    /// It has had its effect, which its caller does not know.
    After,
}

/// A call that will be stopped.
pub(crate) struct Held(Arc<Notify>);

impl Holds {
    /// Stops the next call of this operation.
    pub(crate) fn add(&self, operation: &str, when: When) -> Held {
        let reached = Arc::new(Notify::new());
        let hold = (operation.to_owned(), when, Arc::clone(&reached));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
        Held(reached)
    }

    /// Goes on, or never.
    pub(super) async fn pass(&self, operation: &str, when: When) {
        let found = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = all.iter().position(|(name, at, _)| name == operation && *at == when);
            at.map(|at| all.remove(at).2)
        };
        if let Some(reached) = found {
            reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

impl Held {
    /// Returns when the call has come.
    pub(crate) async fn reached(&self) {
        self.0.notified().await;
    }
}
