//! The service token of this process: from memory, the shared cache, or the service pool.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use aws_sdk_cognitoidentityprovider::Client;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedMutexGuard;

use super::token::ServiceToken;
use super::{ServiceTokenError, sign_in};
use crate::Secret;
use crate::backoff::Backoff;
use crate::cache::Cache;
use crate::clock::{Clock, Timestamp};
use crate::identity::{IdentityConfig, Pool, ServiceAccount};
use crate::seal::Seal;

/// Maximum time for which a caller waits for a new token. The sign-in continues after it.
const MAX_CALLER_WAIT: Duration = Duration::from_secs(2);

/// Maximum time for which a replica holds the lock for its sign-in. Longer than the client's
/// timeout.
const SIGN_IN_LOCK_TTL: Duration = Duration::from_secs(6);

/// Time between two checks for the result of another replica's sign-in.
const SHARED_TOKEN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time between two checks of [`ServiceTokens::run`] whether the token is due for refresh.
const REFRESH_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Delays before the next attempt after a failure.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Provides this service's own token. Clones share it.
///
/// Only one sign-in is in progress at a time, in this process and across replicas. A token is
/// refreshed ahead of its expiry while the old one is still used. While the pool is unavailable the
/// old token is used until it expires.
#[derive(Clone, Debug)]
pub struct ServiceTokens(Option<Arc<TokenProvider>>);

struct TokenProvider {
    client: Client,
    pool: Pool,
    account: ServiceAccount,
    cache: Cache,
    clock: Clock,
    seal: Seal,
    /// Name of this account in cache keys, a digest that does not reveal it.
    account_digest: String,
    state: Mutex<TokenState>,
    /// Held during a renewal.
    renewal: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct TokenState {
    current: Option<Arc<ServiceToken>>,
    failure: Option<RenewalFailure>,
}

struct RenewalFailure {
    error: ServiceTokenError,
    next_attempt: Timestamp,
    /// Number of consecutive failures.
    count: u32,
}

// === impl ServiceTokens ===

impl ServiceTokens {
    /// Creates the provider for the configured service account. Without one,
    /// [`ServiceTokens::token`] returns [`ServiceTokenError::NotConfigured`].
    #[must_use]
    pub fn new(identity: &IdentityConfig, cache: Cache, clock: Clock) -> Self {
        let Some(account) = identity.service_account.clone() else {
            return Self(None);
        };
        let pool = identity.service.clone();
        let account_digest = account_digest(&pool, &account);
        Self(Some(Arc::new(TokenProvider {
            client: identity.unsigned_client(),
            seal: seal(&pool, &account, &account_digest),
            pool,
            account,
            cache,
            clock,
            account_digest,
            state: Mutex::default(),
            renewal: Arc::default(),
        })))
    }

    /// Refreshes the token ahead of its expiry until shutdown, so that no call waits for a sign-in.
    /// Returns immediately without a service account.
    pub async fn run(&self, shutdown: CancellationToken) {
        let Some(inner) = &self.0 else { return };
        loop {
            inner.renew_if_due().await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(REFRESH_CHECK_INTERVAL) => {}
            }
        }
    }

    /// Returns a token that is valid for at least some seconds.
    ///
    /// # Errors
    /// No account is configured, the pool rejects it, or the pool is unavailable and the last token
    /// has expired.
    pub async fn token(&self) -> Result<Secret, ServiceTokenError> {
        let inner = self.0.as_ref().ok_or(ServiceTokenError::NotConfigured)?;
        let now = inner.clock.now();
        if let Some(current) = inner.current().filter(|current| current.is_usable(now)) {
            if !current.is_fresh(now) && !inner.is_backing_off(now) {
                inner.renew_in_background();
            }
            return Ok(current.token.clone());
        }
        let renewing = tokio::spawn({
            let inner = inner.clone();
            async move {
                let renewal = inner.renewal.clone().lock_owned().await;
                inner.renew(renewal).await
            }
        });
        match tokio::time::timeout(MAX_CALLER_WAIT, renewing).await {
            Ok(Ok(renewed)) => renewed.map(|current| current.token.clone()),
            Ok(Err(_)) => Err(ServiceTokenError::Unavailable(
                "the renewal was cancelled".to_owned(),
            )),
            Err(_) => Err(ServiceTokenError::Unavailable(format!(
                "no token within {} s",
                MAX_CALLER_WAIT.as_secs()
            ))),
        }
    }
}

/// Derives the encryption of the shared copy from the account's password and the client secret.
fn seal(pool: &Pool, account: &ServiceAccount, account_digest: &str) -> Seal {
    let password = account.password.expose();
    let secret = pool
        .client_secret
        .as_ref()
        .map_or("", |secret| secret.expose());
    let material = zeroize::Zeroizing::new(format!("{}:{password}{secret}", password.len()));
    Seal::new(
        "postern service token v1",
        material.as_bytes(),
        account_digest,
    )
}

#[cfg(test)]
impl ServiceTokens {
    pub(super) fn account_digest(&self) -> &str {
        self.0.as_ref().map_or("", |inner| &inner.account_digest)
    }

    /// Performs one check of [`ServiceTokens::run`].
    pub(super) async fn check_once(&self) {
        if let Some(inner) = &self.0 {
            inner.renew_if_due().await;
        }
    }
}

/// Returns a digest of the account for cache keys.
fn account_digest(pool: &Pool, account: &ServiceAccount) -> String {
    let identity = format!("{}\n{}\n{}", pool.issuer, pool.client_id, account.username);
    hex::encode(&Sha256::digest(identity.as_bytes())[..16])
}

// === impl TokenProvider ===

impl TokenProvider {
    /// Starts a renewal in the background, unless one is in progress.
    fn renew_in_background(self: &Arc<Self>) {
        if let Ok(renewal) = self.renewal.clone().try_lock_owned() {
            let inner = self.clone();
            tokio::spawn(async move { inner.renew(renewal).await.map(drop) });
        }
    }

    /// Renews the token if it is due. A failure has been logged, and the next check tries again.
    async fn renew_if_due(&self) {
        let now = self.clock.now();
        let is_fresh = self.current().is_some_and(|current| current.is_fresh(now));
        if !is_fresh && !self.is_backing_off(now) {
            let renewal = self.renewal.clone().lock_owned().await;
            let _ = self.renew(renewal).await;
        }
    }

    /// Obtains a new token. The guard allows one renewal at a time in this process; callers that
    /// waited for it use the result of the previous one.
    async fn renew(
        &self,
        _flight: OwnedMutexGuard<()>,
    ) -> Result<Arc<ServiceToken>, ServiceTokenError> {
        let now = self.clock.now();
        if let Some(current) = self.current().filter(|current| current.is_fresh(now)) {
            return Ok(current);
        }
        if let Some(failure) = self
            .state
            .lock()
            .failure
            .as_ref()
            .filter(|failure| now < failure.next_attempt)
        {
            return Err(failure.error.clone());
        }
        self.shared_or_new().await
    }

    /// Returns a fresh token from the shared cache, or signs in under a lock. Waits for the sign-in
    /// of another replica up to its maximum time. If the cache is unavailable, each replica signs
    /// in by itself.
    async fn shared_or_new(&self) -> Result<Arc<ServiceToken>, ServiceTokenError> {
        let polls = SIGN_IN_LOCK_TTL.as_millis() / SHARED_TOKEN_POLL_INTERVAL.as_millis();
        let lock = format!("service-token-lock:{}", self.account_digest);
        for _ in 0..polls {
            if let Some(current) = self.shared().await {
                return Ok(self.store(current));
            }
            let sign_in = async {
                // The previous holder may have stored its token after the check above.
                match self.shared().await {
                    Some(current) => Ok(self.store(current)),
                    None => self.sign_in_and_share().await,
                }
            };
            let sign_in = Box::pin(sign_in);
            let outcome = self
                .cache
                .with_lock(&lock, SIGN_IN_LOCK_TTL, Duration::ZERO, sign_in)
                .await;
            match outcome {
                Ok(None) => tokio::time::sleep(SHARED_TOKEN_POLL_INTERVAL).await,
                Ok(Some(outcome)) => return outcome,
                Err(_) => break,
            }
        }
        self.sign_in_and_share().await
    }

    async fn sign_in_and_share(&self) -> Result<Arc<ServiceToken>, ServiceTokenError> {
        let current = self.sign_in().await?;
        self.share(&current).await;
        Ok(current)
    }

    async fn sign_in(&self) -> Result<Arc<ServiceToken>, ServiceTokenError> {
        let token = match sign_in::sign_in(&self.client, &self.pool, &self.account).await {
            Ok(token) => self
                .read(&token)
                .filter(|token| token.is_usable(self.clock.now()))
                .ok_or_else(|| {
                    ServiceTokenError::Refused("its token has no exp or has expired".to_owned())
                }),
            Err(error) => Err(error),
        };
        match token {
            Ok(token) => Ok(self.store(token)),
            Err(error) => Err(self.record_failure(error)),
        }
    }

    fn read(&self, token: &str) -> Option<ServiceToken> {
        let chance = getrandom::u32().unwrap_or(0);
        ServiceToken::read(token, self.clock.now(), chance)
    }

    async fn shared(&self) -> Option<ServiceToken> {
        let sealed = self
            .cache
            .get(&format!("service-token:{}", self.account_digest))
            .await
            .ok()??;
        let token = self.read(&self.seal.open(&sealed)?)?;
        token.is_fresh(self.clock.now()).then_some(token)
    }

    async fn share(&self, token: &ServiceToken) {
        let sealed = self.seal.close(token.token.expose());
        let remaining = token.remaining(self.clock.now());
        // If the cache is unavailable, each replica signs in by itself.
        let _ = self
            .cache
            .set(
                &format!("service-token:{}", self.account_digest),
                &sealed,
                remaining,
            )
            .await;
    }

    fn store(&self, token: ServiceToken) -> Arc<ServiceToken> {
        let token = Arc::new(token);
        *self.state.lock() = TokenState {
            current: Some(token.clone()),
            failure: None,
        };
        token
    }

    fn record_failure(&self, error: ServiceTokenError) -> ServiceTokenError {
        crate::log_outage!("service_token", %error, account = self.account.username, "service token renewal failed");
        let mut state = self.state.lock();
        let count = state.failure.as_ref().map_or(0, |before| before.count);
        let count = count.saturating_add(1);
        let next_attempt = self.clock.now().plus(RETRY_DELAYS.delay(count));
        state.failure = Some(RenewalFailure {
            error: error.clone(),
            next_attempt,
            count,
        });
        error
    }

    fn current(&self) -> Option<Arc<ServiceToken>> {
        self.state.lock().current.clone()
    }

    fn is_backing_off(&self, now: Timestamp) -> bool {
        self.state
            .lock()
            .failure
            .as_ref()
            .is_some_and(|failure| now < failure.next_attempt)
    }
}

impl std::fmt::Debug for TokenProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceTokens")
            .field("account", &self.account.username)
            .finish_non_exhaustive()
    }
}
