//! What every journey has at hand.

use std::net::IpAddr;
use std::sync::Arc;

use postern_common::cache::{Cache, CacheError};
use postern_common::http::TrustedProxies;
use postern_common::token::Verifier;
use postern_common::{Clock, Code, Problem};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::abuse::{Abuse, Attempt, Door};
use crate::actors::ActorService;
use crate::config::{Confirm, Refresh};
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::pool::UserPool;
use crate::seal::KeyRing;
use crate::social::Social;
use crate::store::Store;
use crate::vault::Vault;

/// When somebody whom the limits hold back is told to come again, in seconds: the waits double, so that this is a guess.
const HELD_S: u32 = 60;

/// The authentication upstream without its sockets. Each journey is a method, in a file of its own.
#[derive(Debug)]
pub(crate) struct Auth {
    pub(crate) clock: Clock,
    pub(crate) pool: UserPool,
    pub(crate) actors: ActorService,
    pub(crate) store: Store,
    pub(crate) cache: Cache,
    pub(crate) vault: Vault,
    /// Seals refresh tokens and challenge sessions.
    pub(crate) ring: KeyRing,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) confirm: Confirm,
    pub(crate) refresh: Refresh,
    pub(crate) social: Option<Social>,
    pub(crate) abuse: Abuse,
    pub(crate) pace: Pace,
    /// Whose `X-Forwarded-For` is believed.
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) metrics: Metrics,
    /// Bounds how many codes for a new password are being asked for.
    pub(crate) codes: Arc<Semaphore>,
}

/// Who is at the door, as far as that is known before anybody has signed in.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// The request's id, for the audit log.
    pub(crate) request_id: Arc<str>,
    /// Where the request comes from, for the limits on guessing; never logged.
    pub(crate) address: Option<IpAddr>,
}

/// How a guess that was looked at was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) problem: Problem,
    /// The guess was right, and more is asked for.
    is_proven: bool,
}

// === impl Auth ===

impl Auth {
    /// Looks at a guess if the limits allow it; otherwise the answer is `silent`, as to a wrong one.
    pub(crate) async fn guarded<T>(
        &self,
        (door, silent): (Door, Code),
        visitor: &Visitor,
        who: &str,
        guess: impl Future<Output = Result<T, Refused>>,
    ) -> Result<T, Problem> {
        let began = Instant::now();
        let Some(attempt) = self.abuse.admit(door, visitor, who).await else {
            self.metrics.held(door);
            self.pace.pad(door, began).await;
            return Err(silent.into());
        };
        let outcome = Box::pin(guess).await;
        match outcome.as_ref().map_err(|refused| (refused.is_proven, refused.problem.code())) {
            Ok(_) => self.abuse.succeeded(attempt).await,
            // A further step says nothing of the answer to the last one: a pool asks again after a wrong answer to a
            // custom challenge, too. The attempt has been counted.
            Err((true, _)) if door == Door::Factor => {}
            Err((true, _)) => self.abuse.succeeded(attempt).await,
            Err((false, code)) if code == silent => {
                self.abuse.failed(&attempt).await;
                self.pace.finish(door, began).await;
            }
            Err((false, code)) if is_unseen(code) => self.abuse.refund(attempt).await,
            // Neither right nor wrong. It counts for the address, so that nobody uses up the attempts of many accounts.
            Err((false, _)) => self.abuse.failed(&attempt).await,
        }
        outcome.map_err(|refused| refused.problem)
    }

    /// Lets somebody in who names no account, unless the limits hold their address or network back.
    pub(crate) async fn admit_stranger(&self, door: Door, visitor: &Visitor) -> Result<Attempt, Problem> {
        let admitted = self.abuse.admit_stranger(door, visitor).await;
        admitted.ok_or_else(|| {
            self.metrics.held(door);
            Problem::new(Code::RateLimited).retry_after(HELD_S)
        })
    }
}

// === impl Refused ===

impl Refused {
    /// What was guessed is right; something else is in the way.
    pub(crate) fn after_proof(problem: Problem) -> Self {
        Self { problem, is_proven: true }
    }
}

/// Nothing says that the guess was right.
impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem, is_proven: false }
    }
}

impl From<Code> for Refused {
    fn from(code: Code) -> Self {
        Problem::new(code).into()
    }
}

/// Whether nobody looked at a guess that ended so: the pool is away, or asks for fewer calls.
pub(crate) fn is_unseen(code: Code) -> bool {
    code == Code::RateLimited || code.status().is_server_error()
}

/// The cache is away: what needs it says so, within its deadline.
pub(crate) fn cache_away(error: CacheError) -> Problem {
    tracing::warn!(%error, "the shared cache failed");
    Problem::new(Code::Unavailable)
}
