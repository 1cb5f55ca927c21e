//! `POST /auth/login`: a password against the pool, server-side.

use postern_common::{Code, Problem, Secret};
use serde_json::Map;

use crate::audit::{self, Act};
use crate::auth::{Auth, Refused, Visitor};
use crate::challenge;
use crate::email::Email;
use crate::grant::Grant;
use crate::log_limit::log_limited;
use crate::pool::SignIn;
use crate::pool::fault::{Fault, Operation};
use crate::token_set::{PoolTokens, TokenSet};

/// What a person types.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) email: Email,
    pub(crate) password: Secret,
}

/// A user who has just been signed in.
#[derive(Debug)]
pub(crate) struct SignedIn {
    pub(crate) subject: String,
    pub(crate) set: TokenSet,
}

// === impl Auth ===

impl Auth {
    /// Signs a person in.
    ///
    /// # Errors
    /// One `invalid_credentials` for a wrong password and an unknown or disabled user;
    /// `challenge_required`; what the pool's faults map to.
    pub(crate) async fn login(
        &self,
        visitor: &Visitor,
        login: &Login,
    ) -> Result<TokenSet, Problem> {
        let (guess, credentials) = (self.check_password(login), (&login.email, &login.password));
        let outcome = self
            .guarded_password(Code::InvalidCredentials, visitor, credentials, guess)
            .await;
        if let Ok(signed_in) = &outcome {
            self.abuse
                .trust_network(visitor, login.email.as_str(), Some(&signed_in.subject))
                .await;
        }
        self.ended(
            visitor,
            Act::SignIn,
            outcome.map(|signed_in| (signed_in.subject, signed_in.set)),
        )
    }

    async fn check_password(&self, login: &Login) -> Result<SignedIn, Refused> {
        match self
            .pool
            .sign_in(login.email.as_str(), &login.password)
            .await
        {
            Ok(step) => self.complete(step, &login.email),
            Err(Fault::UserNotConfirmed) => Err(Refused::after_proof(
                self.confirmation_required(&login.email, Map::new()),
            )),
            // The pool says so before it looks at the password.
            Err(Fault::PasswordResetRequired) => Err(challenge::reset_required().into()),
            Err(fault) => Err(fault.problem(Operation::SignIn).into()),
        }
    }

    /// What a sign-in step means for the client: tokens of a new family, or a challenge.
    pub(crate) fn complete(&self, step: SignIn, email: &Email) -> Result<SignedIn, Refused> {
        match step {
            SignIn::Tokens(tokens) => Ok(self.admit(tokens)?),
            SignIn::Challenge(challenge) => Err(Refused::after_proof(
                self.challenge_required(&challenge, email),
            )),
        }
    }

    /// Begins a family of refresh tokens.
    pub(crate) fn admit(&self, tokens: PoolTokens) -> Result<SignedIn, Problem> {
        let Some(token) = tokens.refresh_token.clone() else {
            log_limited!(error, "the pool's client gives no refresh token");
            return Err(Code::IdpMisconfigured.into());
        };
        let (username, subject) = (tokens.claims.username.clone(), tokens.claims.sub.clone());
        let grant = Grant::first(username, subject.clone(), self.pool.client_id(), token);
        Ok(SignedIn {
            subject,
            set: tokens.into_set(grant.seal(&self.ring)),
        })
    }

    /// Revokes the tokens of a sign-in that its client does not get, as far as the pool answers.
    pub(crate) async fn drop_sign_in(&self, signed_in: &SignedIn) {
        let Some(grant) = Grant::open(&self.ring, &signed_in.set.refresh_token) else {
            return;
        };
        if let Err(fault) = self.pool.revoke(&grant.token).await {
            log_limited!(warn, %fault, "refresh token of a refused sign-in not revoked at the pool");
        }
    }

    /// Writes the outcome of a journey into the audit log and the metrics.
    pub(crate) fn ended<T>(
        &self,
        visitor: &Visitor,
        act: Act,
        outcome: Result<(String, T), Problem>,
    ) -> Result<T, Problem> {
        let (subject, word) = match &outcome {
            Ok((subject, _)) => (subject.as_str(), "ok"),
            Err(problem) => ("", problem.code().as_str()),
        };
        audit::record(visitor, act, subject, word);
        self.metrics.count(act, word);
        outcome.map(|(_, value)| value)
    }
}
