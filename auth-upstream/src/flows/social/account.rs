//! Resolution of a social identity to an account.
//!
//! A social identity is the pair of issuer and subject at the provider, an account the subject at
//! the pool; names are not compared. An e-mail address alone links nothing: the provider must have
//! verified it and be authoritative for it, or the person enters a code that is sent to it. An
//! account whose address is not verified may have been created by an attacker: it is deleted with
//! everything that belongs to its subject, and the owner of the address gets a new subject, for which
//! no other client holds a token.
//!
//! ```text
//!            known, and the pool's user has the stored subject
//!   stored? ─────────────────────────────────────────────────────────► Started
//!     │ unknown, without a pool user, or the user was deleted             ▲
//!     ▼                                                                   │
//!   address proven? ──► no: Pending (CONFIRM_ADDRESS), again with a code  │
//!     │ yes                                                               │
//!   ··│·· address locked ···············································│··
//!     ▼                    verified                                       │
//!   account? ─────────────────────────────► link stored ──────────────────┘
//!     │   ▲
//!     │   └── created (SignUp)
//!     └─────────── none, or deleted because it is not verified
//! ```
//!
//! A disabled account ends the sign-in with `access_denied`. A crash after SignUp leaves a user with
//! a verified address and an unknown password, to whom the next sign-in is linked. Without a key for
//! proofs there are no accounts: the identity is [`ResolvedIdentity::Identified`].

use postern_core::email::EmailAddress;
use postern_core::token::oidc::IdToken;
use postern_core::{Code, Problem};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::super::account_codes::{CodePurpose, RedeemedCode};
use super::super::attempt_guard::AttemptError;
use super::super::challenge_session::password_reset_required;
use super::super::security_stamps::{StampSnapshot, stamped_names};
use super::super::token_set::SignedInUser;
use super::super::{Flows, cache_unavailable};
use super::{AuthorizedUser, Social, SocialError};
use crate::account_messages::AccountNotice;
use crate::client::ClientContext;
use crate::pool::error::{PoolError, PoolFault};
use crate::pool::{SignInStep, SocialChallenge};
use crate::store::{SocialId, SocialIdentity};
use crate::telemetry::Operation;

/// The maximum number of attempts to find or create a user whose address is taken concurrently
/// without the lock, for instance at the pool itself. One creation needs two.
const MAX_CLAIM_ATTEMPTS: u32 = 4;

/// A social identity with the next step of its sign-in.
#[derive(Debug)]
pub(super) enum ResolvedIdentity {
    /// The account is known, and its sign-in waits for the proof.
    Started(SocialIdentity, SocialChallenge),
    /// There is no key for proofs, and so no account.
    Identified(SocialIdentity),
    /// The problem that asks the person for the next step.
    Pending(Problem),
}

/// A proven address, which is locked.
#[derive(Clone, Copy, Debug)]
struct AddressClaim<'a> {
    client: &'a ClientContext,
    id: &'a IdToken,
    email: &'a EmailAddress,
}

// === impl Flows ===

impl Flows {
    /// Resolves the identity of an ID token. Concurrent sign-ins of one identity are serialized.
    /// `code` is what the person has entered of the code that was sent to the address.
    pub(super) async fn resolve_identity(
        &self,
        client: &ClientContext,
        user: &AuthorizedUser,
        code: Option<&str>,
    ) -> Result<ResolvedIdentity, SocialError> {
        let id = &user.id_token;
        let work = Box::pin(self.resolve_locked_identity(client, user, code));
        let resolved = self
            .with_social_identity(&id.issuer, &id.subject, work)
            .await?;
        if let (
            ResolvedIdentity::Started(identity, _) | ResolvedIdentity::Identified(identity),
            Some(token),
        ) = (&resolved, &user.refresh_token)
        {
            self.save_provider_token(id, &identity.user_id, token)
                .await?;
        }
        Ok(resolved)
    }

    /// Stores a refresh token of the provider, sealed to provider, issuer, subject and user.
    async fn save_provider_token(
        &self,
        id: &IdToken,
        user_id: &str,
        token: &str,
    ) -> Result<(), Problem> {
        let Some(Social { config, .. }) = &self.social else {
            return Ok(());
        };
        let provider = config.by_issuer(&id.issuer);
        let provider = provider.map_or("", |provider| &provider.name);
        let context = [provider, &id.issuer, &id.subject, user_id];
        let sealed = config.key_ring.seal(&context, token.as_bytes());
        let saved = self.store.save_provider_token(social_id(id), &sealed);
        Ok(saved.await?)
    }

    async fn resolve_locked_identity(
        &self,
        client: &ClientContext,
        user: &AuthorizedUser,
        code: Option<&str>,
    ) -> Result<ResolvedIdentity, SocialError> {
        let id = &user.id_token;
        let email = id.email.as_deref().and_then(EmailAddress::parse);
        let known = self.store.social_identity(social_id(id)).await?;
        if !self.pool.has_social_sign_in() {
            if let Some(identity) = known {
                return Ok(ResolvedIdentity::Identified(identity));
            }
            let identity = SocialIdentity {
                user_id: Uuid::new_v4().to_string(),
                username: None,
                profile_saved: false,
            };
            let inserted = self.store.insert_social_identity(social_id(id), &identity);
            return Ok(ResolvedIdentity::Identified(inserted.await?));
        }
        if let Some(identity) = known {
            if let Some(username) = &identity.username {
                match self.pool.start_social_sign_in(username).await {
                    Ok(Some(found)) if found.account.subject == identity.user_id => {
                        if let Some(email) = &email {
                            self.redeem_link_code(email, code).await?;
                        }
                        return Ok(self.started(id, identity, found).await);
                    }
                    // Deleted; another person may have the name by now.
                    Ok(_) => {}
                    Err(fault) => return failed_start(fault),
                }
            }
            let (store, user_id) = (&self.store, &identity.user_id);
            store.delete_social_identity(social_id(id), user_id).await?;
        }
        let email = &email.ok_or(SocialError::EmailNotVerified)?;
        if code.is_none() && !(id.email_verified && self.is_authoritative(id, email)) {
            return self.request_link_code(client, user, email).await;
        }
        let claim = AddressClaim { client, id, email };
        let work = async {
            // Under the lock: a reset that is waited for ends the code.
            let redeemed = self.redeem_link_code(email, code).await?;
            let claimed = self.claim_address(claim).await;
            if let (Some(redeemed), Err(SocialError::Unavailable)) = (redeemed, &claimed) {
                self.give_back(redeemed).await;
            }
            claimed
        };
        self.with_address(email, Box::pin(work)).await
    }

    async fn redeem_link_code(
        &self,
        email: &EmailAddress,
        code: Option<&str>,
    ) -> Result<Option<RedeemedCode>, SocialError> {
        let Some(code) = code else { return Ok(None) };
        let redeemed = self.redeem_code(CodePurpose::SocialLink, email, code);
        match redeemed.await {
            Ok(redeemed) => Ok(Some(redeemed)),
            Err(problem) if problem.code() == Code::InvalidCode => Err(SocialError::AccessDenied),
            Err(problem) => Err(problem.into()),
        }
    }

    /// Issues tokens for a started sign-in, unless a reset has removed the link meanwhile, and trusts
    /// the client's network.
    pub(super) async fn finish_social_sign_in(
        &self,
        client: &ClientContext,
        id: &IdToken,
        challenge: &SocialChallenge,
    ) -> Result<SignedInUser, Problem> {
        let started_at = self.clock.now();
        let (mut stamps, email) = (StampSnapshot::default(), account_email(id, challenge));
        let names = stamped_names(Some(&challenge.username), email.as_ref());
        self.add_stamps(&mut stamps, &names).await?;
        let step = match self.pool.finish_social_sign_in(challenge).await {
            Err(fault) if fault.error == PoolError::PasswordResetRequired => {
                return Err(password_reset_required());
            }
            step => step?,
        };
        let link = (id.issuer.clone(), id.subject.clone());
        let completed = self.complete(step, email.as_ref(), Some(&link), stamps);
        let signed_in = completed.await.map_err(|error| error.problem)?;
        if let Some(email) = &email {
            self.trust_network(client, email, &signed_in.subject, started_at)
                .await;
        }
        Ok(signed_in)
    }

    pub(in crate::flows) async fn sign_in_with_code(
        &self,
        client: &ClientContext,
        user: &AuthorizedUser,
        code: &str,
    ) -> Result<SignedInUser, AttemptError> {
        let resolved = self.resolve_identity(client, user, Some(code)).await;
        let outcome = match resolved.map_err(Problem::from)? {
            ResolvedIdentity::Started(_, challenge) => {
                self.finish_social_sign_in(client, &user.id_token, &challenge)
                    .await
            }
            ResolvedIdentity::Pending(problem) => Err(problem),
            ResolvedIdentity::Identified(_) => return Err(Code::InvalidChallenge.into()),
        };
        outcome.map_err(AttemptError::after_proof)
    }

    /// Finds the verified account of an address and links the identity to it, or creates one. The
    /// address is locked, which registrations lock as well.
    async fn claim_address(
        &self,
        claim: AddressClaim<'_>,
    ) -> Result<ResolvedIdentity, SocialError> {
        let mut is_new = false;
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            match self.pool.start_social_sign_in(claim.email.as_str()).await {
                Ok(Some(found)) if !found.account.has_email(claim.email) => {
                    return Err(SocialError::AccessDenied);
                }
                Ok(Some(found)) if found.account.is_verified => {
                    let identity = self.save_link(claim, &found).await?;
                    if !is_new {
                        let (notice, subject) =
                            (AccountNotice::SocialLink, Some(&*identity.user_id));
                        self.messages
                            .notice(notice, claim.email, subject, claim.client);
                    }
                    return Ok(self.started(claim.id, identity, found).await);
                }
                Ok(Some(found)) => self.delete_unverified(claim, Some(found)).await?,
                Ok(None) => {}
                Err(fault) if fault.error == PoolError::UserNotConfirmed => {
                    self.delete_unverified(claim, None).await?;
                }
                Err(fault) => return failed_start(fault),
            }
            match self.pool.sign_up_social(claim.email).await {
                Ok(()) => is_new = true,
                Err(fault) if fault.code() == Code::EmailNotAvailable => {}
                Err(fault) => return Err(fault.into()),
            }
        }
        Err(SocialError::Unavailable)
    }

    async fn started(
        &self,
        id: &IdToken,
        identity: SocialIdentity,
        challenge: SocialChallenge,
    ) -> ResolvedIdentity {
        let email = account_email(id, &challenge);
        if let (Some(email), false) = (email, identity.profile_saved) {
            let is_verified = challenge.account.is_verified;
            self.save_profile(id, &identity.user_id, &email, is_verified)
                .await;
        }
        ResolvedIdentity::Started(identity, challenge)
    }

    /// Sends a code to the address. Nothing depends on whether it has an account.
    async fn request_link_code(
        &self,
        client: &ClientContext,
        user: &AuthorizedUser,
        email: &EmailAddress,
    ) -> Result<ResolvedIdentity, SocialError> {
        let mut stamps = StampSnapshot::default();
        self.add_stamps(&mut stamps, &[email.as_str()]).await?;
        self.send_code(CodePurpose::SocialLink, email, client)
            .await?;
        let required = self.address_unproven(user, email, stamps);
        Ok(ResolvedIdentity::Pending(required))
    }

    /// Returns whether the provider is authoritative for the address: it assigns the addresses of
    /// the domain.
    fn is_authoritative(&self, id: &IdToken, email: &EmailAddress) -> bool {
        let host = email.host();
        let social = self.social.as_ref();
        let Some(provider) = social.and_then(|it| it.config.by_issuer(&id.issuer)) else {
            return false;
        };
        let is_listed = provider
            .settings
            .authoritative_domains
            .iter()
            .any(|domain| domain.eq_ignore_ascii_case(host));
        let hosted_domain = id.claims.get("hd").and_then(Value::as_str);
        is_listed
            || (provider.is_google()
                && hosted_domain.is_some_and(|domain| domain.eq_ignore_ascii_case(host)))
    }

    /// Deletes an account whose address was never verified, without AWS credentials as its user.
    /// `found` is `None` if the user is not confirmed, so that nobody can sign in.
    async fn delete_unverified(
        &self,
        claim: AddressClaim<'_>,
        found: Option<SocialChallenge>,
    ) -> Result<(), SocialError> {
        let address = claim.email.as_str();
        // Before the deletion.
        let forgotten = self.limiter.forget_trusted_networks(address).await;
        forgotten.map_err(cache_unavailable)?;
        let subject = match (&self.pool.admin, found) {
            (Some(admin), _) => {
                let owner = admin.find_owner(claim.email).await?;
                let Some(user) = owner.filter(|it| !it.is_verified) else {
                    return Ok(());
                };
                admin.delete_user(&user.username).await?;
                user.subject
            }
            (None, Some(found)) => {
                let finished = self.pool.finish_social_sign_in(&found).await;
                let SignInStep::Tokens(tokens) = finished.map_err(PoolFault::of_operator)? else {
                    return Err(SocialError::AccessDenied);
                };
                self.pool.delete_own_user(&tokens.access_token).await?;
                found.account.subject
            }
            (None, None) => return Err(SocialError::AccessDenied),
        };
        let outcome = "unverified_account_deleted";
        self.audit
            .log(claim.client, Operation::SocialLink, &subject, outcome);
        Ok(())
    }

    async fn save_link(
        &self,
        claim: AddressClaim<'_>,
        found: &SocialChallenge,
    ) -> Result<SocialIdentity, SocialError> {
        let linked = SocialIdentity {
            user_id: found.account.subject.clone(),
            username: Some(found.username.clone()),
            profile_saved: false,
        };
        let inserted = self
            .store
            .insert_social_identity(social_id(claim.id), &linked);
        let identity = inserted.await?;
        let operation = Operation::SocialLink;
        self.audit
            .log(claim.client, operation, &identity.user_id, "ok");
        Ok(identity)
    }

    /// Adds the names in the user that the provider sends beside the code, which it does once: it is
    /// kept until the profile is saved.
    pub(super) async fn add_names(
        &self,
        id: &mut IdToken,
        user: Option<String>,
    ) -> Result<(), SocialError> {
        if id.name.is_some() {
            return Ok(());
        }
        let store = &self.store;
        let user = match user {
            Some(user) => {
                let now = self.clock.now();
                store.keep_social_user(social_id(id), &user, now).await?;
                Some(user)
            }
            None => store.social_user(social_id(id)).await?,
        };
        let user: Value = serde_json::from_str(&user.unwrap_or_default()).unwrap_or_default();
        let name = |part: &str| user["name"][part].as_str();
        id.add_names(name("firstName"), name("lastName"));
        Ok(())
    }

    /// Saves the profile, unless the user has one. If that fails, the next sign-in tries again.
    async fn save_profile(
        &self,
        id: &IdToken,
        user_id: &str,
        email: &EmailAddress,
        is_verified: bool,
    ) {
        let mut profile = Map::new();
        for (claim, field) in [("given_name", "firstName"), ("family_name", "lastName")] {
            if let Some(text) = id.claims.get(claim).and_then(Value::as_str) {
                profile.insert(field.to_owned(), Value::String(text.to_owned()));
            }
        }
        let saved = match self.actor_service.has_profile(user_id).await {
            Ok(false) => {
                let save = self
                    .actor_service
                    .save_profile(user_id, email, is_verified, &profile);
                save.await.is_ok()
            }
            exists => exists.is_ok(),
        };
        if saved {
            let _ = self.store.mark_profile_saved(social_id(id)).await;
        }
    }
}

fn social_id(id: &IdToken) -> SocialId<'_> {
    (&id.issuer, &id.subject)
}

/// Returns the address of an account, if it is that of the identity.
fn account_email(id: &IdToken, challenge: &SocialChallenge) -> Option<EmailAddress> {
    let email = id.email.as_deref().and_then(EmailAddress::parse);
    email.filter(|email| challenge.account.has_email(email))
}

/// Returns the next step, or the error, of a sign-in that the pool did not start.
fn failed_start(fault: PoolFault) -> Result<ResolvedIdentity, SocialError> {
    if fault.error == PoolError::PasswordResetRequired {
        return Ok(ResolvedIdentity::Pending(password_reset_required()));
    }
    let denied = [PoolError::NotAuthorized, PoolError::UserNotConfirmed];
    Err(if denied.contains(&fault.error) {
        SocialError::AccessDenied
    } else {
        fault.into()
    })
}
