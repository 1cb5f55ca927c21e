//! `POST /auth/login`: sign-in with a password.

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};

use super::Flows;
use super::attempt_guard::{AccountAttempt, AttemptError};
use super::challenge_session::password_reset_required;
use super::token_set::{SignedInUser, TokenSet};
use crate::client::ClientContext;
use crate::pool::error::PoolError;
use crate::protection::AttemptKind;
use crate::telemetry::{AuditedResult, Operation};

#[derive(Clone, Debug)]
pub(crate) struct LoginRequest {
    pub(crate) email: EmailAddress,
    pub(crate) password: Secret,
}

// === impl Flows ===

impl Flows {
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
        let started_at = self.clock.now();
        let (kind, code) = (AttemptKind::Password, Code::InvalidCredentials);
        let attempt = AccountAttempt::new(kind, client, request.email.as_str(), code);
        let evaluation = self.check_credentials(request);
        let outcome = self
            .evaluate_password(attempt, &request.password, evaluation)
            .await;
        if let Ok(signed_in) = &outcome {
            self.trust_network(client, &request.email, &signed_in.subject, started_at)
                .await;
        }
        self.audit.complete(client, Operation::SignIn, outcome)
    }

    async fn check_credentials(
        &self,
        request: &LoginRequest,
    ) -> Result<SignedInUser, AttemptError> {
        let email = &request.email;
        let fault = match self.check_password(email, &request.password).await {
            Ok(checked) => return Ok(self.issue(checked?)?),
            Err(fault) => fault,
        };
        if fault.error == PoolError::UserNotConfirmed {
            let pending = self.store.awaiting_registration(email.as_str()).await;
            let id = pending.map_err(Problem::from)?.unwrap_or_default();
            let problem = self.confirmation_required(email, &id);
            return Err(AttemptError::after_proof(problem));
        }
        // The pool reports this before it verifies the password, so that the attempt proves nothing.
        if fault.error == PoolError::PasswordResetRequired {
            return Err(password_reset_required().into());
        }
        Err(fault.into())
    }
}
