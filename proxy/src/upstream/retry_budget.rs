//! Retries as a limited share of requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use postern_http::client_shares::{ClientShare, ClientShares, client_limit};

/// A retry budget: retries as a share of requests, so that retries do not multiply the load when
/// all requests fail. The balance is in hundredths of a retry: each request adds `percent`, each
/// retry subtracts 100.
#[derive(Debug)]
pub(super) struct RetryBudget {
    percent: i64,
    balance: AtomicI64,
    shares: Arc<ClientShares>,
    /// The shares of the clients of retries for which no request has made up, oldest first.
    taken: Mutex<VecDeque<ClientShare>>,
}

/// Maximum and initial number of retries.
const MAX_RETRIES: usize = 10;

/// Maximum and initial balance.
const MAX_BALANCE: i64 = MAX_RETRIES as i64 * 100;

impl RetryBudget {
    pub(super) fn new(percent: u32) -> Self {
        let percent = i64::from(percent);
        Self {
            percent,
            balance: AtomicI64::new(if percent == 0 { 0 } else { MAX_BALANCE }),
            shares: Arc::default(),
            taken: Mutex::default(),
        }
    }

    pub(super) fn deposit(&self) {
        if self.balance.load(Ordering::Relaxed) < MAX_BALANCE {
            self.balance.fetch_add(self.percent, Ordering::Relaxed);
            let mut taken = self.taken.lock();
            let surplus = taken.len().saturating_sub(self.used());
            taken.drain(..surplus);
        }
    }

    /// Returns the number of retries for which no request has made up.
    fn used(&self) -> usize {
        MAX_RETRIES.saturating_sub(usize::try_from(self.available()).unwrap_or(0))
    }

    /// Returns the number of retries that are allowed now.
    pub(super) fn available(&self) -> i64 {
        self.balance.load(Ordering::Relaxed).max(0) / 100
    }

    /// Withdraws one retry. Returns whether the balance was sufficient, and whether the client has not
    /// used its share. `client` is `None` if the client is not known.
    pub(super) fn try_withdraw(&self, client: Option<u64>) -> bool {
        let limit = client_limit(self.used(), MAX_RETRIES);
        let share = client.map(|client| self.shares.try_add(client, 1, limit));
        if let Some(None) = share {
            return false;
        }
        if self.balance.fetch_sub(100, Ordering::Relaxed) < 100 {
            self.balance.fetch_add(100, Ordering::Relaxed);
            return false;
        }
        self.taken.lock().extend(share.flatten());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests() {
        let budget = RetryBudget::new(20);
        // The initial balance.
        assert_eq!((0..100).filter(|_| budget.try_withdraw(None)).count(), 10);
        (0..50).for_each(|_| budget.deposit());
        // 20 % of 50.
        assert_eq!((0..100).filter(|_| budget.try_withdraw(None)).count(), 10);
        assert!(!RetryBudget::new(0).try_withdraw(Some(1)));
    }

    #[test]
    fn client_gets_a_tenth_once_half_of_the_retries_are_taken() {
        let budget = RetryBudget::new(20);
        let retries = |client: u64| {
            let all = (0..20).filter(|_| budget.try_withdraw(Some(client)));
            all.count()
        };
        assert_eq!((retries(1), retries(2), retries(3)), (5, 1, 1));
        (0..5).for_each(|_| budget.deposit());
        assert_eq!((retries(1), retries(2)), (0, 0), "four of five are left");
        (0..50).for_each(|_| budget.deposit());
        assert_eq!((retries(1), retries(2)), (5, 1));
    }
}
