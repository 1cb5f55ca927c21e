//! A limit of live tails for each person, because a gateway has places for few.
//!
//! Input: a subject, or a session of a one-time link. Output: a [`TailPermit`], or 429. Depends on nothing.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use postern_core::{Code, Problem};

/// Maximum number of live tails of one owner: a quarter of the places at a gateway.
const MAX_TAILS: usize = 2;
/// Seconds after which a page that was refused tries again.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The permits of the live tails.
#[derive(Debug, Default)]
pub(crate) struct TailLimit(Mutex<Vec<Weak<str>>>);

/// The permit of one live tail, which ends with it: its owner.
pub(crate) type TailPermit = Arc<str>;

// === impl TailLimit ===

impl TailLimit {
    /// Counts a live tail.
    ///
    /// # Errors
    /// 429 if the owner has two.
    pub(crate) fn admit(&self, owner: &str) -> Result<TailPermit, Problem> {
        let mut open = self.0.lock();
        open.retain(|permit| permit.strong_count() > 0);
        let permits = open.iter().filter_map(Weak::upgrade);
        if permits.filter(|known| **known == *owner).count() >= MAX_TAILS {
            return Err(Problem::new(Code::RateLimited)
                .detail("you follow requests on two other pages: close one")
                .retry_after(RETRY_AFTER_SECONDS));
        }
        let permit = TailPermit::from(owner);
        open.push(Arc::downgrade(&permit));
        Ok(permit)
    }
}
