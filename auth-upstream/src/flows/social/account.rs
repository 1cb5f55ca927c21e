//! Resolution of a social identity to an account, as a state machine.
//!
//! A social identity is the pair of issuer and subject. An e-mail address alone links nothing: the
//! provider must have verified it and be authoritative for it, and the account's address must have
//! been verified as well. An account with an unverified address may have been created by anybody;
//! it is deleted with everything that belongs to its subject, and the owner of the address gets a
//! new subject, for which nobody else holds a token.
//!
//! ```text
//!            known, with a pool user
//!   Start ─────────────────────────────────────────► Identified ──► Resolved
//!     │                                                ▲    ▲
//!     │ unknown, without a pool user,                  │    │
//!     │ or the pool user was deleted                   │    │
//!     ▼           no credentials or verified address   │    │
//!   Unlinked ───────────────────────────► Standalone ──┘    │
//!     │                                      ▲              │
//!   ··│······································│··············│·· address locked ··
//!     ▼           account exists, provider   │              │
//!   Reconciling   is not authoritative       │              │
//!     │   ┌──────────────────────────────────┘              │
//!     ▼   │       verified account                          │
//!   Claiming ───────────────────────────────────► Saving ───┘
//!     │   ▲                                          ▲
//!     │   │ address taken meanwhile                  │
//!     ▼   │                                          │
//!   Creating ────────────────────────────────────────┘
//! ```
//!
//! `Claiming` deletes an unverified account before `Creating`. A disabled account ends the sign-in
//! with `access_denied` in `Start` and `Claiming`. `Creating` stores a pending registration before
//! it creates a user, as a registration does: `Reconciling` resolves the one that a crash left
//! behind, and so does [`RegistrationCompensator`].

use std::sync::Arc;

use postern_common::token::oidc::IdToken;
use postern_common::{Clock, Problem};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::super::cache_unavailable;
use super::super::compensation::{REGISTRATION_TIMEOUT, RegistrationCompensator, Resolution};
use super::super::user_locks::UserLocks;
use super::SocialError;
use crate::actor_service::ActorService;
use crate::client::ClientContext;
use crate::config::SocialConfig;
use crate::crypto::sha256_hex;
use crate::email::EmailAddress;
use crate::pool::UserPool;
use crate::pool::admin::{PoolAccount, PoolAdmin};
use crate::pool::error::{PoolCall, PoolError};
use crate::protection::AttemptLimiter;
use crate::store::{AuthStore, SocialIdentity};
use crate::telemetry::{AuditLog, Operation};

/// The maximum number of attempts to create a user whose address is taken concurrently without the
/// lock, for instance at the pool itself.
const MAX_CREATE_ATTEMPTS: u32 = 3;

/// Resolves social identities to accounts.
#[derive(Debug)]
pub(crate) struct AccountResolver {
    pub(crate) config: Arc<SocialConfig>,
    pub(crate) pool: Arc<UserPool>,
    pub(crate) store: AuthStore,
    pub(crate) actor_service: Arc<ActorService>,
    pub(crate) compensator: Arc<RegistrationCompensator>,
    pub(crate) locks: UserLocks,
    pub(crate) limiter: AttemptLimiter,
    pub(crate) clock: Clock,
}

/// A state of the resolution. See the module documentation for the transitions.
#[derive(Debug)]
enum AccountState {
    /// The store has not been read.
    Start,
    /// The identity has no pool user. `existing` is an identity from an earlier sign-in.
    Unlinked { existing: Option<SocialIdentity> },
    /// The address is locked; an interrupted creation is resolved.
    Reconciling { existing: Option<SocialIdentity> },
    /// The address is locked; the account with it is looked up.
    Claiming {
        existing: Option<SocialIdentity>,
        create_attempts: u32,
    },
    /// The address is locked; no account has it.
    Creating {
        existing: Option<SocialIdentity>,
        create_attempts: u32,
    },
    /// The address is locked; the account is known and to be stored.
    Saving {
        existing: Option<SocialIdentity>,
        linked: SocialIdentity,
    },
    /// The identity gets no pool user in this sign-in.
    Standalone { existing: Option<SocialIdentity> },
    /// The identity is stored; its profile may have to be saved.
    Identified(SocialIdentity),
    /// The final state.
    Resolved(SocialIdentity),
}

/// A sign-in that is resolved.
#[derive(Clone, Copy, Debug)]
struct SocialSignIn<'a> {
    client: &'a ClientContext,
    id: &'a IdToken,
    /// The address that the identity can claim.
    claim: Option<AddressClaim<'a>>,
}

/// An address that the provider has verified, with the client that can link and create accounts.
#[derive(Clone, Copy, Debug)]
struct AddressClaim<'a> {
    admin: &'a PoolAdmin,
    email: &'a EmailAddress,
}

// === impl AccountState ===

impl AccountState {
    /// Returns whether the address must be locked in this state.
    fn needs_address_lock(&self) -> bool {
        match self {
            Self::Reconciling { .. }
            | Self::Claiming { .. }
            | Self::Creating { .. }
            | Self::Saving { .. } => true,
            Self::Start
            | Self::Unlinked { .. }
            | Self::Standalone { .. }
            | Self::Identified(_)
            | Self::Resolved(_) => false,
        }
    }
}

// === impl AccountResolver ===

impl AccountResolver {
    /// Resolves the identity of an ID token. Concurrent sign-ins of one identity are serialized.
    ///
    /// # Errors
    /// `AccessDenied` for a disabled account; `Unavailable` or `Internal` if a dependency fails.
    pub(super) async fn resolve(
        &self,
        client: &ClientContext,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialError> {
        let guard = self
            .locks
            .lock_social_identity(&id.issuer, &id.subject)
            .await?;
        let work = Box::pin(self.run(client, id));
        guard.run(work).await.map_err(cache_unavailable)?
    }

    async fn run(
        &self,
        client: &ClientContext,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialError> {
        let email = id
            .email
            .as_deref()
            .and_then(EmailAddress::parse)
            .filter(|_| id.email_verified);
        let claim = match (&self.pool.admin, &email) {
            (Some(admin), Some(email)) => Some(AddressClaim { admin, email }),
            (None, _) | (_, None) => None,
        };
        let sign_in = SocialSignIn { client, id, claim };
        let mut state = AccountState::Start;
        loop {
            state = match (state, claim) {
                (AccountState::Resolved(identity), _) => return Ok(identity),
                (state, Some(claim)) if state.needs_address_lock() => {
                    // Registrations take the same lock: the address cannot be registered between
                    // a look-up and the change that follows.
                    let guard = self.locks.lock_address(claim.email).await?;
                    let work = Box::pin(self.run_locked(sign_in, claim, state));
                    guard.run(work).await.map_err(cache_unavailable)??
                }
                (state, _) => self.advance(sign_in, state).await?,
            };
        }
    }

    /// Advances until the address lock is no longer needed.
    async fn run_locked(
        &self,
        sign_in: SocialSignIn<'_>,
        claim: AddressClaim<'_>,
        mut state: AccountState,
    ) -> Result<AccountState, SocialError> {
        while state.needs_address_lock() {
            state = self.advance_claim(sign_in, claim, state).await?;
        }
        Ok(state)
    }

    /// The transition function of the states without an address lock.
    async fn advance(
        &self,
        sign_in: SocialSignIn<'_>,
        state: AccountState,
    ) -> Result<AccountState, SocialError> {
        Ok(match state {
            AccountState::Start => match self.known_identity(sign_in.id).await? {
                Some(identity) if identity.username.is_some() => AccountState::Identified(identity),
                existing => AccountState::Unlinked { existing },
            },
            AccountState::Unlinked { existing } if sign_in.claim.is_some() => {
                AccountState::Reconciling { existing }
            }
            AccountState::Unlinked { existing } => AccountState::Standalone { existing },
            AccountState::Standalone {
                existing: Some(identity),
            } => AccountState::Identified(identity),
            AccountState::Standalone { existing: None } => {
                let identity = standalone_identity();
                AccountState::Identified(self.insert_identity(sign_in.id, &identity).await?)
            }
            AccountState::Identified(mut identity) => {
                if !identity.profile_saved && identity.username.is_some() {
                    identity.profile_saved = self.save_profile(sign_in.id, &identity.user_id).await;
                }
                AccountState::Resolved(identity)
            }
            // Reached only if the address cannot be claimed, which `Unlinked` excludes.
            AccountState::Reconciling { existing }
            | AccountState::Claiming { existing, .. }
            | AccountState::Creating { existing, .. }
            | AccountState::Saving { existing, .. } => AccountState::Standalone { existing },
            resolved @ AccountState::Resolved(_) => resolved,
        })
    }

    /// The transition function of the states with an address lock.
    async fn advance_claim(
        &self,
        sign_in: SocialSignIn<'_>,
        claim: AddressClaim<'_>,
        state: AccountState,
    ) -> Result<AccountState, SocialError> {
        Ok(match state {
            AccountState::Reconciling { existing } => {
                self.resolve_interrupted(sign_in.id, claim.email).await?;
                AccountState::Claiming {
                    existing,
                    create_attempts: 0,
                }
            }
            AccountState::Claiming {
                create_attempts: MAX_CREATE_ATTEMPTS..,
                ..
            } => return Err(SocialError::Unavailable),
            AccountState::Claiming {
                existing,
                create_attempts,
            } => {
                let account = claim.admin.find_user(claim.email.as_str()).await;
                match account.map_err(admin_error)? {
                    None => AccountState::Creating {
                        existing,
                        create_attempts,
                    },
                    Some(_) if !self.is_authoritative(sign_in.id, claim.email) => {
                        AccountState::Standalone { existing }
                    }
                    Some(account) if !account.is_enabled => return Err(SocialError::AccessDenied),
                    Some(account) if account.is_verified => AccountState::Saving {
                        existing,
                        linked: linked_identity(account),
                    },
                    Some(account) => {
                        self.delete_unverified(sign_in.client, claim, &account)
                            .await?;
                        AccountState::Creating {
                            existing,
                            create_attempts,
                        }
                    }
                }
            }
            AccountState::Creating {
                existing,
                create_attempts,
            } => match self.create_user(sign_in.id, claim).await {
                Ok(linked) => AccountState::Saving { existing, linked },
                Err(PoolError::UserExists | PoolError::AliasExists) => AccountState::Claiming {
                    existing,
                    create_attempts: create_attempts + 1,
                },
                Err(error) => return Err(admin_error(error)),
            },
            AccountState::Saving { existing, linked } => {
                AccountState::Identified(self.save_link(sign_in, existing.as_ref(), &linked).await?)
            }
            other => other,
        })
    }

    /// Returns the stored identity. Deletes it if its pool user was deleted.
    ///
    /// # Errors
    /// `AccessDenied` if the pool user is disabled.
    async fn known_identity(&self, id: &IdToken) -> Result<Option<SocialIdentity>, SocialError> {
        let known = self
            .store
            .social_identity(&id.issuer, &id.subject)
            .await
            .map_err(Problem::from)?;
        let Some(identity) = known else {
            return Ok(None);
        };
        let (Some(admin), Some(username)) = (&self.pool.admin, &identity.username) else {
            return Ok(Some(identity));
        };
        match admin.find_user(username).await.map_err(admin_error)? {
            Some(account) if account.is_enabled => Ok(Some(identity)),
            Some(_) => Err(SocialError::AccessDenied),
            None => {
                self.delete_identity(id, &identity).await?;
                Ok(None)
            }
        }
    }

    /// Resolves a creation of this identity's user that a crash interrupted.
    async fn resolve_interrupted(
        &self,
        id: &IdToken,
        email: &EmailAddress,
    ) -> Result<(), SocialError> {
        let registration = registration_id(id);
        let pending = self
            .store
            .registration(&registration)
            .await
            .map_err(Problem::from)?;
        let Some(pending) = pending else {
            return Ok(());
        };
        if self.compensator.resolve(&pending, email).await == Resolution::Postponed {
            return Err(SocialError::Unavailable);
        }
        let deleted = self.store.delete_registration(&registration).await;
        Ok(deleted.map_err(Problem::from)?)
    }

    /// Returns whether the provider is authoritative for the address: it assigns the addresses of
    /// the domain.
    fn is_authoritative(&self, id: &IdToken, email: &EmailAddress) -> bool {
        let host = email.host();
        let is_listed = self
            .config
            .authoritative_domains
            .iter()
            .any(|domain| domain.eq_ignore_ascii_case(host));
        let hosted_domain = id.claims.get("hd").and_then(Value::as_str);
        is_listed
            || (self.config.trust_hosted_domain
                && hosted_domain.is_some_and(|domain| domain.eq_ignore_ascii_case(host)))
    }

    async fn delete_unverified(
        &self,
        client: &ClientContext,
        claim: AddressClaim<'_>,
        account: &PoolAccount,
    ) -> Result<(), SocialError> {
        let deleted = claim.admin.delete_user(&account.username).await;
        deleted.map_err(admin_error)?;
        self.limiter
            .forget_trusted_networks(claim.email.as_str())
            .await;
        AuditLog::log(
            client,
            Operation::SocialLink,
            &account.subject,
            "unverified_account_deleted",
        );
        Ok(())
    }

    /// Creates a pool user with a verified address. A pending registration is stored before, and
    /// the subject after.
    async fn create_user(
        &self,
        id: &IdToken,
        claim: AddressClaim<'_>,
    ) -> Result<SocialIdentity, PoolError> {
        let store_failed = |_| PoolError::Unavailable("database unavailable");
        let (registration, email) = (registration_id(id), claim.email.as_str());
        let now = self.clock.now();
        self.store
            .insert_registration(&registration, email, now, now.plus(REGISTRATION_TIMEOUT))
            .await
            .map_err(store_failed)?;
        let account = claim.admin.create_user(claim.email).await?;
        self.store
            .set_registration_subject(&registration, &account.subject)
            .await
            .map_err(store_failed)?;
        Ok(SocialIdentity {
            user_id: account.subject,
            username: Some(account.username),
            social_only: true,
            profile_saved: false,
        })
    }

    /// Stores the link to an account, in place of an identity without a pool user.
    async fn save_link(
        &self,
        sign_in: SocialSignIn<'_>,
        existing: Option<&SocialIdentity>,
        linked: &SocialIdentity,
    ) -> Result<SocialIdentity, SocialError> {
        let id = sign_in.id;
        if let Some(existing) = existing {
            self.delete_identity(id, existing).await?;
        }
        let identity = self.insert_identity(id, linked).await?;
        let deleted = self.store.delete_registration(&registration_id(id)).await;
        deleted.map_err(Problem::from)?;
        AuditLog::log(
            sign_in.client,
            Operation::SocialLink,
            &identity.user_id,
            "ok",
        );
        Ok(identity)
    }

    async fn insert_identity(
        &self,
        id: &IdToken,
        identity: &SocialIdentity,
    ) -> Result<SocialIdentity, SocialError> {
        let stored = self
            .store
            .insert_social_identity(&id.issuer, &id.subject, identity, self.clock.now())
            .await;
        Ok(stored.map_err(Problem::from)?)
    }

    async fn delete_identity(
        &self,
        id: &IdToken,
        identity: &SocialIdentity,
    ) -> Result<(), SocialError> {
        let deleted = self
            .store
            .delete_social_identity(&id.issuer, &id.subject, &identity.user_id)
            .await;
        Ok(deleted.map_err(Problem::from)?)
    }

    /// Saves the profile and returns whether that succeeded. If not, the next sign-in tries again.
    async fn save_profile(&self, id: &IdToken, user_id: &str) -> bool {
        let now = self.clock.now();
        let Some(email) = id.email.as_deref().and_then(EmailAddress::parse) else {
            return false;
        };
        let mut profile = Map::new();
        for (claim, field) in [("given_name", "firstName"), ("family_name", "lastName")] {
            if let Some(text) = id.claims.get(claim).and_then(Value::as_str) {
                profile.insert(field.to_owned(), Value::String(text.to_owned()));
            }
        }
        let saved = self
            .actor_service
            .save_profile(user_id, &email, &profile)
            .await;
        saved.is_ok()
            && self
                .store
                .mark_profile_saved(&id.issuer, &id.subject, now)
                .await
                .is_ok()
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that `map_err` takes"
)]
fn admin_error(error: PoolError) -> SocialError {
    error.problem(PoolCall::Admin).into()
}

/// Returns the id of the pending registration of an identity, the same for every sign-in.
fn registration_id(id: &IdToken) -> String {
    let identity = format!("{}\0{}", id.issuer, id.subject);
    format!("social-{}", sha256_hex(identity))
}

/// Returns a new identity without a pool user.
fn standalone_identity() -> SocialIdentity {
    SocialIdentity {
        user_id: Uuid::new_v4().to_string(),
        username: None,
        social_only: true,
        profile_saved: false,
    }
}

/// Returns the identity of an account with a verified address. An invited user who has not chosen a
/// password yet becomes a social user; all others keep their password.
fn linked_identity(account: PoolAccount) -> SocialIdentity {
    SocialIdentity {
        user_id: account.subject,
        username: Some(account.username),
        social_only: account.is_invited,
        profile_saved: !account.is_invited,
    }
}
