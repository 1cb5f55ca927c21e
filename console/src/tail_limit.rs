//! A limit of live tails for each person, because a gateway has places for few.
//!
//! Input: a subject, or a session of a one-time link. Output: a [`TailPermit`], or 429. Depends on nothing.

use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::{Code, Problem};

/// Maximum number of live tails of one owner: a quarter of the places at a gateway.
const MAX_TAILS: usize = 2;
/// Seconds after which a page that was refused tries again.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The owners of the live tails.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailLimit(Arc<Mutex<Vec<String>>>);

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
        let mut open = self.0.lock();
        if open.iter().filter(|known| *known == owner).count() >= MAX_TAILS {
            return Err(Problem::new(Code::RateLimited)
                .detail("you follow requests on two other pages: close one")
                .retry_after(RETRY_AFTER_SECONDS));
        }
        open.push(owner.to_owned());
        Ok(TailPermit {
            limit: self.clone(),
            owner: owner.to_owned(),
        })
    }
}

// === impl TailPermit ===

impl Drop for TailPermit {
    fn drop(&mut self) {
        let mut open = self.limit.0.lock();
        if let Some(at) = open.iter().position(|known| *known == self.owner) {
            open.swap_remove(at);
        }
    }
}
