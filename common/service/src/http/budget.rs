//! The memory budget of request bodies.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::digest;
use parking_lot::Mutex;

use postern_core::network::client_limit_bits;
use postern_core::problem::{Code, Problem};

/// Bytes of request bodies that a server holds in memory, by class of caller, so that no class can
/// exhaust the memory of another.
///
/// Each size applies twice: to complete bodies, and to bodies that are still arriving. A size below
/// the maximum body size is raised to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyBudgets {
    /// Services with a verified token. There is no limit per service.
    pub services: usize,
    /// Users with a verified token.
    pub users: usize,
    /// Callers without a verified token.
    pub anonymous: usize,
    /// Webhooks of providers, whose signature can be verified only after the body has arrived.
    pub webhooks: usize,
}

/// The caller whose budget and share a body is charged to. The default is an anonymous caller of
/// unknown address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyOwner {
    /// A service with a verified token.
    Service,
    /// A user with a verified token, by digest of issuer and subject.
    User(u128),
    /// A caller without a verified token, by address if known.
    Anonymous(Option<IpAddr>),
    /// A provider that sends a delivery report, by address if known.
    Webhook(Option<IpAddr>),
}

/// The memory reservation of one body, released when the last clone is dropped. Data read from the
/// body must be kept together with it.
#[derive(Clone, Debug, Default)]
pub struct BudgetPermit {
    _reservation: Option<Arc<BodyReservation>>,
}

/// The budgets of one server, shared by all connections.
#[derive(Clone, Debug)]
pub(super) struct BodyMemoryBudget(Arc<[ClassBudget; 4]>);

#[derive(Debug)]
struct ClassBudget {
    size: usize,
    /// Maximum bytes of one caller or address.
    share: usize,
    usage: Mutex<BudgetUsage>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct BudgetUsage {
    arriving: usize,
    complete: usize,
    by_source: HashMap<u128, usize>,
}

/// The bytes reserved by one body: counted as arriving at first, as complete at the end.
#[derive(Debug)]
pub(super) struct BodyReservation {
    budget: BodyMemoryBudget,
    class: usize,
    source: Option<u128>,
    bytes: usize,
    pub(super) is_complete: bool,
}

/// Part of a class's budget that one caller or address may use: 1/8.
const SHARES_PER_CLASS: usize = 8;
/// As [`SHARES_PER_CLASS`], for webhooks: 1/4, because providers send many events per body from few
/// addresses.
const SHARES_FOR_WEBHOOKS: usize = 4;

// === impl BodyBudgets ===

impl BodyBudgets {
    /// Returns budgets for a server that reads no bodies of verified callers.
    #[must_use]
    pub const fn anonymous(bytes: usize) -> Self {
        Self {
            services: 0,
            users: 0,
            anonymous: bytes,
            webhooks: 0,
        }
    }

    /// Splits `bytes`: 1/2 for services, 1/4 for users, 1/8 each for anonymous callers and
    /// webhooks.
    #[must_use]
    pub const fn split(bytes: usize) -> Self {
        Self {
            services: bytes / 2,
            users: bytes / 4,
            anonymous: bytes / 8,
            webhooks: bytes / 8,
        }
    }
}

// === impl BodyOwner ===

impl BodyOwner {
    /// Returns the owner for a user with a verified token.
    #[must_use]
    pub fn user(issuer: &str, subject: &str) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(issuer.as_bytes());
        context.update(&[0]);
        context.update(subject.as_bytes());
        let hash = context.finish();
        let first = hash.as_ref().first_chunk().copied().unwrap_or_default();
        Self::User(u128::from_be_bytes(first))
    }

    fn class(self) -> usize {
        match self {
            Self::Service => 0,
            Self::User(_) => 1,
            Self::Anonymous(_) => 2,
            Self::Webhook(_) => 3,
        }
    }

    fn source(self) -> Option<u128> {
        match self {
            Self::Service => None,
            Self::User(identity) => Some(identity),
            Self::Anonymous(address) | Self::Webhook(address) => address.map(client_limit_bits),
        }
    }
}

// === impl BodyMemoryBudget ===

impl BodyMemoryBudget {
    /// Creates budgets for bodies of at most `body` bytes.
    pub(super) fn new(budgets: BodyBudgets, body: usize) -> Self {
        let class = |size: usize, shares: usize| {
            let size = size.max(body);
            ClassBudget {
                size,
                share: (size / shares).max(body),
                usage: Mutex::default(),
            }
        };
        Self(Arc::new([
            class(budgets.services, 1),
            class(budgets.users, SHARES_PER_CLASS),
            class(budgets.anonymous, SHARES_PER_CLASS),
            class(budgets.webhooks, SHARES_FOR_WEBHOOKS),
        ]))
    }

    /// Creates an empty reservation for a body of `announced` bytes. Nothing is reserved before
    /// data arrives, so that announcing a body does not block other clients.
    ///
    /// # Errors
    /// 503 if the body would not fit now, 429 if it would exceed its caller's share; both with
    /// `Retry-After`.
    pub(super) fn reserve(
        &self,
        owner: BodyOwner,
        announced: u64,
    ) -> Result<BodyReservation, Problem> {
        let (class, source) = (owner.class(), owner.source());
        let announced = usize::try_from(announced).map_err(|_| exhausted())?;
        let budget = &self.0[class];
        let usage = budget.usage.lock();
        budget.check_share(&usage, source, announced)?;
        budget.check_total(usage.complete, announced)?;
        drop(usage);
        Ok(BodyReservation {
            budget: self.clone(),
            class,
            source,
            bytes: 0,
            is_complete: false,
        })
    }
}

// === impl ClassBudget ===

impl ClassBudget {
    fn check_total(&self, used: usize, more: usize) -> Result<(), Problem> {
        let has_room = more <= self.size.saturating_sub(used);
        has_room.then_some(()).ok_or_else(exhausted)
    }

    fn check_share(
        &self,
        usage: &BudgetUsage,
        source: Option<u128>,
        more: usize,
    ) -> Result<(), Problem> {
        let used = source.and_then(|source| usage.by_source.get(&source));
        if more <= self.share.saturating_sub(used.copied().unwrap_or(0)) {
            return Ok(());
        }
        let detail = "too many bytes of requests are in progress for this caller";
        let problem = Problem::new(Code::RateLimited).detail(detail);
        Err(problem.retry_after(1))
    }
}

fn exhausted() -> Problem {
    Problem::new(Code::Unavailable)
        .detail("too many bytes of requests are in progress")
        .retry_after(1)
}

// === impl BodyReservation ===

impl BodyReservation {
    /// Reserves `more` bytes that have arrived. `is_last` says that the body is now complete; then
    /// all of it is charged to the budget of complete bodies, which incomplete bodies cannot
    /// exhaust.
    pub(super) fn grow(&mut self, more: usize, is_last: bool) -> Result<(), Problem> {
        let budget = &self.budget.0[self.class];
        let mut usage = budget.usage.lock();
        budget.check_share(&usage, self.source, more)?;
        if is_last || self.is_complete {
            let arrived = if self.is_complete { 0 } else { self.bytes };
            budget.check_total(usage.complete, arrived + more)?;
            usage.arriving -= arrived;
            usage.complete += arrived + more;
            self.is_complete = true;
        } else {
            budget.check_total(usage.arriving, more)?;
            usage.arriving += more;
        }
        if let Some(source) = self.source.filter(|_| more > 0) {
            *usage.by_source.entry(source).or_default() += more;
        }
        self.bytes += more;
        Ok(())
    }

    pub(super) fn into_permit(self) -> BudgetPermit {
        BudgetPermit {
            _reservation: Some(Arc::new(self)),
        }
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        let mut usage = self.budget.0[self.class].usage.lock();
        match self.is_complete {
            true => usage.complete -= self.bytes,
            false => usage.arriving -= self.bytes,
        }
        if let Some(source) = self.source
            && let Some(used) = usage.by_source.get_mut(&source)
        {
            *used -= self.bytes;
            if *used == 0 {
                usage.by_source.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests;
