//! What every journey has at hand.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::{Cache, CacheError};
use postern_common::http::TrustedProxies;
use postern_common::token::Verifier;
use postern_common::{Clock, Code, Problem, Secret};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::abuse::{Abuse, Attempt, Credential, Door};
use crate::actors::ActorService;
use crate::config::{Confirm, Refresh};
use crate::email::Email;
use crate::log_limit::log_limited;
use crate::login::SignedIn;
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::pool::UserPool;
use crate::seal::KeyRing;
use crate::social::Social;
use crate::store::Store;
use crate::vault::Vault;

/// When somebody whom the limits hold back is told to come again, in seconds: the waits double, so
/// that this is a guess.
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
    /// Bounds how many revocations wait to be retried at the pool.
    pub(crate) revocations: Arc<Semaphore>,
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
    pub(crate) is_proven: bool,
}

// === impl Auth ===

impl Auth {
    /// Looks at a guess if the limits allow it; otherwise the answer is `silent`, as to a wrong
    /// one.
    pub(crate) async fn guarded<T>(
        &self,
        (door, silent): (Door, Code),
        visitor: &Visitor,
        who: &str,
        guess: impl Future<Output = Result<T, Refused>>,
    ) -> Result<T, Problem> {
        self.guarded_with((door, silent), visitor, who, |_| guess)
            .await
    }

    /// The same for a guess that needs to know how it is counted.
    async fn guarded_with<T, G>(
        &self,
        (door, silent): (Door, Code),
        visitor: &Visitor,
        who: &str,
        guess: impl FnOnce(&Attempt) -> G,
    ) -> Result<T, Problem>
    where
        G: Future<Output = Result<T, Refused>>,
    {
        let began = Instant::now();
        let Some(mut attempt) = self.abuse.admit(door, visitor, who).await else {
            self.metrics.held(door);
            self.pace.pad(door, began).await;
            return Err(silent.into());
        };
        let guess = guess(&attempt);
        let outcome = Box::pin(guess).await;
        match outcome
            .as_ref()
            .map_err(|refused| (refused.is_proven, refused.problem.code()))
        {
            Ok(_) => self.abuse.succeeded(attempt).await,
            // A further step says nothing of the answer to the last one: a pool asks again after a
            // wrong answer to a custom challenge, too. The attempt has been counted.
            Err((true, _)) if door == Door::Factor => attempt.settle(),
            Err((true, _)) => self.abuse.succeeded(attempt).await,
            Err((false, code)) if code == silent => {
                self.abuse.failed(&mut attempt).await;
                self.pace.finish(door, began).await;
            }
            Err((false, code)) if is_unseen(code) => self.abuse.refund(attempt).await,
            // Neither right nor wrong. It counts for the address, so that nobody uses up the
            // attempts of many accounts.
            Err((false, _)) => self.abuse.failed(&mut attempt).await,
        }
        outcome.map_err(|refused| refused.problem)
    }

    /// Looks at a password as [`Auth::guarded`] does, and limits how often the right one is
    /// accepted.
    pub(crate) async fn guarded_password(
        &self,
        silent: Code,
        visitor: &Visitor,
        (email, password): (&Email, &Secret),
        guess: impl Future<Output = Result<SignedIn, Refused>>,
    ) -> Result<SignedIn, Problem> {
        // Asked for an admitted attempt only: the limit must not tell a guesser that a password is
        // right.
        let limited = |attempt: &Attempt| {
            let credential = self.abuse.credential(attempt, password);
            Box::pin(async move { self.limited(&credential, guess).await })
        };
        let door = (Door::Password, silent);
        self.guarded_with(door, visitor, email.as_str(), limited)
            .await
    }

    /// Refuses a right password that has been accepted too often.
    async fn limited(
        &self,
        credential: &Credential,
        guess: impl Future<Output = Result<SignedIn, Refused>>,
    ) -> Result<SignedIn, Refused> {
        if let Some(wait) = self.abuse.sign_in_wait(credential).await {
            return Err(Refused::after_proof(too_many_sign_ins(wait)));
        }
        let outcome = guess.await;
        let is_right = match &outcome {
            Ok(_) => true,
            Err(refused) => refused.is_proven,
        };
        if !is_right {
            return outcome;
        }
        let Some(wait) = self.abuse.count_sign_in(credential).await else {
            return outcome;
        };
        if let Ok(signed_in) = outcome {
            self.drop_sign_in(&signed_in).await;
        }
        Err(Refused::after_proof(too_many_sign_ins(wait)))
    }

    /// Lets somebody in who names no account, unless the limits hold their address or network back.
    pub(crate) async fn admit_stranger(
        &self,
        door: Door,
        visitor: &Visitor,
    ) -> Result<Attempt, Problem> {
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
        Self {
            problem,
            is_proven: true,
        }
    }
}

/// Nothing says that the guess was right.
impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            is_proven: false,
        }
    }
}

impl From<Code> for Refused {
    fn from(code: Code) -> Self {
        Problem::new(code).into()
    }
}

fn too_many_sign_ins(wait: Duration) -> Problem {
    let seconds = u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
    Problem::new(Code::RateLimited).retry_after(seconds)
}

/// Whether nobody looked at a guess that ended so: the pool is away, or asks for fewer calls.
pub(crate) fn is_unseen(code: Code) -> bool {
    code == Code::RateLimited || code.status().is_server_error()
}

/// The cache is away: what needs it says so, within its deadline.
pub(crate) fn cache_away(error: CacheError) -> Problem {
    log_limited!(warn, %error, "the shared cache failed");
    Problem::new(Code::Unavailable)
}
