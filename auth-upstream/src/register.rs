//! `POST /auth/register`: a user in the pool and a profile at the actor service, both or neither.
//!
//! A row notes that the registration begins, before anything else is done for it; the row goes when
//! the registration has ended, one way or the other. What is left after a crash is looked at by
//! [`crate::compensation`]. The same registration again is safe: the user is there, the password fits, the
//! profile is saved once more under the same id.

use std::time::Duration;

use postern_common::cache::Guard;
use postern_common::{Code, Problem, Secret};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::abuse::Door;
use crate::actors::ActorFault;
use crate::audit::Act;
use crate::auth::{Auth, Refused, Visitor, cache_away};
use crate::config::Confirm;
use crate::email::Email;
use crate::grant::Session;
use crate::log_limit::log_limited;
use crate::login::SignedIn;
use crate::pool::fault::{Fault, Operation};
use crate::pool::{SignIn, SignedUp};
use crate::seal::hex;
use crate::token_set::{PoolTokens, TokenSet};

/// When a registration that did not end is looked at: longer than every call that it makes can take
/// together.
pub(crate) const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);
/// How long registrations of one address keep others of it waiting.
const LOCK: Duration = Duration::from_secs(45);
/// How long those wait: longer than one call to a busy pool.
const PATIENCE: Duration = Duration::from_secs(9);

/// What a person sends to register.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) email: Email,
    pub(crate) password: Secret,
    pub(crate) profile: Map<String, Value>,
}

/// A code that confirms an address, and the password to sign in with then.
#[derive(Clone, Debug)]
pub(crate) struct Confirmation {
    pub(crate) session: String,
    pub(crate) code: String,
    pub(crate) password: Secret,
}

// === impl Auth ===

impl Auth {
    /// Registers a person and signs them in.
    ///
    /// # Errors
    /// `email_not_available` when the address has another password; `weak_password`;
    /// `challenge_required` when the pool wants the address confirmed; `unavailable` when the
    /// profile cannot be saved: nothing is left then, and the registration can be repeated.
    pub(crate) async fn register(
        &self,
        visitor: &Visitor,
        registration: &Registration,
    ) -> Result<TokenSet, Problem> {
        let outcome = self.register_admitted(visitor, registration).await;
        self.register_ended(visitor, &registration.email, outcome)
            .await
    }

    /// Whoever has registered is signed in, too.
    async fn register_ended(
        &self,
        visitor: &Visitor,
        email: &Email,
        outcome: Result<SignedIn, Problem>,
    ) -> Result<TokenSet, Problem> {
        if let Ok(signed_in) = &outcome {
            self.abuse
                .trust_network(visitor, email.as_str(), Some(&signed_in.subject))
                .await;
        }
        self.ended(
            visitor,
            Act::Register,
            outcome.map(|signed_in| (signed_in.subject, signed_in.set)),
        )
    }

    async fn register_admitted(
        &self,
        visitor: &Visitor,
        registration: &Registration,
    ) -> Result<SignedIn, Problem> {
        let mut attempt = self.admit_stranger(Door::Register, visitor).await?;
        // Every registration counts, whatever becomes of it: each costs a hash, a mail and a
        // profile.
        self.abuse.failed(&mut attempt).await;
        let email = &registration.email;
        if let Some(signed_in) =
            Box::pin(self.locked(email, self.register_new(registration))).await?
        {
            return Ok(signed_in);
        }
        let guess = Box::pin(self.locked(email, self.repeat(registration)));
        let credentials = (email, &registration.password);
        self.guarded_password(Code::EmailNotAvailable, visitor, credentials, guess)
            .await
    }

    /// Confirms an address with the code that was sent there, saves the profile and signs the
    /// person in.
    pub(crate) async fn confirm_registration(
        &self,
        visitor: &Visitor,
        confirmation: &Confirmation,
    ) -> Result<TokenSet, Problem> {
        let opened = Session::open(&self.ring, &confirmation.session, self.clock.now());
        let Some(Session::Confirm { email, profile, .. }) = opened else {
            return Err(Code::InvalidChallenge.into());
        };
        let email = Email::parse(&email).ok_or(Code::InvalidChallenge)?;
        let password = confirmation.password.clone();
        let registration = Registration {
            email,
            password,
            profile,
        };
        let outcome = self
            .confirm_admitted(visitor, &registration, &confirmation.code)
            .await;
        self.register_ended(visitor, &registration.email, outcome)
            .await
    }

    /// Both the code and the password can be guessed at; each is a door of its own. Whoever is held
    /// back takes no lock.
    async fn confirm_admitted(
        &self,
        visitor: &Visitor,
        registration: &Registration,
        code: &str,
    ) -> Result<SignedIn, Problem> {
        let email = &registration.email;
        let guess = async {
            match self.pool.confirm(email, code).await {
                // NotAuthorized: "Current status is CONFIRMED". The password decides then.
                Ok(()) | Err(Fault::NotAuthorized) => Ok(()),
                Err(fault) => Err(Refused::from(fault.problem(Operation::Confirm))),
            }
        };
        let door = (Door::Confirm, Code::InvalidCode);
        self.guarded(
            door,
            visitor,
            email.as_str(),
            Box::pin(self.locked(email, guess)),
        )
        .await?;
        let guess = Box::pin(self.locked(email, self.sign_in_and_save(registration)));
        let credentials = (email, &registration.password);
        self.guarded_password(Code::InvalidCredentials, visitor, credentials, guess)
            .await
    }

    /// Does something while nobody else registers the address.
    async fn locked<T, E: From<Problem>>(
        &self,
        email: &Email,
        journey: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let guard = self.lock_address(email).await?;
        guard.run(Box::pin(journey)).await.map_err(cache_away)?
    }

    /// One registration of an address at a time, over all replicas; the compensation takes the same
    /// lock.
    pub(crate) async fn lock_address(&self, email: &Email) -> Result<Guard, Problem> {
        let digest = hex(&Sha256::digest(email.as_str().to_ascii_lowercase()));
        let key = format!("postern:auth:register-lock:{digest}");
        let guard = self
            .cache
            .wait_for_lock(&key, LOCK, PATIENCE)
            .await
            .map_err(cache_away)?;
        guard.ok_or_else(|| Code::Unavailable.into())
    }

    /// `None` where the pool has a user of this address already.
    async fn register_new(&self, registration: &Registration) -> Result<Option<SignedIn>, Problem> {
        let id = Uuid::new_v4().to_string();
        let now = self.clock.now();
        let email = &registration.email;
        self.store
            .begin_registration(&id, email.as_str(), now, now.plus(GIVEN_UP_AFTER))
            .await?;
        match self.pool.sign_up(email, &registration.password).await {
            Ok(made) => self.finish_new(&id, registration, &made).await.map(Some),
            Err(fault) => {
                // An answer that never came may have made a user: the row stays for the
                // compensation.
                if !matches!(fault, Fault::Unavailable(_)) {
                    self.store.end_registration(&id).await?;
                }
                if fault == Fault::UserExists {
                    Ok(None)
                } else {
                    Err(fault.problem(Operation::SignUp))
                }
            }
        }
    }

    /// The user is new: it stays only if everything else succeeds.
    async fn finish_new(
        &self,
        id: &str,
        registration: &Registration,
        made: &SignedUp,
    ) -> Result<SignedIn, Problem> {
        self.store.name_registration(id, &made.subject).await?;
        if !made.confirmed {
            match (self.confirm, &self.pool.admin) {
                (Confirm::Admin, Some(admin)) => {
                    let confirmed = admin.confirm(registration.email.as_str()).await;
                    confirmed.map_err(|fault| fault.problem(Operation::Admin))?;
                }
                (Confirm::Admin | Confirm::Pool | Confirm::Code, _) => {
                    // What earlier attempts left behind must not take this user for theirs.
                    self.store
                        .end_registrations_of(registration.email.as_str())
                        .await?;
                    return Err(self
                        .confirmation_required(&registration.email, registration.profile.clone()));
                }
            }
        }
        let tokens = self
            .first_tokens(registration)
            .await
            .map_err(|refused| refused.problem)?;
        match self
            .actors
            .register(&made.subject, &registration.email, &registration.profile)
            .await
        {
            Ok(()) => {
                self.store.end_registration(id).await?;
                self.admit(tokens)
            }
            Err(fault) => Err(self.undo(id, &tokens, fault).await),
        }
    }

    async fn first_tokens(&self, registration: &Registration) -> Result<PoolTokens, Refused> {
        let email = &registration.email;
        match self
            .pool
            .sign_in(email.as_str(), &registration.password)
            .await
        {
            Ok(SignIn::Tokens(tokens)) => Ok(tokens),
            Ok(SignIn::Challenge(challenge)) => Err(Refused::after_proof(
                self.challenge_required(&challenge, email),
            )),
            Err(fault) => Err(fault.problem(Operation::SignIn).into()),
        }
    }

    /// The profile cannot be saved: the user goes again. Where even that fails, the row stays.
    async fn undo(&self, id: &str, tokens: &PoolTokens, fault: ActorFault) -> Problem {
        let deleted = match &self.pool.admin {
            Some(admin) => admin.delete(&tokens.claims.username).await,
            None => self.pool.delete_own_user(&tokens.access_token).await,
        };
        let noted = match deleted {
            Ok(()) => self.store.end_registration(id).await,
            Err(fault) => {
                log_limited!(warn, %fault, "a user without a profile could not be deleted yet");
                self.store.postpone_registration(id, self.clock.now()).await
            }
        };
        if let Err(error) = noted {
            log_limited!(warn, %error, "a registration that was undone stays noted");
        }
        profile_problem(fault)
    }

    /// The address is registered already: the same person, if the password fits.
    async fn repeat(&self, registration: &Registration) -> Result<SignedIn, Refused> {
        let email = &registration.email;
        match self
            .pool
            .sign_in(email.as_str(), &registration.password)
            .await
        {
            Ok(SignIn::Tokens(tokens)) => Ok(self.save_again(registration, tokens).await?),
            Ok(SignIn::Challenge(challenge)) => Err(Refused::after_proof(
                self.challenge_required(&challenge, email),
            )),
            Err(Fault::UserNotConfirmed) => match (self.confirm, &self.pool.admin) {
                (Confirm::Admin, Some(admin)) => {
                    let confirmed = admin.confirm(email.as_str()).await;
                    confirmed.map_err(|fault| fault.problem(Operation::Admin))?;
                    self.sign_in_and_save(registration).await
                }
                (Confirm::Admin | Confirm::Pool | Confirm::Code, _) => {
                    let sent = self.pool.resend_code(email).await;
                    sent.map_err(|fault| fault.problem(Operation::Confirm))?;
                    let asked = self.confirmation_required(email, registration.profile.clone());
                    Err(Refused::after_proof(asked))
                }
            },
            Err(fault) => {
                let code = fault.code(Operation::SignIn);
                let is_taken = matches!(code, Code::InvalidCredentials | Code::ChallengeRequired);
                Err(if is_taken {
                    Code::EmailNotAvailable.into()
                } else {
                    fault.problem(Operation::SignIn).into()
                })
            }
        }
    }

    async fn sign_in_and_save(&self, registration: &Registration) -> Result<SignedIn, Refused> {
        let tokens = self.first_tokens(registration).await?;
        Ok(self.save_again(registration, tokens).await?)
    }

    /// The user was there before this request, so that nothing is undone if the profile cannot be
    /// saved.
    async fn save_again(
        &self,
        registration: &Registration,
        tokens: PoolTokens,
    ) -> Result<SignedIn, Problem> {
        let email = &registration.email;
        let saved = self
            .actors
            .register(&tokens.claims.sub, email, &registration.profile)
            .await;
        saved.map_err(profile_problem)?;
        self.store.end_registrations_of(email.as_str()).await?;
        self.admit(tokens)
    }
}

fn profile_problem(fault: ActorFault) -> Problem {
    match fault {
        ActorFault::Refused(_) => Problem::new(Code::ValidationFailed).error(
            "/profile",
            "not_acceptable",
            "was refused by the actor service",
        ),
        ActorFault::Misconfigured(_) => Code::Internal.into(),
        ActorFault::Away => Problem::new(Code::Unavailable)
            .detail("the profile could not be saved; repeat the registration")
            .retry_after(5),
    }
}
