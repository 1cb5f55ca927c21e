//! Removals of trusted networks that the shared cache has not confirmed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Keys of the lists that are being removed, with the number of removals. No network is trusted by
/// a list whose removal is not confirmed. There is one removal for each password reset that the
/// pool has accepted, so that their number needs no other bound.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRemovals(Arc<Mutex<HashMap<String, usize>>>);

// === impl PendingRemovals ===

impl PendingRemovals {
    pub(super) fn insert(&self, key: &str) {
        *self.0.lock().entry(key.to_owned()).or_default() += 1;
    }

    /// Ends one removal, which the shared cache has confirmed.
    pub(super) fn remove(&self, key: &str) {
        let mut pending = self.0.lock();
        if let Some(removals) = pending.get_mut(key) {
            *removals -= 1;
            if *removals == 0 {
                pending.remove(key);
            }
        }
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.0.lock().contains_key(key)
    }
}
