use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest;

use crate::problem::{Code, Problem};

/// Bytes of request bodies that a server holds in memory at once, by the class of the caller: no
/// class can use up what another one needs. Each class has so much for complete bodies, and as much
/// again for bodies that are still arriving. A class whose budget is smaller than one body has room
/// for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyBudgets {
    /// Services with a verified token; they share it without further limits.
    pub services: usize,
    /// Users with a verified token.
    pub users: usize,
    /// Callers without a verified token.
    pub anonymous: usize,
    /// Webhooks of providers, whose signature can be verified only when the body is there.
    pub webhooks: usize,
}

/// The caller to whose budget and share a body is charged. Without one it is anonymous, from an
/// unknown address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyOwner {
    /// A service with a verified token.
    Service,
    /// A user with a verified token, by the digest of issuer and subject.
    User(u128),
    /// A caller without a verified token, by address where it is known.
    Anonymous(Option<IpAddr>),
    /// A provider that reports something, by address where it is known.
    Webhook(Option<IpAddr>),
}

/// The memory that one body has reserved; released when the last clone is dropped. Whoever keeps
/// what was read from the body keeps this with it.
#[derive(Clone, Debug, Default)]
pub struct BudgetPermit {
    _reservation: Option<Arc<Reservation>>,
}

/// The budgets of one server, shared by its connections.
#[derive(Clone, Debug)]
pub(super) struct BodyMemoryBudget(Arc<[ClassBudget; 4]>);

#[derive(Debug)]
struct ClassBudget {
    size: usize,
    /// Bytes of one caller or address.
    share: usize,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    arriving: usize,
    complete: usize,
    by_source: HashMap<u128, usize>,
}

/// What one body has reserved so far, first as arriving and then as complete.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: BodyMemoryBudget,
    class: usize,
    source: Option<u128>,
    bytes: usize,
    is_complete: bool,
}

/// One caller or address gets at most this part of its class's budget.
const SHARES: usize = 8;
/// Providers call from few addresses, often with many events in one body.
const WEBHOOK_SHARES: usize = 4;

// === impl BodyBudgets ===

impl BodyBudgets {
    /// For a server that reads no body of a verified caller.
    #[must_use]
    pub const fn anonymous(bytes: usize) -> Self {
        Self {
            services: 0,
            users: 0,
            anonymous: bytes,
            webhooks: 0,
        }
    }

    /// Half for services, a quarter for users, an eighth each for anonymous callers and webhooks.
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
    /// A user with a verified token: the identity is issuer and subject.
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
            Self::Anonymous(address) | Self::Webhook(address) => address.map(network),
        }
    }
}

/// An IPv4 address, or the /64 of an IPv6 address: whoever has one address of it has them all.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits() & !u128::from(u64::MAX),
    }
}

// === impl BodyMemoryBudget ===

impl BodyMemoryBudget {
    /// Budgets of these sizes, where one body may have `body` bytes.
    pub(super) fn new(budgets: BodyBudgets, body: usize) -> Self {
        let class = |size: usize, shares: usize| {
            let size = size.max(body);
            ClassBudget {
                size,
                share: (size / shares).max(body),
                usage: Mutex::default(),
            }
        };
        let BodyBudgets {
            services,
            users,
            anonymous,
            webhooks,
        } = budgets;
        Self(Arc::new([
            class(services, 1),
            class(users, SHARES),
            class(anonymous, SHARES),
            class(webhooks, WEBHOOK_SHARES),
        ]))
    }

    /// An empty reservation for a body of so many announced bytes. Nothing is taken: a body that is
    /// announced and does not come keeps nobody out.
    ///
    /// # Errors
    /// 503 where the body would not fit now, 429 where it would exceed its caller's share; both
    /// with `Retry-After`.
    pub(super) fn reserve(&self, owner: BodyOwner, announced: u64) -> Result<Reservation, Problem> {
        let (class, source) = (owner.class(), owner.source());
        let announced = usize::try_from(announced).map_err(|_| exhausted())?;
        let budget = &self.0[class];
        let usage = budget.usage();
        budget.check_share(&usage, source, announced)?;
        budget.check_total(usage.complete, announced)?;
        drop(usage);
        Ok(Reservation {
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
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_total(&self, used: usize, more: usize) -> Result<(), Problem> {
        if more <= self.size.saturating_sub(used) {
            Ok(())
        } else {
            Err(exhausted())
        }
    }

    fn check_share(&self, usage: &Usage, source: Option<u128>, more: usize) -> Result<(), Problem> {
        let used = source
            .and_then(|source| usage.by_source.get(&source))
            .copied()
            .unwrap_or(0);
        if more <= self.share.saturating_sub(used) {
            return Ok(());
        }
        let detail = "too many bytes of requests are in progress for this caller";
        Err(Problem::new(Code::RateLimited)
            .detail(detail)
            .retry_after(1))
    }
}

fn exhausted() -> Problem {
    Problem::new(Code::Unavailable)
        .detail("too many bytes of requests are in progress")
        .retry_after(1)
}

// === impl Reservation ===

impl Reservation {
    /// Reserves memory for bytes that have arrived. `is_last` says that the body is complete with
    /// them: then it is charged to the budget of complete bodies, which unfinished ones cannot use
    /// up.
    ///
    /// # Errors
    /// 503 or 429, as [`BodyMemoryBudget::reserve`].
    pub(super) fn grow(&mut self, more: usize, is_last: bool) -> Result<(), Problem> {
        let budget = &self.budget.0[self.class];
        let mut usage = budget.usage();
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

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn into_permit(self) -> BudgetPermit {
        BudgetPermit {
            _reservation: Some(Arc::new(self)),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut usage = self.budget.0[self.class].usage();
        if self.is_complete {
            usage.complete -= self.bytes;
        } else {
            usage.arriving -= self.bytes;
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
