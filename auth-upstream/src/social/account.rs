//! Who a provider's subject is here.
//!
//! The identity is issuer and subject. An e-mail address links nothing by itself: only one that the provider
//! verified and hands out itself leads to an account that is there already, and only if that account's own
//! address was verified. An account whose address was never verified may have been made by anybody: it loses
//! its password and its sessions first.

use std::time::Duration;

use postern_common::clock::Timestamp;
use postern_common::token::oidc::IdToken;
use postern_common::{Code, Problem, Secret};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Social, SocialFault};
use crate::audit::{self, Act};
use crate::auth::{Auth, Visitor, cache_away};
use crate::config::SocialConfig;
use crate::email::Email;
use crate::pool::SignIn;
use crate::pool::admin::{Account, AdminPool};
use crate::pool::fault::{Fault, Operation};
use crate::random;
use crate::seal::hex;
use crate::store::SocialIdentity;
use crate::token_set::TokenSet;

/// How long one sign-in of a user keeps others of the same user waiting.
const LOCK: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(25);
const LOOKS: u32 = 200;

// === impl Auth ===

impl Auth {
    /// Who it is here: as it was before, or a new identity.
    pub(super) async fn social_identity(
        &self,
        visitor: &Visitor,
        social: &Social,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialFault> {
        let guard = self.lock_social("identity", &format!("{}\0{}", id.issuer, id.subject)).await?;
        let outcome = self.known_or_new(visitor, social, id).await;
        guard.release().await;
        outcome
    }

    async fn known_or_new(
        &self,
        visitor: &Visitor,
        social: &Social,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialFault> {
        let now = self.clock.now();
        let known = self.store.social_identity(&id.issuer, &id.subject).await.map_err(Problem::from)?;
        let mut identity = match known {
            Some(identity) => identity,
            None => {
                let identity = self.new_identity(visitor, &social.config, id).await?;
                let added = self.store.add_social_identity(&id.issuer, &id.subject, &identity, now).await;
                added.map_err(Problem::from)?;
                identity
            }
        };
        if !identity.profile_saved && identity.username.is_some() {
            identity.profile_saved = self.save_social_profile(id, &identity.user_id, now).await;
        }
        Ok(identity)
    }

    async fn new_identity(
        &self,
        visitor: &Visitor,
        config: &SocialConfig,
        id: &IdToken,
    ) -> Result<SocialIdentity, SocialFault> {
        let email = id.email.as_deref().and_then(Email::parse).filter(|_| id.email_verified);
        let (Some(admin), Some(email)) = (&self.pool.admin, email) else { return Ok(apart()) };
        let refused = |fault: Fault| SocialFault::from(fault.problem(Operation::Admin));
        let identity = match admin.find(email.as_str()).await.map_err(refused)? {
            None => create(admin, &email).await.map_err(refused)?,
            Some(_) if !is_authoritative(config, id, &email) => return Ok(apart()),
            Some(account) if account.is_verified => linked(account),
            Some(account) => take_over(admin, account).await.map_err(refused)?,
        };
        audit::record(visitor, Act::SocialLink, &identity.user_id, "ok");
        Ok(identity)
    }

    /// A profile that cannot be saved now is saved at the next sign-in.
    async fn save_social_profile(&self, id: &IdToken, user_id: &str, now: Timestamp) -> bool {
        let Some(email) = id.email.as_deref().and_then(Email::parse) else { return false };
        let mut profile = Map::new();
        for (claim, field) in [("given_name", "firstName"), ("family_name", "lastName")] {
            if let Some(text) = id.claims.get(claim).and_then(Value::as_str) {
                profile.insert(field.to_owned(), Value::String(text.to_owned()));
            }
        }
        if self.actors.register(user_id, &email, &profile).await.is_err() {
            return false;
        }
        self.store.mark_profile_saved(&id.issuer, &id.subject, now).await.is_ok()
    }

    /// Keeps the provider's refresh token, sealed to provider, subject and user.
    pub(super) async fn keep_provider_token(
        &self,
        social: &Social,
        id: &IdToken,
        user_id: &str,
        token: &str,
    ) -> Result<(), SocialFault> {
        let context = [social.config.provider.as_str(), &id.issuer, &id.subject, user_id];
        let sealed = social.config.ring.seal(&context, token.as_bytes());
        let saved = self.store.save_social_token(&id.issuer, &id.subject, &sealed, self.clock.now()).await;
        Ok(saved.map_err(Problem::from)?)
    }

    /// Tokens of the pool for a user whom nobody has a password for: one is set, used once and forgotten, by
    /// one sign-in at a time. `None` where there is no pool user, or its password is the person's own.
    pub(super) async fn social_tokens(
        &self,
        identity: &SocialIdentity,
    ) -> Result<Option<TokenSet>, SocialFault> {
        let (Some(admin), Some(username), true) =
            (&self.pool.admin, &identity.username, identity.social_only)
        else {
            return Ok(None);
        };
        let guard = self.lock_social("password", username).await?;
        let outcome = self.one_time_sign_in(admin, username).await;
        guard.release().await;
        outcome.map(Some)
    }

    async fn one_time_sign_in(&self, admin: &AdminPool, username: &str) -> Result<TokenSet, SocialFault> {
        let password = Secret::from(random::password());
        let set = admin.set_password(username, password.expose()).await;
        set.map_err(|fault| fault.problem(Operation::Admin))?;
        match self.pool.sign_in(username, &password).await {
            Ok(SignIn::Tokens(tokens)) => Ok(self.admit(tokens)?.set),
            Ok(SignIn::Challenge(_)) => Err(SocialFault::AccessDenied),
            // Disabled, or deleted in the meantime.
            Err(Fault::NotAuthorized | Fault::UserNotFound) => Err(SocialFault::AccessDenied),
            Err(fault) => Err(fault.problem(Operation::SignIn).into()),
        }
    }

    async fn lock_social(&self, what: &str, whom: &str) -> Result<postern_common::cache::Guard, SocialFault> {
        let key = format!("postern:auth:social-{what}-lock:{}", hex(&Sha256::digest(whom)));
        for _ in 0..LOOKS {
            if let Some(guard) = self.cache.lock(&key, LOCK).await.map_err(cache_away)? {
                return Ok(guard);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Err(Problem::new(Code::Unavailable).into())
    }
}

/// An identity without a pool user.
fn apart() -> SocialIdentity {
    let user_id = Uuid::new_v4().to_string();
    SocialIdentity { user_id, username: None, social_only: true, profile_saved: false }
}

/// A new pool user whose address the provider vouches for.
async fn create(admin: &AdminPool, email: &Email) -> Result<SocialIdentity, Fault> {
    let account = admin.create(email, true).await?;
    Ok(SocialIdentity {
        user_id: account.subject,
        username: Some(account.username),
        social_only: true,
        profile_saved: false,
    })
}

/// The verified account of the same person, who keeps the password.
fn linked(account: Account) -> SocialIdentity {
    SocialIdentity {
        user_id: account.subject,
        username: Some(account.username),
        social_only: false,
        profile_saved: true,
    }
}

/// An account whose address nobody verified: whoever made it loses it to the address's holder.
async fn take_over(admin: &AdminPool, account: Account) -> Result<SocialIdentity, Fault> {
    admin.set_password(&account.username, &random::password()).await?;
    admin.sign_out_everywhere(&account.username).await?;
    admin.mark_verified(&account.username).await?;
    Ok(SocialIdentity {
        user_id: account.subject,
        username: Some(account.username),
        social_only: true,
        profile_saved: false,
    })
}

/// Whether the provider's word about this address is final: it hands the address out itself.
fn is_authoritative(config: &SocialConfig, id: &IdToken, email: &Email) -> bool {
    let own = config.authoritative_domains.iter().any(|domain| domain.eq_ignore_ascii_case(email.host()));
    let hosted = id.claims.get("hd").and_then(Value::as_str);
    own || (config.trust_hosted_domain
        && hosted.is_some_and(|domain| domain.eq_ignore_ascii_case(email.host())))
}
