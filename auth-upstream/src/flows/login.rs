//! `POST /auth/login`: sign-in with a password.

use std::sync::Arc;

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};

use super::FlowParts;
use super::attempt_guard::{AccountAttempt, AttemptError};
use super::challenge_session::password_reset_required;
use super::token_issuer::SignedInUser;
use super::token_set::TokenSet;
use crate::client::ClientContext;
use crate::pool::error::{PoolCall, PoolError};
use crate::protection::AttemptKind;
use crate::telemetry::{AuditedResult, Completed, Operation};

/// Signs users in with a password.
#[derive(Debug)]
pub(crate) struct LoginFlow {
    pub(crate) parts: Arc<FlowParts>,
}

/// The credentials of a sign-in.
#[derive(Clone, Debug)]
pub(crate) struct LoginRequest {
    pub(crate) email: EmailAddress,
    pub(crate) password: Secret,
}

// === impl LoginFlow ===

impl LoginFlow {
    /// Signs a user in.
    ///
    /// # Errors
    /// `invalid_credentials` for a wrong password and for an unknown or disabled user alike;
    /// `challenge_required`; `rate_limited`; the problem codes of pool errors.
    pub(crate) async fn sign_in(
        &self,
        client: &ClientContext,
        request: &LoginRequest,
    ) -> AuditedResult<TokenSet> {
        client.details.set_email(&request.email);
        let started_at = self.guard.limiter().now();
        let attempt = AccountAttempt {
            kind: AttemptKind::Password,
            client,
            account: request.email.as_str(),
            failure_code: Code::InvalidCredentials,
        };
        let evaluation = self.check_credentials(request);
        let guard = &self.guard;
        let outcome = guard
            .evaluate_password(attempt, &request.password, evaluation)
            .await;
        if let Ok(signed_in) = &outcome {
            guard
                .trust_network(client, &request.email, &signed_in.subject, started_at)
                .await;
        }
        self.audit
            .complete(client, Operation::SignIn, outcome.map(Completed::from))
    }

    async fn check_credentials(
        &self,
        request: &LoginRequest,
    ) -> Result<SignedInUser, AttemptError> {
        let email = &request.email;
        match self.check_password(email, &request.password).await {
            Ok(checked) => Ok(self.issuer.issue(checked?)?),
            Err(PoolError::UserNotConfirmed) => {
                let pending = self.store.awaiting_registration(email.as_str()).await;
                let id = pending.map_err(Problem::from)?.unwrap_or_default();
                let problem = self.issuer.confirmation_required(email, &id);
                Err(AttemptError::after_proof(problem))
            }
            // The pool reports this before it verifies the password, so that the attempt proves
            // nothing.
            Err(PoolError::PasswordResetRequired) => Err(password_reset_required().into()),
            Err(error) => Err(error.problem(PoolCall::SignIn).into()),
        }
    }
}
