//! The operations of the transitions, on the store, the pool and the actor service.

use postern_common::Problem;
use postern_common::email::EmailAddress;
use postern_common::token::oidc::IdToken;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::super::super::compensation::{REGISTRATION_TIMEOUT, Resolution};
use super::super::SocialError;
use super::{AccountResolver, AddressClaim};
use crate::crypto::sha256_hex;
use crate::pool::admin::PoolAccount;
use crate::pool::error::{PoolCall, PoolError};
use crate::store::SocialIdentity;
use crate::telemetry::Operation;

// === impl AccountResolver ===

impl AccountResolver {
    /// Returns the stored identity. Deletes it if its pool user was deleted.
    ///
    /// # Errors
    /// `AccessDenied` if the pool user is disabled.
    pub(super) async fn known_identity(
        &self,
        id: &IdToken,
    ) -> Result<Option<SocialIdentity>, SocialError> {
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
    pub(super) async fn resolve_interrupted(
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
    pub(super) fn is_authoritative(&self, id: &IdToken, email: &EmailAddress) -> bool {
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

    pub(super) async fn delete_unverified(
        &self,
        claim: AddressClaim<'_>,
        account: &PoolAccount,
    ) -> Result<(), SocialError> {
        // Before the deletion, which does not end if the client disconnects.
        self.limiter
            .forget_trusted_networks(claim.email.as_str())
            .await;
        let deleted = claim.admin.delete_user(&account.username).await;
        deleted.map_err(admin_error)?;
        self.audit.log(
            claim.client,
            Operation::SocialLink,
            &account.subject,
            "unverified_account_deleted",
        );
        Ok(())
    }

    /// Creates a pool user with a verified address. A pending registration is stored before, and
    /// the subject after.
    pub(super) async fn create_user(
        &self,
        claim: AddressClaim<'_>,
    ) -> Result<SocialIdentity, PoolError> {
        let store_failed = |_| PoolError::Unavailable("database unavailable");
        let (registration, email) = (registration_id(claim.id), claim.email.as_str());
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
    pub(super) async fn save_link(
        &self,
        claim: AddressClaim<'_>,
        existing: Option<&SocialIdentity>,
        linked: &SocialIdentity,
    ) -> Result<SocialIdentity, SocialError> {
        let id = claim.id;
        if let Some(existing) = existing {
            self.delete_identity(id, existing).await?;
        }
        let identity = self.insert_identity(id, linked).await?;
        let deleted = self.store.delete_registration(&registration_id(id)).await;
        deleted.map_err(Problem::from)?;
        self.audit
            .log(claim.client, Operation::SocialLink, &identity.user_id, "ok");
        Ok(identity)
    }

    pub(super) async fn insert_identity(
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
    pub(super) async fn save_profile(&self, id: &IdToken, user_id: &str) -> bool {
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
pub(super) fn admin_error(error: PoolError) -> SocialError {
    error.problem(PoolCall::Admin).into()
}

/// Returns the id of the pending registration of an identity, the same for every sign-in.
fn registration_id(id: &IdToken) -> String {
    let identity = format!("{}\0{}", id.issuer, id.subject);
    format!("social-{}", sha256_hex(identity))
}

/// Returns a new identity without a pool user.
pub(super) fn standalone_identity() -> SocialIdentity {
    SocialIdentity {
        user_id: Uuid::new_v4().to_string(),
        username: None,
        social_only: true,
        profile_saved: false,
    }
}

/// Returns the identity of an account with a verified address. An invited user who has not chosen a
/// password yet becomes a social user; all others keep their password.
pub(super) fn linked_identity(account: PoolAccount) -> SocialIdentity {
    SocialIdentity {
        user_id: account.subject,
        username: Some(account.username),
        social_only: account.is_invited,
        profile_saved: !account.is_invited,
    }
}
