//! Who a provider's subject is here.
//!
//! The identity is issuer and subject. An e-mail address links nothing by itself: only one that the
//! provider verified and hands out itself leads to an account that is there already, and only if
//! that account's own address was verified. An account whose address was never verified may have
//! been made by anybody: it is deleted with all that hangs on its subject, and the address's holder
//! begins anew under a subject that nobody else has held a token for.
//!
//! A pool user is made under a note in the database, as by a registration: what a crash leaves half
//! made is undone when the person comes again, or by [`crate::compensation`].

use std::time::Duration;

use postern_common::clock::Timestamp;
use postern_common::token::oidc::IdToken;
use postern_common::{Code, Problem};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Social, SocialFault};
use crate::audit::{self, Act};
use crate::auth::{Auth, Visitor, cache_away};
use crate::compensation::Verdict;
use crate::config::SocialConfig;
use crate::email::Email;
use crate::pool::admin::{Account, AdminPool};
use crate::pool::fault::{Fault, Operation};
use crate::register::GIVEN_UP_AFTER;
use crate::seal::hex;
use crate::store::SocialIdentity;

/// How long one sign-in of a user keeps others of the same user waiting.
const LOCK: Duration = Duration::from_secs(45);
/// How long those wait: longer than one call to a busy pool.
const PATIENCE: Duration = Duration::from_secs(9);
/// How often somebody else may be faster at the same address, past the lock, before we give up.
const TRIES: u32 = 3;

/// A verified address of a provider's subject, which is locked.
struct Claim<'a> {
    visitor: &'a Visitor,
    config: &'a SocialConfig,
    admin: &'a AdminPool,
    id: &'a IdToken,
    email: &'a Email,
}

// === impl Auth ===

impl Auth {
    /// Who it is here: as it was before, or a new identity.
    pub(super) async fn social_identity(
        &self,
        visitor: &Visitor,
        social: &Social,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialFault> {
        let guard = self
            .lock_social("identity", &format!("{}\0{}", id.issuer, id.subject))
            .await?;
        let work = Box::pin(self.known_or_new(visitor, &social.config, id));
        guard.run(work).await.map_err(cache_away)?
    }

    async fn known_or_new(
        &self,
        visitor: &Visitor,
        config: &SocialConfig,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialFault> {
        let mut identity = match self.still_known(id).await? {
            Some(identity) if identity.username.is_some() => identity,
            apart => self.new_identity(visitor, config, id, apart).await?,
        };
        if !identity.profile_saved && identity.username.is_some() {
            identity.profile_saved = self
                .save_social_profile(id, &identity.user_id, self.clock.now())
                .await;
        }
        Ok(identity)
    }

    /// Who it was before. One whose pool user was deleted begins anew; one whose pool user is
    /// disabled is refused.
    async fn still_known(&self, id: &IdToken) -> Result<Option<SocialIdentity>, SocialFault> {
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
        match admin.find(username).await.map_err(refused)? {
            Some(account) if account.is_enabled => Ok(Some(identity)),
            Some(_) => Err(SocialFault::AccessDenied),
            None => {
                let forgotten = self
                    .store
                    .forget_social_identity(&id.issuer, &id.subject, &identity.user_id)
                    .await;
                forgotten.map_err(Problem::from)?;
                Ok(None)
            }
        }
    }

    /// One that has no pool user: none yet, or apart until now, for want of credentials or of a
    /// verified address.
    async fn new_identity(
        &self,
        visitor: &Visitor,
        config: &SocialConfig,
        id: &IdToken,
        apart: Option<SocialIdentity>,
    ) -> Result<SocialIdentity, SocialFault> {
        let email = id
            .email
            .as_deref()
            .and_then(Email::parse)
            .filter(|_| id.email_verified);
        let claimed = match (&self.pool.admin, &email) {
            (Some(admin), Some(email)) => {
                // The lock that a registration of the address takes: nobody takes it between a look
                // and what follows.
                let guard = self.lock_address(email).await?;
                let claim = Claim {
                    visitor,
                    config,
                    admin,
                    id,
                    email,
                };
                let work = Box::pin(self.claim(&claim, apart.as_ref()));
                guard.run(work).await.map_err(cache_away)??
            }
            (None, _) | (_, None) => None,
        };
        match claimed.or(apart) {
            Some(identity) => Ok(identity),
            None => self.keep_identity(id, &set_apart()).await,
        }
    }

    /// The pool user of the address; `None` if it is another's.
    async fn claim(
        &self,
        claim: &Claim<'_>,
        apart: Option<&SocialIdentity>,
    ) -> Result<Option<SocialIdentity>, SocialFault> {
        let (id, registration) = (claim.id, registration_of(claim.id));
        self.undo_half_made(&registration, claim.email).await?;
        let Some(identity) = self.link_or_make(claim, &registration).await? else {
            return Ok(None);
        };
        if let Some(apart) = apart {
            let forgotten = self
                .store
                .forget_social_identity(&id.issuer, &id.subject, &apart.user_id)
                .await;
            forgotten.map_err(Problem::from)?;
        }
        let identity = self.keep_identity(id, &identity).await?;
        self.store
            .end_registration(&registration)
            .await
            .map_err(Problem::from)?;
        audit::record(claim.visitor, Act::SocialLink, &identity.user_id, "ok");
        Ok(Some(identity))
    }

    /// A crash may have cut off an earlier claim of this subject behind the making of its user.
    async fn undo_half_made(&self, registration: &str, email: &Email) -> Result<(), SocialFault> {
        let pending = self
            .store
            .registration(registration)
            .await
            .map_err(Problem::from)?;
        let Some(pending) = pending else {
            return Ok(());
        };
        if self.judge(&pending, email).await == Verdict::Later {
            return Err(SocialFault::Unavailable);
        }
        Ok(self
            .store
            .end_registration(registration)
            .await
            .map_err(Problem::from)?)
    }

    async fn link_or_make(
        &self,
        claim: &Claim<'_>,
        registration: &str,
    ) -> Result<Option<SocialIdentity>, SocialFault> {
        let Claim {
            visitor,
            admin,
            email,
            ..
        } = claim;
        for _ in 0..TRIES {
            match admin.find(email.as_str()).await.map_err(refused)? {
                None => {}
                Some(_) if !claim.is_authoritative() => return Ok(None),
                Some(account) if !account.is_enabled => return Err(SocialFault::AccessDenied),
                Some(account) if account.is_verified => return Ok(Some(linked(account))),
                Some(account) => {
                    admin.delete(&account.username).await.map_err(refused)?;
                    self.abuse.forget_networks(email.as_str()).await;
                    audit::record(
                        visitor,
                        Act::SocialLink,
                        &account.subject,
                        "unverified_account_deleted",
                    );
                }
            }
            match self.make(claim, registration).await {
                Err(Fault::UserExists | Fault::AliasExists) => {}
                made => return made.map(Some).map_err(refused),
            }
        }
        Err(SocialFault::Unavailable)
    }

    /// A new pool user whose address the provider vouches for, noted before and after.
    async fn make(&self, claim: &Claim<'_>, registration: &str) -> Result<SocialIdentity, Fault> {
        let away = |_| Fault::Unavailable("the database is away");
        let (email, now) = (claim.email.as_str(), self.clock.now());
        self.store
            .begin_registration(registration, email, now, now.plus(GIVEN_UP_AFTER))
            .await
            .map_err(away)?;
        let account = claim.admin.create(claim.email).await?;
        self.store
            .name_registration(registration, &account.subject)
            .await
            .map_err(away)?;
        Ok(SocialIdentity {
            user_id: account.subject,
            username: Some(account.username),
            social_only: true,
            profile_saved: false,
        })
    }

    /// The identity as it stands in the database from now on: the first writer's.
    async fn keep_identity(
        &self,
        id: &IdToken,
        identity: &SocialIdentity,
    ) -> Result<SocialIdentity, SocialFault> {
        let kept = self
            .store
            .add_social_identity(&id.issuer, &id.subject, identity, self.clock.now())
            .await;
        Ok(kept.map_err(Problem::from)?)
    }

    /// A profile that cannot be saved now is saved at the next sign-in.
    async fn save_social_profile(&self, id: &IdToken, user_id: &str, now: Timestamp) -> bool {
        let Some(email) = id.email.as_deref().and_then(Email::parse) else {
            return false;
        };
        let mut profile = Map::new();
        for (claim, field) in [("given_name", "firstName"), ("family_name", "lastName")] {
            if let Some(text) = id.claims.get(claim).and_then(Value::as_str) {
                profile.insert(field.to_owned(), Value::String(text.to_owned()));
            }
        }
        if self
            .actors
            .register(user_id, &email, &profile)
            .await
            .is_err()
        {
            return false;
        }
        self.store
            .mark_profile_saved(&id.issuer, &id.subject, now)
            .await
            .is_ok()
    }

    pub(super) async fn lock_social(
        &self,
        what: &str,
        whom: &str,
    ) -> Result<postern_common::cache::Guard, SocialFault> {
        let key = format!(
            "postern:auth:social-{what}-lock:{}",
            hex(&Sha256::digest(whom))
        );
        let guard = self
            .cache
            .wait_for_lock(&key, LOCK, PATIENCE)
            .await
            .map_err(cache_away)?;
        guard.ok_or_else(|| Problem::new(Code::Unavailable).into())
    }
}

// === impl Claim ===

impl Claim<'_> {
    /// Whether the provider's word about the address is final: it hands the address out itself.
    fn is_authoritative(&self) -> bool {
        let host = self.email.host();
        let own = self
            .config
            .authoritative_domains
            .iter()
            .any(|domain| domain.eq_ignore_ascii_case(host));
        let hosted = self.id.claims.get("hd").and_then(Value::as_str);
        own || (self.config.trust_hosted_domain
            && hosted.is_some_and(|domain| domain.eq_ignore_ascii_case(host)))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn refused(fault: Fault) -> SocialFault {
    fault.problem(Operation::Admin).into()
}

/// The note under which the pool user of a provider's subject is made: the same at every try.
fn registration_of(id: &IdToken) -> String {
    format!(
        "social-{}",
        hex(&Sha256::digest(format!("{}\0{}", id.issuer, id.subject)))
    )
}

/// An identity without a pool user.
fn set_apart() -> SocialIdentity {
    let user_id = Uuid::new_v4().to_string();
    SocialIdentity {
        user_id,
        username: None,
        social_only: true,
        profile_saved: false,
    }
}

/// The verified account of the same person, who keeps the password; one that an operator made and
/// whose holder never came has none yet.
fn linked(account: Account) -> SocialIdentity {
    SocialIdentity {
        user_id: account.subject,
        username: Some(account.username),
        social_only: account.is_invited,
        profile_saved: !account.is_invited,
    }
}
