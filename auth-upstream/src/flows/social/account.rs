//! Resolution of a social identity to an account, as a state machine.
//!
//! A social identity is the pair of issuer and subject. An e-mail address alone links nothing: the
//! provider must have verified it and be authoritative for it, and the account's address must have
//! been verified as well. An account with an unverified address may have been created by an
//! attacker: it is deleted with everything that belongs to its subject, and the owner of the
//! address gets a new subject, for which no other client holds a token.
//!
//! ```text
//!            known, with a pool user
//!   Start ─────────────────────────────────────────► Identified ──► Resolved
//!     │                                                 ▲   ▲
//!     │ unknown, without a pool user,                   │   │
//!     │ or the pool user was deleted                    │   │
//!     ▼           no credentials or verified address    │   │
//!   Unlinked ───────────────────────────► Standalone ───┘   │
//!     │                                       ▲             │
//!   ··│··· address locked ····················│·············│·····
//!     ▼                                       │             │
//!   Reconciling                               │             │
//!     │           account exists, provider    │             │
//!     ▼           is not authoritative        │             │
//!   Claiming ───────────────────────► Unclaimable           │
//!     │   ▲ │                                               │
//!     │   │ │     verified account                          │
//!     │   │ └──────────────────────────────► Saving ──► Saved
//!     │   │ address taken meanwhile            ▲
//!     ▼   │                                    │
//!   Creating ──────────────────────────────────┘
//! ```
//!
//! The states above the dotted line are [`AccountState`], those below are [`ClaimState`].
//! `Claiming` deletes an unverified account before `Creating`. A disabled account ends the sign-in
//! with `access_denied` in `Start` and `Claiming`. `Creating` stores a pending registration before
//! it creates a user, as a registration does: `Reconciling` resolves the one that a crash left
//! behind, and so does [`RegistrationCompensator`].

mod operations;

use std::sync::Arc;

use postern_common::Clock;
use postern_common::email::EmailAddress;
use postern_common::token::oidc::IdToken;

use self::operations::{admin_error, linked_identity, standalone_identity};
use super::super::compensation::RegistrationCompensator;
use super::super::user_locks::UserLocks;
use super::SocialError;
use crate::actor_service::ActorService;
use crate::client::ClientContext;
use crate::config::SocialConfig;
use crate::pool::UserPool;
use crate::pool::admin::PoolAdmin;
use crate::pool::error::PoolError;
use crate::protection::AttemptLimiter;
use crate::store::{AuthStore, SocialIdentity};
use crate::telemetry::AuditLog;

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
    pub(crate) audit: AuditLog,
    pub(crate) clock: Clock,
}

/// A state of the resolution. `existing` is an identity from an earlier sign-in.
#[derive(Debug)]
enum AccountState {
    /// The store has not been read.
    Start,
    /// The identity has no pool user.
    Unlinked { existing: Option<SocialIdentity> },
    /// The identity gets no pool user in this sign-in.
    Standalone { existing: Option<SocialIdentity> },
    /// The identity is stored; its profile may have to be saved.
    Identified(SocialIdentity),
    /// The final state.
    Resolved(SocialIdentity),
}

/// A state of the claim of an address, which is locked.
#[derive(Debug)]
enum ClaimState {
    /// An interrupted creation is to be resolved.
    Reconciling,
    /// The account with the address is to be found.
    Claiming { create_attempts: u32 },
    /// No account has the address.
    Creating { create_attempts: u32 },
    /// The account is known; the link is to be stored.
    Saving { linked: SocialIdentity },
    /// A final state: the identity belongs to the account.
    Saved(SocialIdentity),
    /// A final state: another account has the address.
    Unclaimable,
}

/// An address that the provider has verified, and the client that can link and create accounts.
#[derive(Clone, Copy, Debug)]
struct AddressClaim<'a> {
    client: &'a ClientContext,
    id: &'a IdToken,
    admin: &'a PoolAdmin,
    email: &'a EmailAddress,
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
        let work = Box::pin(self.run(client, id));
        self.locks
            .with_social_identity(&id.issuer, &id.subject, work)
            .await
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
            (Some(admin), Some(email)) => Some(AddressClaim {
                client,
                id,
                admin,
                email,
            }),
            (None, _) | (_, None) => None,
        };
        let mut state = AccountState::Start;
        loop {
            state = self.advance(id, claim, state).await?;
            if let AccountState::Resolved(identity) = state {
                return Ok(identity);
            }
        }
    }

    /// The transition function of [`AccountState`]. `claim` is the address that the identity can
    /// claim, if any.
    async fn advance(
        &self,
        id: &IdToken,
        claim: Option<AddressClaim<'_>>,
        state: AccountState,
    ) -> Result<AccountState, SocialError> {
        Ok(match state {
            AccountState::Start => match self.known_identity(id).await? {
                Some(identity) if identity.username.is_some() => AccountState::Identified(identity),
                existing => AccountState::Unlinked { existing },
            },
            AccountState::Unlinked { existing } => {
                let claimed = match claim {
                    Some(claim) => self.claim_address(claim, existing.as_ref()).await?,
                    None => None,
                };
                match claimed {
                    Some(identity) => AccountState::Identified(identity),
                    None => AccountState::Standalone { existing },
                }
            }
            AccountState::Standalone {
                existing: Some(identity),
            } => AccountState::Identified(identity),
            AccountState::Standalone { existing: None } => {
                let identity = standalone_identity();
                AccountState::Identified(self.insert_identity(id, &identity).await?)
            }
            AccountState::Identified(mut identity) => {
                if !identity.profile_saved && identity.username.is_some() {
                    identity.profile_saved = self.save_profile(id, &identity.user_id).await;
                }
                AccountState::Resolved(identity)
            }
            resolved @ AccountState::Resolved(_) => resolved,
        })
    }

    /// Claims an address under its lock, which registrations acquire as well: the address cannot be
    /// registered between a look-up and the change that follows. Returns `None` if another account
    /// has the address.
    async fn claim_address(
        &self,
        claim: AddressClaim<'_>,
        existing: Option<&SocialIdentity>,
    ) -> Result<Option<SocialIdentity>, SocialError> {
        let work = async {
            let mut state = ClaimState::Reconciling;
            loop {
                state = self.advance_claim(claim, existing, state).await?;
                if let ClaimState::Saved(identity) = state {
                    return Ok(Some(identity));
                }
                if let ClaimState::Unclaimable = state {
                    return Ok(None);
                }
            }
        };
        self.locks.with_address(claim.email, Box::pin(work)).await
    }

    /// The transition function of [`ClaimState`]. The claimed account replaces `existing`.
    async fn advance_claim(
        &self,
        claim: AddressClaim<'_>,
        existing: Option<&SocialIdentity>,
        state: ClaimState,
    ) -> Result<ClaimState, SocialError> {
        Ok(match state {
            ClaimState::Reconciling => {
                self.resolve_interrupted(claim.id, claim.email).await?;
                ClaimState::Claiming { create_attempts: 0 }
            }
            ClaimState::Claiming {
                create_attempts: MAX_CREATE_ATTEMPTS..,
            } => return Err(SocialError::Unavailable),
            ClaimState::Claiming { create_attempts } => {
                let account = claim.admin.find_user(claim.email.as_str()).await;
                match account.map_err(admin_error)? {
                    None => ClaimState::Creating { create_attempts },
                    Some(_) if !self.is_authoritative(claim.id, claim.email) => {
                        ClaimState::Unclaimable
                    }
                    Some(account) if !account.is_enabled => return Err(SocialError::AccessDenied),
                    Some(account) if account.is_verified => ClaimState::Saving {
                        linked: linked_identity(account),
                    },
                    Some(account) => {
                        self.delete_unverified(claim, &account).await?;
                        ClaimState::Creating { create_attempts }
                    }
                }
            }
            ClaimState::Creating { create_attempts } => match self.create_user(claim).await {
                Ok(linked) => ClaimState::Saving { linked },
                Err(PoolError::UserExists | PoolError::AliasExists) => ClaimState::Claiming {
                    create_attempts: create_attempts + 1,
                },
                Err(error) => return Err(admin_error(error)),
            },
            ClaimState::Saving { linked } => {
                ClaimState::Saved(self.save_link(claim, existing, &linked).await?)
            }
            end @ (ClaimState::Saved(_) | ClaimState::Unclaimable) => end,
        })
    }
}
