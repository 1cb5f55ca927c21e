//! `POST /auth/register` and `/auth/register/confirm`: a user in the pool and a profile at the
//! actor service, both or neither.
//!
//! A row in the store precedes every effect of a registration and is deleted when the registration
//! is completed or undone. [`super::RegistrationCompensator`] resolves the rows that a crash leaves
//! behind. Registrations are idempotent: if the user exists and the password is right, the profile
//! is saved again under the same id.
//!
//! While an address awaits its confirmation, the row has the profile. Nobody has proven the address
//! then, so that another registration of it replaces the user.

mod confirmation;

use std::sync::Arc;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::FlowParts;
use super::account_codes::CodePurpose;
use super::attempt_guard::{AccountAttempt, AttemptError};
use super::challenge_session::{CONFIRMATION_TTL, ChallengeSession};
use super::compensation::{REGISTRATION_TIMEOUT, open_profile, seal_profile};
use super::token_issuer::SignedInUser;
use super::token_set::TokenSet;
use crate::actor_service::ActorServiceError;
use crate::client::ClientContext;
use crate::config::ConfirmationMode;
use crate::pool::error::{PoolCall, PoolError};
use crate::pool::{PoolTokens, SignUpResult};
use crate::protection::AttemptKind;
use crate::store::PendingRegistration;
use crate::telemetry::{AuditedResult, Completed, Operation, log_outage};

/// `Retry-After` when the actor service is unavailable, in seconds.
const PROFILE_RETRY_AFTER_S: u32 = 5;

/// Registers users.
#[derive(Debug)]
pub(crate) struct RegistrationFlow {
    pub(crate) parts: Arc<FlowParts>,
}

/// A registration.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationRequest {
    pub(crate) email: EmailAddress,
    pub(crate) password: Secret,
    pub(crate) profile: Map<String, Value>,
}

/// The confirmation of an address, with the password of the sign-in that follows.
#[derive(Clone, Debug)]
pub(crate) struct ConfirmationRequest {
    /// The sealed challenge session.
    pub(crate) session: String,
    pub(crate) code: String,
    pub(crate) password: Secret,
}

// === impl RegistrationFlow ===

impl RegistrationFlow {
    /// Registers a user and signs them in.
    ///
    /// # Errors
    /// `email_not_available` if the address has an account with another password; `weak_password`;
    /// `challenge_required` if the address must be confirmed; `rate_limited`; `unavailable` if the
    /// profile cannot be saved. The user is deleted then, and the registration can be repeated.
    pub(crate) async fn register(
        &self,
        client: &ClientContext,
        request: &RegistrationRequest,
    ) -> AuditedResult<TokenSet> {
        client.details.set_email(&request.email);
        let started_at = self.clock.now();
        let outcome = self.try_register(client, request).await;
        self.complete(client, &request.email, started_at, outcome)
            .await
    }

    /// Trusts the network of a registration that is complete, and audits the outcome.
    async fn complete(
        &self,
        client: &ClientContext,
        email: &EmailAddress,
        started_at: Timestamp,
        outcome: Result<SignedInUser, Problem>,
    ) -> AuditedResult<TokenSet> {
        if let Ok(SignedInUser { subject, .. }) = &outcome {
            self.guard
                .trust_network(client, email, subject, started_at)
                .await;
        }
        let outcome = outcome.map(Completed::from);
        self.audit.complete(client, Operation::Register, outcome)
    }

    async fn try_register(
        &self,
        client: &ClientContext,
        request: &RegistrationRequest,
    ) -> Result<SignedInUser, Problem> {
        let mut attempt = self
            .guard
            .check_anonymous(AttemptKind::Registration, client)
            .await?;
        // Successful registrations count as well: each costs a password hash, a message and a
        // profile.
        self.guard.limiter().record_failure(&mut attempt).await;
        let email = &request.email;
        let created = self
            .locks
            .with_address(email, Box::pin(self.register_new(client, request)))
            .await?;
        if let Some(signed_in) = created {
            return Ok(signed_in);
        }
        let repetition = self
            .locks
            .with_address(email, Box::pin(self.repeat(request)));
        let attempt = AccountAttempt {
            kind: AttemptKind::Password,
            client,
            account: email.as_str(),
            failure_code: Code::EmailNotAvailable,
        };
        let guard = &self.guard;
        guard
            .evaluate_password(attempt, &request.password, repetition)
            .await
    }

    /// Confirms an address with the code that was sent to it, saves the profile and signs the user
    /// in.
    ///
    /// # Errors
    /// `invalid_challenge` for an invalid or expired session; `invalid_code`;
    /// `invalid_credentials`; otherwise those of [`RegistrationFlow::register`].
    pub(crate) async fn confirm(
        &self,
        client: &ClientContext,
        request: &ConfirmationRequest,
    ) -> AuditedResult<TokenSet> {
        let (registration, pending) = match self.open_session(request).await {
            Ok(opened) => opened,
            Err(problem) => {
                return self
                    .audit
                    .complete(client, Operation::Register, Err(problem));
            }
        };
        client.details.set_email(&registration.email);
        let started_at = self.clock.now();
        let (pending, code) = (pending.as_ref(), &*request.code);
        let outcome = self.try_confirm(client, &registration, pending, code).await;
        self.complete(client, &registration.email, started_at, outcome)
            .await
    }

    /// Returns the registration of a session, and its row unless it has been completed.
    async fn open_session(
        &self,
        request: &ConfirmationRequest,
    ) -> Result<(RegistrationRequest, Option<PendingRegistration>), Problem> {
        let opened = ChallengeSession::open(&self.key_ring, &request.session, self.clock.now());
        let Some(ChallengeSession::Confirm { email, id, .. }) = opened else {
            return Err(Code::InvalidChallenge.into());
        };
        let pending = self.store.registration(&id).await?;
        let profile = pending.as_ref();
        let profile = profile.and_then(|pending| open_profile(&self.key_ring, pending));
        let registration = RegistrationRequest {
            email: EmailAddress::parse(&email).ok_or(Code::InvalidChallenge)?,
            password: request.password.clone(),
            profile: profile.unwrap_or_default(),
        };
        Ok((registration, pending))
    }

    /// Verifies the code and then the password, each as an attempt of its own. A throttled attempt
    /// does not acquire the lock.
    async fn try_confirm(
        &self,
        client: &ClientContext,
        registration: &RegistrationRequest,
        pending: Option<&PendingRegistration>,
        code: &str,
    ) -> Result<SignedInUser, Problem> {
        let email = &registration.email;
        let mut is_confirmed = false;
        let confirmation = async {
            is_confirmed = match self.own_codes() {
                Some(own) => self.redeem(own, registration, pending, code).await?,
                None => match self.pool.confirm_sign_up(email, code).await {
                    // "Current status is CONFIRMED".
                    Err(PoolError::NotAuthorized) => true,
                    decided => decided
                        .map(|()| false)
                        .map_err(|error| error.problem(PoolCall::Confirm))?,
                },
            };
            if is_confirmed {
                return Err(AttemptError::from(Code::InvalidCode));
            }
            Ok(())
        };
        let attempt = AccountAttempt {
            kind: AttemptKind::ConfirmationCode,
            client,
            account: email.as_str(),
            failure_code: Code::InvalidCode,
        };
        let confirmation = self.locks.with_address(email, Box::pin(confirmation));
        let confirmed = self.guard.evaluate(attempt, confirmation).await;
        // The code is used already, as by a double click: the password decides. It counts as a wrong
        // one, because each costs calls to the pool.
        if !is_confirmed {
            confirmed?;
        }
        let sign_in = async {
            let tokens = self.sign_in(registration).await?;
            if pending.is_none() && self.has_profile(&tokens).await? {
                return Ok(self.issuer.issue(tokens)?);
            }
            Ok(self.save_profile_again(registration, tokens).await?)
        };
        let sign_in = self.locks.with_address(email, Box::pin(sign_in));
        let attempt = AccountAttempt {
            kind: AttemptKind::Password,
            client,
            account: email.as_str(),
            failure_code: Code::InvalidCredentials,
        };
        let guard = &self.guard;
        guard
            .evaluate_password(attempt, &registration.password, sign_in)
            .await
    }

    async fn has_profile(&self, tokens: &PoolTokens) -> Result<bool, Problem> {
        let found = self.actor_service.has_profile(&tokens.claims.sub).await;
        found.map_err(profile_problem)
    }

    /// Registers a new user, also in place of one who has not confirmed the address. Returns `None`
    /// if the pool has another user with this address.
    async fn register_new(
        &self,
        client: &ClientContext,
        request: &RegistrationRequest,
    ) -> Result<Option<SignedInUser>, Problem> {
        let id = Uuid::new_v4().to_string();
        let now = self.store.now(&self.clock).await?;
        let email = &request.email;
        self.store
            .insert_registration(&id, email.as_str(), now, now.plus(REGISTRATION_TIMEOUT))
            .await?;
        let mut created = self.pool.sign_up(email, &request.password).await;
        if matches!(created, Err(PoolError::UserExists)) && self.release_unconfirmed(email).await? {
            created = self.pool.sign_up(email, &request.password).await;
        }
        match created {
            Ok(created) => {
                let completed = self.complete_new(client, &id, request, &created);
                completed.await.map(Some)
            }
            Err(error) => {
                // Without a response, the user may exist: the row stays for the compensation.
                if !matches!(error, PoolError::Unavailable(_)) {
                    self.store.delete_registration(&id).await?;
                }
                if error == PoolError::UserExists {
                    Ok(None)
                } else {
                    Err(error.problem(PoolCall::SignUp))
                }
            }
        }
    }

    /// Deletes the user of an address who has not confirmed it, and returns whether there was one.
    /// Such a user has never signed in, and would keep the owner of the address out.
    async fn release_unconfirmed(&self, email: &EmailAddress) -> Result<bool, Problem> {
        let Some(admin) = &self.pool.admin else {
            return Ok(false);
        };
        let problem = |error: PoolError| error.problem(PoolCall::Admin);
        let found = admin.find_owner(email).await.map_err(problem)?;
        let Some(account) = found.filter(|it| it.is_unconfirmed && it.is_enabled) else {
            return Ok(false);
        };
        let deleted = admin.delete_user(&account.username).await;
        deleted.map_err(problem).map(|()| true)
    }

    /// Confirms and signs in a new user and saves the profile. Deletes the user if the profile
    /// cannot be saved.
    async fn complete_new(
        &self,
        client: &ClientContext,
        id: &str,
        request: &RegistrationRequest,
        created: &SignUpResult,
    ) -> Result<SignedInUser, Problem> {
        self.store
            .set_registration_subject(id, &created.subject)
            .await?;
        if !created.confirmed {
            match (self.confirmation, &self.pool.admin) {
                (ConfirmationMode::Admin, Some(admin)) => {
                    let confirmed = admin.confirm_sign_up(request.email.as_str()).await;
                    confirmed.map_err(|error| error.problem(PoolCall::Admin))?;
                }
                (ConfirmationMode::Admin | ConfirmationMode::Pool | ConfirmationMode::Code, _) => {
                    let challenge = self.confirmation_required(id, request).await?;
                    if let Some((codes, _)) = self.own_codes() {
                        let locale = request.profile.get("locale").and_then(Value::as_str);
                        let (purpose, client) =
                            (CodePurpose::Confirmation, client.speaking(locale));
                        self.send_code(codes, purpose, &request.email, &client)
                            .await?;
                    } else if !created.code_sent {
                        let reason = "SignUp sends no code: AutoVerifiedAttributes lacks email";
                        let error = PoolError::Misconfigured(reason.to_owned());
                        return Err(error.problem(PoolCall::SignUp));
                    }
                    return Err(challenge);
                }
            }
        }
        let tokens = self.sign_in(request).await.map_err(|error| error.problem)?;
        match self.send_profile(request, &tokens).await {
            Ok(()) => {
                self.store
                    .delete_registrations_of(request.email.as_str())
                    .await?;
                self.issuer.issue(tokens)
            }
            Err(error) => Err(self.undo(id, &tokens, error).await),
        }
    }

    /// Keeps the profile until the address is confirmed. Rows of interrupted attempts go, because
    /// they would let the compensation delete this user.
    async fn confirmation_required(
        &self,
        id: &str,
        request: &RegistrationRequest,
    ) -> Result<Problem, Problem> {
        let profile = seal_profile(&self.key_ring, id, &request.profile);
        let now = self.store.now(&self.clock).await?;
        let (email, due_at) = (&request.email, now.plus(CONFIRMATION_TTL));
        self.store
            .await_confirmation(id, email.as_str(), &profile, due_at)
            .await?;
        Ok(self.issuer.confirmation_required(email, id))
    }

    async fn sign_in(&self, request: &RegistrationRequest) -> Result<PoolTokens, AttemptError> {
        let checked = self.check_password(&request.email, &request.password).await;
        checked.unwrap_or_else(|error| Err(error.problem(PoolCall::SignIn).into()))
    }

    /// Deletes a new user whose profile could not be saved. If that fails as well, the row stays
    /// for the compensation.
    async fn undo(&self, id: &str, tokens: &PoolTokens, error: ActorServiceError) -> Problem {
        let deleted = match &self.pool.admin {
            Some(admin) => admin.delete_user(&tokens.claims.username).await,
            None => self.pool.delete_own_user(&tokens.access_token).await,
        };
        let recorded = match deleted {
            Ok(()) => self.store.delete_registration(id).await,
            Err(error) => {
                log_outage!("identity_pool", %error, "user without a profile not deleted, deletion postponed");
                self.store.postpone_registration(id, self.clock.now()).await
            }
        };
        if let Err(error) = recorded {
            log_outage!("database", %error, "pending registration not updated");
        }
        profile_problem(error)
    }

    /// Repeats a registration whose user exists. The password must be right.
    async fn repeat(&self, request: &RegistrationRequest) -> Result<SignedInUser, AttemptError> {
        let email = &request.email;
        match self.check_password(email, &request.password).await {
            Ok(checked) => Ok(self.save_profile_again(request, checked?).await?),
            // Only without AWS credentials, with which the user has been replaced.
            Err(PoolError::UserNotConfirmed) => {
                let sent = self.pool.resend_code(email).await;
                sent.map_err(|error| error.problem(PoolCall::Confirm))?;
                let (id, now) = (Uuid::new_v4().to_string(), self.clock.now());
                let inserted = self
                    .store
                    .insert_registration(&id, email.as_str(), now, now);
                inserted.await.map_err(Problem::from)?;
                let problem = self.confirmation_required(&id, request).await?;
                Err(AttemptError::after_proof(problem))
            }
            Err(error) => {
                let code = error.code(PoolCall::SignIn);
                let is_taken = matches!(code, Code::InvalidCredentials | Code::ChallengeRequired);
                Err(if is_taken {
                    Code::EmailNotAvailable.into()
                } else {
                    error.problem(PoolCall::SignIn).into()
                })
            }
        }
    }

    async fn send_profile(
        &self,
        request: &RegistrationRequest,
        tokens: &PoolTokens,
    ) -> Result<(), ActorServiceError> {
        let (email, is_verified) = (&request.email, tokens.has_verified_email());
        let (actors, subject) = (&self.actor_service, &tokens.claims.sub);
        actors
            .save_profile(subject, email, is_verified, &request.profile)
            .await
    }

    /// Saves the profile of a user who existed before this request. Nothing is undone if that
    /// fails; if the registration is still pending, the compensation saves it.
    async fn save_profile_again(
        &self,
        request: &RegistrationRequest,
        tokens: PoolTokens,
    ) -> Result<SignedInUser, Problem> {
        let email = &request.email;
        if let Err(error) = self.send_profile(request, &tokens).await {
            if self.pool.admin.is_some() {
                let due = self
                    .store
                    .expedite_registration(&tokens.claims.sub, self.clock.now());
                due.await?;
            }
            return Err(profile_problem(error));
        }
        self.store.delete_registrations_of(email.as_str()).await?;
        self.issuer.issue(tokens)
    }
}

fn profile_problem(error: ActorServiceError) -> Problem {
    match error {
        ActorServiceError::Rejected(_) => Problem::new(Code::ValidationFailed).error(
            "/profile",
            "not_acceptable",
            "was refused by the actor service",
        ),
        ActorServiceError::Misconfigured(_) => Code::Internal.into(),
        ActorServiceError::Unavailable => Problem::new(Code::Unavailable)
            .detail("the profile could not be saved; repeat the registration")
            .retry_after(PROFILE_RETRY_AFTER_S),
    }
}
