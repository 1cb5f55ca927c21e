//! The service token of this process: from memory or the service pool.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::ServiceTokenError;
use super::sign_in::SignInClient;
use super::token::ServiceToken;
use postern_core::Secret;
use postern_core::backoff::{Backoff, Delays};
use postern_core::check::CheckResult;
use postern_core::clock::{Clock, Period, Timestamp};
use postern_core::dependency::{Dependencies, Dependency};
use postern_core::identity::IdentityConfig;

/// Maximum time for which a caller waits for a new token. The sign-in continues after it.
const MAX_CALLER_WAIT: Duration = Duration::from_secs(2);

/// Time between two checks of [`ServiceTokens::run`] whether the token is due for refresh.
const REFRESH_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Delays before the next attempt after a failure.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Attempts of a command, which are made soon: the sign-in of the one before continues.
const COMMAND_ATTEMPTS: u32 = 5;
const COMMAND_RETRY_DELAYS: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_millis(500));

/// Provides this service's own token. Clones share it.
///
/// Only one sign-in of the process is in progress at a time. A token is refreshed ahead of its expiry
/// while the old one is still used. While the pool is unavailable the old token is used until it
/// expires.
#[derive(Clone, Debug)]
pub struct ServiceTokens(Option<Arc<TokenProvider>>);

struct TokenProvider {
    client: SignInClient,
    clock: Clock,
    state: Mutex<TokenState>,
    /// Held during a renewal.
    renewal: Arc<tokio::sync::Mutex<()>>,
    availability: Option<Dependency>,
}

#[derive(Default)]
struct TokenState {
    current: Option<Arc<ServiceToken>>,
    failure: Option<RenewalFailure>,
}

struct RenewalFailure {
    error: ServiceTokenError,
    /// Until the next attempt.
    pause: Period,
    delays: Delays,
}

// === impl ServiceTokens ===

impl ServiceTokens {
    /// Creates the provider for the configured service account. Without one,
    /// [`ServiceTokens::token`] returns [`ServiceTokenError::NotConfigured`].
    #[must_use]
    pub fn new(identity: &IdentityConfig, clock: Clock) -> Self {
        let provider = |client| {
            Arc::new(TokenProvider {
                client,
                clock,
                state: Mutex::default(),
                renewal: Arc::default(),
                availability: None,
            })
        };
        Self(SignInClient::new(identity).map(provider))
    }

    /// Checks that the account gets a token that identifies a service, for the command `check`.
    pub async fn check(&self) -> CheckResult {
        let outcome = self.token_for_command().await;
        let outcome = outcome.map(|_| "gets a token with custom:service_id".to_owned());
        let outcome = outcome.map_err(|error| error.to_string());
        CheckResult::new("service account", outcome)
    }

    /// Returns a token as [`ServiceTokens::token`] does, for a command: it can wait for longer than a
    /// request, which a busy pool may need.
    pub async fn token_for_command(&self) -> Result<Secret, ServiceTokenError> {
        let is_outage =
            |outcome: &Result<_, _>| matches!(outcome, Err(ServiceTokenError::Unavailable(_)));
        COMMAND_RETRY_DELAYS
            .retry(COMMAND_ATTEMPTS, || self.token(), is_outage)
            .await
    }

    /// Shows in readiness and metrics whether the service pool accepts the account. Call it before
    /// the provider is shared.
    #[must_use]
    pub fn reported(mut self, dependencies: &Dependencies) -> Self {
        if let Some(provider) = self.0.as_mut().and_then(Arc::get_mut) {
            let account = provider.client.username().to_owned();
            let availability = dependencies.optional("service_account", account);
            // Failures have an event of their own.
            provider.availability = Some(availability.without_events());
        }
        self
    }

    /// Refreshes the token ahead of its expiry until shutdown, so that no call waits for a sign-in.
    /// Returns immediately without a service account.
    pub async fn run(&self, shutdown: CancellationToken) {
        let Some(inner) = &self.0 else { return };
        while !shutdown.is_cancelled() {
            inner.renew_if_due().await;
            let pause = tokio::time::sleep(REFRESH_CHECK_INTERVAL);
            shutdown.run_until_cancelled(pause).await;
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
            if !current.is_fresh(now) && inner.recent_failure(now).is_none() {
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
        let reason = match tokio::time::timeout(MAX_CALLER_WAIT, renewing).await {
            Ok(Ok(renewed)) => return renewed.map(|current| current.token.clone()),
            Ok(Err(_)) => "the renewal was cancelled".to_owned(),
            Err(_) => format!("no token within {} s", MAX_CALLER_WAIT.as_secs()),
        };
        Err(ServiceTokenError::Unavailable(reason))
    }
}

#[cfg(test)]
impl ServiceTokens {
    /// Performs one check of [`ServiceTokens::run`].
    pub(super) async fn check_once(&self) {
        if let Some(inner) = &self.0 {
            inner.renew_if_due().await;
        }
    }
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
        if !is_fresh && self.recent_failure(now).is_none() {
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
        if let Some(error) = self.recent_failure(now) {
            return Err(error);
        }
        let signed_in = self.client.sign_in().await;
        match signed_in.and_then(|token| self.read(&token)) {
            Ok(token) => Ok(self.store(token)),
            Err(error) => Err(self.record_failure(error)),
        }
    }

    fn read(&self, token: &Secret) -> Result<ServiceToken, ServiceTokenError> {
        let (now, chance) = (self.clock.now(), getrandom::u32().unwrap_or(0));
        let token = ServiceToken::read(token.expose(), now, chance);
        let invalid = || ServiceTokenError::Refused("its token has no exp or has expired".into());
        token
            .filter(|token| token.is_usable(now))
            .ok_or_else(invalid)
    }

    fn store(&self, token: ServiceToken) -> Arc<ServiceToken> {
        let token = Arc::new(token);
        if let Some(availability) = &self.availability {
            availability.record_success();
        }
        *self.state.lock() = TokenState {
            current: Some(token.clone()),
            failure: None,
        };
        token
    }

    fn record_failure(&self, error: ServiceTokenError) -> ServiceTokenError {
        let is_outage = matches!(error, ServiceTokenError::Unavailable(_));
        let cause = match is_outage {
            true => "identity_pool",
            false => "service_account",
        };
        postern_core::log_outage!(cause, %error, account = self.client.username(), "service token renewal failed");
        if let Some(availability) = &self.availability {
            availability.record_failure(&error);
        }
        let mut state = self.state.lock();
        let before = state.failure.take();
        let mut delays = before.map_or(RETRY_DELAYS.delays(), |before| before.delays);
        let pause = Period::new(self.clock.now(), delays.next_delay());
        state.failure = Some(RenewalFailure {
            error: error.clone(),
            pause,
            delays,
        });
        error
    }

    fn current(&self) -> Option<Arc<ServiceToken>> {
        self.state.lock().current.clone()
    }

    /// Returns the error of the last attempt until the next one is due.
    fn recent_failure(&self, now: Timestamp) -> Option<ServiceTokenError> {
        let state = self.state.lock();
        let failure = state.failure.as_ref()?;
        let is_recent = failure.pause.contains(now);
        is_recent.then(|| failure.error.clone())
    }
}

impl std::fmt::Debug for TokenProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenProvider({})", self.client.username())
    }
}
