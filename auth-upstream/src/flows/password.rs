//! `POST /auth/password/forgot` and `/auth/password/reset`.

use std::sync::Arc;

use postern_common::email::EmailAddress;
use postern_common::{Clock, Code, Problem, Secret};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::attempt_guard::{AccountAttempt, AttemptError, AttemptGuard};
use super::{is_not_evaluated, run_to_completion};
use crate::client::ClientContext;
use crate::pool::UserPool;
use crate::pool::error::PoolCall;
use crate::protection::AttemptKind;
use crate::store::AuthStore;
use crate::telemetry::{AuditLog, AuditedResult, Completed, Operation, log_limited};

/// The maximum number of reset codes that are being requested at the same time.
const MAX_CODE_REQUESTS: usize = 64;

/// Requests codes for password resets and resets passwords.
#[derive(Clone, Debug)]
pub(crate) struct PasswordFlow {
    pool: Arc<UserPool>,
    store: AuthStore,
    guard: AttemptGuard,
    audit: AuditLog,
    clock: Clock,
    code_requests: Arc<Semaphore>,
}

/// A new password and the code that permits it.
#[derive(Clone, Debug)]
pub(crate) struct ResetRequest {
    pub(crate) email: EmailAddress,
    pub(crate) code: String,
    pub(crate) new_password: Secret,
}

// === impl PasswordFlow ===

impl PasswordFlow {
    pub(crate) fn new(
        pool: Arc<UserPool>,
        store: AuthStore,
        guard: AttemptGuard,
        audit: AuditLog,
        clock: Clock,
    ) -> Self {
        Self {
            pool,
            store,
            guard,
            audit,
            clock,
            code_requests: Arc::new(Semaphore::new(MAX_CODE_REQUESTS)),
        }
    }

    /// Requests a code in a background task, so that response and response time are the same for
    /// every address, registered or not. Returns the task for tests, or `None` if
    /// [`MAX_CODE_REQUESTS`] are in progress.
    pub(crate) fn request_code(
        &self,
        client: ClientContext,
        email: EmailAddress,
    ) -> Option<JoinHandle<()>> {
        let Ok(permit) = Arc::clone(&self.code_requests).try_acquire_owned() else {
            log_limited!(
                warn,
                "password reset code not requested, too many in progress"
            );
            return None;
        };
        let flow = self.clone();
        Some(postern_common::trace::spawn(async move {
            flow.send_code(&client, &email).await;
            drop(permit);
        }))
    }

    async fn send_code(&self, client: &ClientContext, email: &EmailAddress) {
        client.details.set_email(email);
        let operation = Operation::RequestResetCode;
        let Some(mut attempt) = self
            .guard
            .admit_silently(AttemptKind::ResetRequest, client, email.as_str())
            .await
        else {
            let outcome = Code::RateLimited.as_str();
            self.audit.record(client, operation, "", outcome);
            return;
        };
        let limiter = self.guard.limiter();
        // Logs failures of the pool only, not that the user does not exist.
        let sent = self.pool.forgot_password(email).await;
        let sent = sent.map_err(|error| error.problem(PoolCall::ForgotPassword));
        let outcome = sent
            .as_ref()
            .map_or_else(|problem| problem.code().as_str(), |_| "ok");
        self.audit.record(client, operation, "", outcome);
        match sent {
            Err(problem) if is_not_evaluated(problem.code()) => limiter.refund(attempt).await,
            // Each message counts as a failure, because an attacker may request it.
            Ok(_) | Err(_) => limiter.record_failure(&mut attempt).await,
        }
    }

    /// Sets a new password, revokes all refresh tokens of the user and forgets the trusted
    /// networks. Completes even if the client disconnects.
    ///
    /// # Errors
    /// `invalid_code` for a wrong code and an unknown user alike; `weak_password`; the problem
    /// codes of pool errors.
    pub(crate) async fn reset(
        &self,
        client: &ClientContext,
        request: &ResetRequest,
    ) -> AuditedResult<()> {
        client.details.set_email(&request.email);
        let (flow, owned_client, request) = (self.clone(), client.clone(), request.clone());
        let outcome =
            run_to_completion(async move { flow.limited_reset(&owned_client, &request).await })
                .await;
        let completed = outcome.map(|subject| Completed {
            subject: subject.unwrap_or_default(),
            value: (),
        });
        self.audit
            .complete(client, Operation::PasswordReset, completed)
    }

    async fn limited_reset(
        &self,
        client: &ClientContext,
        request: &ResetRequest,
    ) -> Result<Option<String>, Problem> {
        let account = request.email.as_str();
        let attempt = AccountAttempt {
            kind: AttemptKind::ResetCode,
            client,
            account,
            failure_code: Code::InvalidCode,
        };
        let subject = self
            .guard
            .evaluate(attempt, self.try_reset(request))
            .await?;
        // Networks may have been trusted for an attacker who knew the old password.
        self.guard
            .limiter()
            .trust_only(client, account, subject.as_deref())
            .await;
        Ok(subject)
    }

    /// Resets the password and returns the user's subject, if AWS credentials permit to find it.
    async fn try_reset(&self, request: &ResetRequest) -> Result<Option<String>, AttemptError> {
        let outcome = self
            .pool
            .reset_password(&request.email, &request.code, &request.new_password)
            .await;
        outcome.map_err(|error| error.problem(PoolCall::ResetPassword))?;
        Ok(self.end_earlier_sign_ins(&request.email).await)
    }

    /// Revokes the user's refresh tokens, which Cognito leaves valid after a password reset, and
    /// notes that the user has a password, which a social sign-in must not replace. Best effort.
    async fn end_earlier_sign_ins(&self, email: &EmailAddress) -> Option<String> {
        let admin = self.pool.admin.as_ref()?;
        let account = match admin.find_user(email.as_str()).await {
            Ok(Some(account)) => account,
            Ok(None) => return None,
            Err(error) => {
                log_limited!(warn, %error, "refresh tokens not revoked after password reset");
                return None;
            }
        };
        if let Err(error) = admin.sign_out_everywhere(&account.username).await {
            log_limited!(warn, %error, "refresh tokens not revoked after password reset");
        }
        if let Err(error) = self
            .store
            .mark_own_password(&account.username, self.clock.now())
            .await
        {
            log_limited!(warn, %error, "password reset not recorded for social sign-in");
        }
        Some(account.subject)
    }
}
