//! A limit of live tails for each person, because a gateway has places for few.
//!
//! Input: a subject, or a session of a one-time link. Output: a [`TailPermit`], or 429. Depends on nothing.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::{Code, Problem};

/// Maximum number of live tails of one owner: a quarter of the places at a gateway.
const MAX_TAILS: usize = 2;
/// Seconds after which a page that was refused tries again.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The number of live tails by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailLimit {
    open: Arc<Mutex<HashMap<String, usize>>>,
}

/// The permit of one live tail, which ends with it.
#[derive(Debug)]
pub(crate) struct TailPermit {
    limit: TailLimit,
    owner: String,
}

// === impl TailLimit ===

impl TailLimit {
    /// Counts a live tail.
    ///
    /// # Errors
    /// 429 if the owner has two.
    pub(crate) fn admit(&self, owner: &str) -> Result<TailPermit, Problem> {
        let mut open = self.open.lock();
        let count = open.entry(owner.to_owned()).or_default();
        if *count >= MAX_TAILS {
            return Err(Problem::new(Code::RateLimited)
                .detail("you follow requests on two other pages: close one")
                .retry_after(RETRY_AFTER_SECONDS));
        }
        *count += 1;
        Ok(TailPermit {
            limit: self.clone(),
            owner: owner.to_owned(),
        })
    }
}

// === impl TailPermit ===

impl Drop for TailPermit {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
        if let Some(count) = open.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_counted_by_owner_until_they_end() {
        let limit = TailLimit::default();
        let first = limit.admit("ada").expect("the first");
        let second = limit.admit("ada").expect("the second");
        let refused = limit.admit("ada").expect_err("the third");
        assert_eq!(refused.code(), Code::RateLimited);
        limit.admit("eve").expect("of another");
        drop(first);
        let third = limit.admit("ada").expect("a permit has ended");
        drop((second, third));
        assert!(limit.open.lock().is_empty(), "nothing is kept");
    }
}
