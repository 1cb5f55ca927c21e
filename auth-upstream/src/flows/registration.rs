//! `POST /auth/register` and `/auth/register/confirm`: a user in the pool and a profile at the
//! actor service, both or neither.
//!
//! A row in the store precedes every effect of a registration and is deleted when the registration
//! is completed or undone. The compensation resolves the rows that a crash leaves
//! behind. Registrations are idempotent: if the user exists and the password is right, the profile
//! is saved again under the same id.
//!
//! While an address awaits its confirmation, the row has the profile. Nobody has proven the address
//! then, so that another registration of it replaces the user.

mod confirmation;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Flows;
use super::account_codes::CodePurpose;
use super::attempt_guard::{AccountAttempt, AttemptError};
use super::challenge_session::{CONFIRMATION_TTL, ChallengeSession};
use super::compensation::{REGISTRATION_TIMEOUT, open_profile, seal_profile};
use super::token_set::{SignedInUser, TokenSet};
use crate::actor_service::ActorServiceError;
use crate::client::ClientContext;
use crate::config::ConfirmationMode;
use crate::pool::error::{PoolError, PoolFault};
use crate::pool::{PoolTokens, SignUpResult};
use crate::protection::AttemptKind;
use crate::store::PendingRegistration;
use crate::telemetry::{AuditedResult, Operation, log_outage};

const PROFILE_RETRY_AFTER_S: u32 = 5;

#[derive(Clone, Debug)]
pub(crate) struct RegistrationRequest {
    pub(crate) email: EmailAddress,
    pub(crate) password: Secret,
    pub(crate) profile: Map<String, Value>,
}

/// The confirmation of an address, with the password of the sign-in that follows.
#[derive(Clone, Debug)]
pub(crate) struct ConfirmationRequest {
    pub(crate) session: String,
    pub(crate) code: String,
    pub(crate) password: Secret,
}

// === impl Flows ===

impl Flows {
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
        self.complete_registration(client, &request.email, started_at, outcome)
            .await
    }

    async fn complete_registration(
        &self,
        client: &ClientContext,
        email: &EmailAddress,
        started_at: Timestamp,
        outcome: Result<SignedInUser, Problem>,
    ) -> AuditedResult<TokenSet> {
        if let Ok(SignedInUser { subject, .. }) = &outcome {
            self.trust_network(client, email, subject, started_at).await;
        }
        self.audit.complete(client, Operation::Register, outcome)
    }

    async fn try_register(
        &self,
        client: &ClientContext,
        request: &RegistrationRequest,
    ) -> Result<SignedInUser, Problem> {
        let mut attempt = self
            .admit_anonymous(AttemptKind::Registration, client)
            .await?;
        // Successful registrations count as well: each costs a password hash, a message and a
        // profile.
        self.limiter.record_failure(&mut attempt).await;
        let email = &request.email;
        let created = self
            .with_address(email, Box::pin(self.register_new(client, request)))
            .await?;
        if let Some(signed_in) = created {
            return Ok(signed_in);
        }
        let repetition = self.with_address(email, Box::pin(self.repeat_registration(request)));
        let (kind, code) = (AttemptKind::Password, Code::EmailNotAvailable);
        let attempt = AccountAttempt::new(kind, client, email.as_str(), code);
        self.evaluate_password(attempt, &request.password, repetition)
            .await
    }

    /// Confirms an address with the code that was sent to it, saves the profile and signs the user
    /// in.
    ///
    /// # Errors
    /// `invalid_challenge` for an invalid or expired session; `invalid_code`;
    /// `invalid_credentials`; otherwise those of [`Flows::register`].
    pub(crate) async fn confirm_registration(
        &self,
        client: &ClientContext,
        request: &ConfirmationRequest,
    ) -> AuditedResult<TokenSet> {
        let (registration, pending) = match self.open_confirmation(request).await {
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
        self.complete_registration(client, &registration.email, started_at, outcome)
            .await
    }

    /// Returns the registration of a session, and its row unless it has been completed.
    async fn open_confirmation(
        &self,
        request: &ConfirmationRequest,
    ) -> Result<(RegistrationRequest, Option<PendingRegistration>), Problem> {
        let opened = ChallengeSession::open(&self.key_ring, &request.session, self.clock.now());
        let Some(ChallengeSession::Confirm { email, id }) = opened else {
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
                Some(admin) => {
                    self.redeem_confirmation(admin, registration, pending, code)
                        .await?
                }
                None => match self.pool.confirm_sign_up(email, code).await {
                    Ok(()) => false,
                    // "Current status is CONFIRMED".
                    Err(fault) if fault.error == PoolError::NotAuthorized => true,
                    Err(fault) => return Err(fault.into()),
                },
            };
            if is_confirmed {
                return Err(AttemptError::from(Code::InvalidCode));
            }
            Ok(())
        };
        let (kind, code) = (AttemptKind::ConfirmationCode, Code::InvalidCode);
        let attempt = AccountAttempt::new(kind, client, email.as_str(), code);
        let confirmation = self.with_address(email, Box::pin(confirmation));
        let confirmed = self.evaluate(attempt, confirmation).await;
        // The code is used already, as by a double click: the password decides. It counts as a wrong
        // one, because each costs calls to the pool.
        if !is_confirmed {
            confirmed?;
        }
        let sign_in = async {
            let tokens = self.sign_in_new(registration).await?;
            if pending.is_none() && self.has_actor_profile(&tokens.claims.sub).await? {
                return Ok(self.issue(tokens)?);
            }
            Ok(self.save_profile_again(registration, tokens).await?)
        };
        let sign_in = self.with_address(email, Box::pin(sign_in));
        let (kind, code) = (AttemptKind::Password, Code::InvalidCredentials);
        let attempt = AccountAttempt::new(kind, client, email.as_str(), code);
        self.evaluate_password(attempt, &registration.password, sign_in)
            .await
    }

    pub(super) async fn has_actor_profile(&self, subject: &str) -> Result<bool, Problem> {
        let found = self.actor_service.has_profile(subject).await;
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
        let is_taken = matches!(&created, Err(fault) if fault.error == PoolError::UserExists);
        if is_taken && self.release_unconfirmed(email).await? {
            created = self.pool.sign_up(email, &request.password).await;
        }
        match created {
            Ok(created) => {
                let completed = self.complete_new(client, &id, request, &created);
                completed.await.map(Some)
            }
            Err(fault) => {
                // Without a response, the user may exist: the row stays for the compensation.
                if !matches!(fault.error, PoolError::Unavailable(_)) {
                    self.store.delete_registration(&id).await?;
                }
                if fault.error == PoolError::UserExists {
                    Ok(None)
                } else {
                    Err(fault.into())
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
        let found = admin.find_owner(email).await?;
        let Some(account) = found.filter(|it| it.is_unconfirmed && it.is_enabled) else {
            return Ok(false);
        };
        admin.delete_user(&account.username).await?;
        Ok(true)
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
                    admin.confirm_sign_up(request.email.as_str()).await?;
                }
                (ConfirmationMode::Admin | ConfirmationMode::Pool | ConfirmationMode::Code, _) => {
                    let challenge = self.await_confirmation(id, request).await?;
                    if self.own_codes().is_some() {
                        let locale = request.profile.get("locale").and_then(Value::as_str);
                        let (purpose, client) =
                            (CodePurpose::Confirmation, client.speaking(locale));
                        self.send_code(purpose, &request.email, &client).await?;
                    } else if !created.code_sent {
                        let reason = "SignUp sends no code: AutoVerifiedAttributes lacks email";
                        return Err(PoolFault::misconfigured(reason).into());
                    }
                    return Err(challenge);
                }
            }
        }
        let tokens = self
            .sign_in_new(request)
            .await
            .map_err(|error| error.problem)?;
        match self.send_profile(request, &tokens).await {
            Ok(()) => {
                self.store
                    .delete_registrations_of(request.email.as_str())
                    .await?;
                self.issue(tokens)
            }
            Err(error) => Err(self.undo_registration(id, &tokens, error).await),
        }
    }

    /// Keeps the profile until the address is confirmed. Rows of interrupted attempts go, because
    /// they would let the compensation delete this user.
    async fn await_confirmation(
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
        Ok(self.confirmation_required(email, id))
    }

    async fn sign_in_new(&self, request: &RegistrationRequest) -> Result<PoolTokens, AttemptError> {
        let checked = self.check_password(&request.email, &request.password).await;
        checked.unwrap_or_else(|fault| Err(fault.into()))
    }

    /// Deletes a new user whose profile could not be saved. If that fails as well, the row stays
    /// for the compensation.
    async fn undo_registration(
        &self,
        id: &str,
        tokens: &PoolTokens,
        error: ActorServiceError,
    ) -> Problem {
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
    async fn repeat_registration(
        &self,
        request: &RegistrationRequest,
    ) -> Result<SignedInUser, AttemptError> {
        let email = &request.email;
        let fault = match self.check_password(email, &request.password).await {
            Ok(checked) => return Ok(self.save_profile_again(request, checked?).await?),
            Err(fault) => fault,
        };
        // Only without AWS credentials, with which the user has been replaced.
        if fault.error == PoolError::UserNotConfirmed {
            self.pool.resend_code(email).await?;
            let (id, now) = (Uuid::new_v4().to_string(), self.clock.now());
            let inserted = self
                .store
                .insert_registration(&id, email.as_str(), now, now);
            inserted.await.map_err(Problem::from)?;
            let problem = self.await_confirmation(&id, request).await?;
            return Err(AttemptError::after_proof(problem));
        }
        let code = fault.code();
        let is_taken = matches!(code, Code::InvalidCredentials | Code::ChallengeRequired);
        Err(if is_taken {
            Code::EmailNotAvailable.into()
        } else {
            fault.into()
        })
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
        self.issue(tokens)
    }
}

pub(super) fn profile_problem(error: ActorServiceError) -> Problem {
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
