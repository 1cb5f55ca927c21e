//! Our own service token: from memory, then the shared cache, then the service pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use aws_sdk_cognitoidentityprovider::Client;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedMutexGuard;

use super::held::Held;
use super::{ServiceTokenError, pool};
use crate::cache::Cache;
use crate::clock::{Clock, Timestamp};
use crate::identity::{IdentityConfig, Pool, ServiceAccount};
use crate::seal::Seal;
use crate::{Secret, cache};

/// How long a caller waits for a new token; the attempt itself goes on.
const WAIT: Duration = Duration::from_secs(2);

/// How long a replica may take for its sign-in while the others wait; longer than the client's own
/// timeout.
const LOCK_FOR: Duration = Duration::from_secs(6);

/// How often a replica that waits for another's sign-in looks for its result.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often [`ServiceTokens::run`] looks whether the token is due: a small part of the time that
/// is left then.
const LOOK_AHEAD_EVERY: Duration = Duration::from_secs(15);

/// After a failure, the next attempt is this much later, doubling up to the second number.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Gives out this service's own token. Clones share it.
///
/// In one process and across replicas, one sign-in at a time; refreshed ahead of its end while the
/// old one is still given out; through an outage of the pool the old one is given out until it
/// ends, and never after.
#[derive(Clone, Debug)]
pub struct ServiceTokens(Option<Arc<Inner>>);

struct Inner {
    client: Client,
    pool: Pool,
    account: ServiceAccount,
    cache: Cache,
    clock: Clock,
    seal: Seal,
    /// Names this account in the cache, without telling it.
    name: String,
    state: Mutex<State>,
    /// Held by the one that renews.
    flight: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    held: Option<Arc<Held>>,
    failure: Option<Failure>,
}

struct Failure {
    error: ServiceTokenError,
    next_attempt: Timestamp,
    patience: Duration,
}

// === impl ServiceTokens ===

impl ServiceTokens {
    /// Tokens of the configured service account; without one, every call to
    /// [`ServiceTokens::token`] says so.
    #[must_use]
    pub fn new(identity: &IdentityConfig, cache: Cache, clock: Clock) -> Self {
        let Some(account) = identity.service_account.clone() else {
            return Self(None);
        };
        let pool = identity.service.clone();
        let name = name(&pool, &account);
        Self(Some(Arc::new(Inner {
            client: identity.unsigned_client(),
            seal: seal(&pool, &account, &name),
            pool,
            account,
            cache,
            clock,
            name,
            state: Mutex::default(),
            flight: Arc::default(),
        })))
    }

    /// Keeps the token fresh until the stop begins, whether it is asked for or not, so that no call
    /// waits for a sign-in. Without an account there is nothing to do.
    pub async fn run(&self, shutdown: CancellationToken) {
        let Some(inner) = &self.0 else { return };
        loop {
            inner.keep_fresh().await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK_AHEAD_EVERY) => {}
            }
        }
    }

    /// A token that is valid for some seconds at least.
    ///
    /// # Errors
    /// There is none: no account is set, the pool refuses it, or the pool is away and the last one
    /// has expired.
    pub async fn token(&self) -> Result<Secret, ServiceTokenError> {
        let inner = self.0.as_ref().ok_or(ServiceTokenError::NotConfigured)?;
        let now = inner.clock.now();
        if let Some(held) = inner.held().filter(|held| held.is_usable(now)) {
            if !held.is_fresh(now) && !inner.must_wait(now) {
                inner.renew_behind();
            }
            return Ok(held.token.clone());
        }
        let renewing = tokio::spawn({
            let inner = inner.clone();
            async move {
                let flight = inner.flight.clone().lock_owned().await;
                inner.renew(flight).await
            }
        });
        match tokio::time::timeout(WAIT, renewing).await {
            Ok(Ok(renewed)) => renewed.map(|held| held.token.clone()),
            Ok(Err(_)) => Err(ServiceTokenError::Unavailable(
                "the attempt was given up".to_owned(),
            )),
            Err(_) => Err(ServiceTokenError::Unavailable(format!(
                "no token within {} s",
                WAIT.as_secs()
            ))),
        }
    }
}

/// What the shared copy is sealed with: the service account's password and the client's secret.
fn seal(pool: &Pool, account: &ServiceAccount, name: &str) -> Seal {
    let password = account.password.expose();
    let secret = pool
        .client_secret
        .as_ref()
        .map_or("", |secret| secret.expose());
    let material = zeroize::Zeroizing::new(format!("{}:{password}{secret}", password.len()));
    Seal::new("postern service token v1", material.as_bytes(), name)
}

#[cfg(test)]
impl ServiceTokens {
    pub(super) fn name(&self) -> &str {
        self.0.as_ref().map_or("", |inner| &inner.name)
    }

    /// One look of [`ServiceTokens::run`].
    pub(super) async fn look_ahead(&self) {
        if let Some(inner) = &self.0 {
            inner.keep_fresh().await;
        }
    }
}

/// One way, so that the cache's keys name no account.
fn name(pool: &Pool, account: &ServiceAccount) -> String {
    let identity = format!("{}\n{}\n{}", pool.issuer, pool.client_id, account.username);
    let digest = Sha256::digest(identity.as_bytes());
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

// === impl Inner ===

impl Inner {
    /// Renews in the background, unless someone is at it.
    fn renew_behind(self: &Arc<Self>) {
        if let Ok(flight) = self.flight.clone().try_lock_owned() {
            let inner = self.clone();
            tokio::spawn(async move { inner.renew(flight).await.map(drop) });
        }
    }

    /// Renews the token if it is due; a failure is logged where it arises, and the next look tries
    /// again.
    async fn keep_fresh(&self) {
        let now = self.clock.now();
        let is_fresh = self.held().is_some_and(|held| held.is_fresh(now));
        if !is_fresh && !self.must_wait(now) {
            let flight = self.flight.clone().lock_owned().await;
            let _ = self.renew(flight).await;
        }
    }

    /// Gets a fresh token, alone in this process. Whoever waited for the flight finds its result.
    async fn renew(&self, _flight: OwnedMutexGuard<()>) -> Result<Arc<Held>, ServiceTokenError> {
        let now = self.clock.now();
        if let Some(held) = self.held().filter(|held| held.is_fresh(now)) {
            return Ok(held);
        }
        if let Some(failure) = self
            .state()
            .failure
            .as_ref()
            .filter(|failure| now < failure.next_attempt)
        {
            return Err(failure.error.clone());
        }
        let (shared, lock) = self.shared_or_lock().await;
        if let Some(held) = shared {
            return Ok(self.keep(held));
        }
        let outcome = self.sign_in().await;
        if let Ok(held) = &outcome {
            self.share(held).await;
        }
        if let Some(lock) = lock {
            lock.release().await;
        }
        outcome
    }

    /// A fresh token from the shared cache, or the right to sign in. Waits for another replica's
    /// sign-in as long as that may take; without a cache, everyone is on its own.
    async fn shared_or_lock(&self) -> (Option<Held>, Option<cache::Guard>) {
        let looks = LOCK_FOR.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if let Some(held) = self.shared().await {
                return (Some(held), None);
            }
            match self
                .cache
                .lock(&format!("service-token-lock:{}", self.name), LOCK_FOR)
                .await
            {
                Ok(None) => tokio::time::sleep(LOOK_EVERY).await,
                // The one before us may have shared its token between our look and our lock.
                Ok(Some(lock)) => return (self.shared().await, Some(lock)),
                Err(_) => return (None, None),
            }
        }
        (None, None)
    }

    async fn sign_in(&self) -> Result<Arc<Held>, ServiceTokenError> {
        let held = match pool::sign_in(&self.client, &self.pool, &self.account).await {
            Ok(token) => self
                .read(&token)
                .filter(|held| held.is_usable(self.clock.now()))
                .ok_or_else(|| {
                    ServiceTokenError::Refused(
                        "its token has no exp, or one that is over".to_owned(),
                    )
                }),
            Err(error) => Err(error),
        };
        match held {
            Ok(held) => Ok(self.keep(held)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn read(&self, token: &str) -> Option<Held> {
        let chance = getrandom::u32().unwrap_or(0);
        Held::read(token, self.clock.now(), chance)
    }

    async fn shared(&self) -> Option<Held> {
        let sealed = self
            .cache
            .get(&format!("service-token:{}", self.name))
            .await
            .ok()??;
        let held = self.read(&self.seal.open(&sealed)?)?;
        held.is_fresh(self.clock.now()).then_some(held)
    }

    async fn share(&self, held: &Held) {
        let Some(sealed) = self.seal.close(held.token.expose()) else {
            return;
        };
        let remaining = held.remaining(self.clock.now());
        // Without the cache every replica signs in for itself, which is no fault.
        let _ = self
            .cache
            .set(&format!("service-token:{}", self.name), &sealed, remaining)
            .await;
    }

    fn keep(&self, held: Held) -> Arc<Held> {
        let held = Arc::new(held);
        *self.state() = State {
            held: Some(held.clone()),
            failure: None,
        };
        held
    }

    fn fail(&self, error: ServiceTokenError) -> ServiceTokenError {
        tracing::warn!(%error, account = self.account.username, "no new service token");
        let mut state = self.state();
        let (first, most) = PATIENCE;
        let patience = state
            .failure
            .as_ref()
            .map_or(first, |before| (before.patience * 2).min(most));
        let next_attempt = self.clock.now().plus(patience);
        state.failure = Some(Failure {
            error: error.clone(),
            next_attempt,
            patience,
        });
        error
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.state().held.clone()
    }

    fn must_wait(&self, now: Timestamp) -> bool {
        self.state()
            .failure
            .as_ref()
            .is_some_and(|failure| now < failure.next_attempt)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceTokens")
            .field("account", &self.account.username)
            .finish_non_exhaustive()
    }
}
