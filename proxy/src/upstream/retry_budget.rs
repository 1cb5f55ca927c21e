//! Retries as a limited share of requests.

use std::sync::atomic::{AtomicI64, Ordering};

/// A retry budget: retries as a share of requests, so that retries do not multiply the load when
/// all requests fail. The balance is in hundredths of a retry: each request adds `percent`, each
/// retry subtracts 100.
#[derive(Debug)]
pub(super) struct RetryBudget {
    percent: i64,
    balance: AtomicI64,
}

/// Maximum and initial balance: ten retries.
const MAX_BALANCE: i64 = 10 * 100;

impl RetryBudget {
    pub(super) fn new(percent: u32) -> Self {
        let percent = i64::from(percent);
        Self {
            percent,
            balance: AtomicI64::new(if percent == 0 { 0 } else { MAX_BALANCE }),
        }
    }

    pub(super) fn deposit(&self) {
        if self.balance.load(Ordering::Relaxed) < MAX_BALANCE {
            self.balance.fetch_add(self.percent, Ordering::Relaxed);
        }
    }

    /// Returns the number of retries that are allowed now.
    pub(super) fn available(&self) -> i64 {
        self.balance.load(Ordering::Relaxed).max(0) / 100
    }

    /// Withdraws one retry. Returns whether the balance was sufficient.
    pub(super) fn try_withdraw(&self) -> bool {
        if self.balance.fetch_sub(100, Ordering::Relaxed) >= 100 {
            return true;
        }
        self.balance.fetch_add(100, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests() {
        let budget = RetryBudget::new(20);
        assert_eq!(
            (0..100).filter(|_| budget.try_withdraw()).count(),
            10,
            "the initial balance"
        );
        (0..50).for_each(|_| budget.deposit());
        assert_eq!(
            (0..100).filter(|_| budget.try_withdraw()).count(),
            10,
            "20 % of 50"
        );
        assert!(!RetryBudget::new(0).try_withdraw());
    }
}
