//! Completion or reversal of registrations that were interrupted by a crash, or whose user could
//! not be deleted.
//!
//! A registration is completed if the actor service has the profile, if a social identity belongs to
//! the user, whose profile is saved at the next sign-in, or if the user has confirmed the address
//! and the row has the profile, which is saved now. Otherwise the pool user is
//! deleted if this registration created it. The lock of the address is held meanwhile, so that a
//! concurrent registration of the same address is not affected.

use std::time::Duration;

use postern_core::backoff::Backoff;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Flows;
use super::registration::profile_problem;
use crate::actor_service::ActorServiceError;
use crate::client::ClientContext;
use crate::crypto::KeyRing;
use crate::pool::admin::{PoolAccount, PoolAdmin};
use crate::pool::error::PoolFault;
use crate::store::{PendingRegistration, StoreError};
use crate::telemetry::Operation;

/// The time after which a registration counts as interrupted. Longer than all of its calls
/// together.
pub(super) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);
const COMPENSATION_INTERVAL: Duration = Duration::from_secs(15);
const COMPENSATION_BATCH_SIZE: i64 = 50;
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_secs(3600));
const PROFILE_CONTEXT: &str = "postern registration profile";
/// Tolerance for the clock of the pool, which counts whole seconds, in milliseconds.
const CLOCK_TOLERANCE_MS: i64 = 5_000;

/// The outcome, in audit events, of a registration whose user and profile exist.
const FINISHED: &str = "finished";
/// The outcome of a registration whose user does not exist, or was deleted.
const UNDONE: &str = "undone";

// === impl Flows ===

impl Flows {
    pub(crate) async fn run_compensation(&self, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            if let Err(error) = self.compensate().await {
                postern_core::log_outage!("database", %error, "pending registrations unavailable");
            }
            let pause = tokio::time::sleep(COMPENSATION_INTERVAL);
            shutdown.run_until_cancelled(pause).await;
        }
    }

    pub(crate) async fn compensate(&self) -> Result<usize, StoreError> {
        let mut resolved = 0;
        self.store.synchronize(&self.clock).await?;
        // Accounts are deleted: nobody knows which clock is wrong.
        if self.clock.is_confirmed() {
            let now = self.clock.now();
            let due = self.store.due_registrations(now, COMPENSATION_BATCH_SIZE);
            for pending in due.await? {
                resolved += usize::from(self.resolve_due(&pending).await?);
            }
        }
        let pending = self.store.count_registrations().await?;
        self.metrics.own.pending_registrations.set(pending);
        Ok(resolved)
    }

    async fn resolve_due(&self, pending: &PendingRegistration) -> Result<bool, StoreError> {
        let outcome = match self.resolve_locked(pending).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(false),
            // A dependency is unavailable, which has been logged: to be tried again.
            Err(_) => {
                let failures = u32::try_from(pending.attempts + 1).unwrap_or(u32::MAX);
                let due_at = self.clock.now().plus(RETRY_DELAYS.delay(failures));
                let postponed = self.store.postpone_registration(&pending.id, due_at);
                return postponed.await.map(|()| false);
            }
        };
        self.store.delete_registration(&pending.id).await?;
        let client = ClientContext::new(pending.id.as_str().into(), None);
        if let Some(email) = EmailAddress::parse(&pending.email) {
            client.details.set_email(&email);
        }
        let subject = pending.subject.as_deref().unwrap_or_default();
        self.audit
            .record(&client, Operation::Compensate, subject, outcome);
        Ok(true)
    }

    /// Resolves a registration under the lock of its address. Returns `None` if it ended while the
    /// lock was awaited.
    async fn resolve_locked(
        &self,
        pending: &PendingRegistration,
    ) -> Result<Option<&'static str>, Problem> {
        let Some(email) = EmailAddress::parse(&pending.email) else {
            return Ok(Some(UNDONE));
        };
        let work = async {
            match self.store.registration(&pending.id).await? {
                Some(pending) => self.resolve(&pending, &email).await.map(Some),
                None => Ok(None),
            }
        };
        self.with_address(&email, Box::pin(work)).await
    }

    /// Resolves a registration whose address is locked. Deletes a user that it created and did not
    /// complete.
    async fn resolve(
        &self,
        pending: &PendingRegistration,
        email: &EmailAddress,
    ) -> Result<&'static str, Problem> {
        let Some(admin) = &self.pool.admin else {
            // Users cannot be deleted without AWS credentials. Repeating the registration completes
            // it. Of one that awaited its confirmation, the pool keeps the user.
            let awaited = pending.profile.as_ref();
            return awaited
                .map(|_| UNDONE)
                .ok_or_else(|| Code::Unavailable.into());
        };
        let Some(subject) = self.created_user(admin, pending, email).await? else {
            return Ok(UNDONE);
        };
        if self.store.has_social_identity(&subject).await?
            || self.has_actor_profile(&subject).await?
        {
            return Ok(FINISHED);
        }
        if let Some(profile) = open_profile(&self.key_ring, pending) {
            let account = admin.find_user(&subject).await?;
            // The user has confirmed the address.
            if let Some(account) = account.filter(|account| !account.is_unconfirmed) {
                let verified = account.is_verified;
                let saving = self
                    .actor_service
                    .save_profile(&subject, email, verified, &profile);
                return match saving.await {
                    Err(error @ ActorServiceError::Unavailable) => Err(profile_problem(error)),
                    Ok(()) | Err(_) => Ok(FINISHED),
                };
            }
        }
        admin.delete_user(&subject).await?;
        Ok(UNDONE)
    }

    /// Returns the subject of the user that a registration created. If the response to SignUp was
    /// not stored, this is the user with the address, unless it is older than the registration.
    async fn created_user(
        &self,
        admin: &PoolAdmin,
        pending: &PendingRegistration,
        email: &EmailAddress,
    ) -> Result<Option<String>, PoolFault> {
        if let Some(subject) = &pending.subject {
            return Ok(Some(subject.clone()));
        }
        let account = admin.find_owner(email).await?;
        let earliest = pending.began_at.saturating_sub(CLOCK_TOLERANCE_MS);
        let account = account.filter(|account| account.created_at.0 >= earliest);
        Ok(account.map(|account| account.subject))
    }

    /// Replaces an account, whose address nobody had proven, by a new one with a verified address, so
    /// that whoever has created it keeps neither profile nor tokens. To be called under the lock of
    /// the address. A crash leaves no account, or one without a profile, which is saved later.
    pub(super) async fn replace_unproven(
        &self,
        client: &ClientContext,
        email: &EmailAddress,
        account: &PoolAccount,
        password: &Secret,
    ) -> Result<PoolAccount, Problem> {
        let admin = self.pool.admin.as_ref().ok_or(Code::Internal)?;
        let id = Uuid::new_v4().to_string();
        let now = self.store.now(&self.clock).await?;
        let due_at = now.plus(REGISTRATION_TIMEOUT);
        self.store
            .insert_registration(&id, email.as_str(), now, due_at)
            .await?;
        admin.delete_user(&account.username).await?;
        let (operation, outcome) = (Operation::PasswordReset, "unverified_account_deleted");
        self.audit.log(client, operation, &account.subject, outcome);
        let created = admin.create_user(email).await?;
        let empty = Map::new();
        let profile = seal_profile(&self.key_ring, &id, &empty);
        self.store
            .set_registration_subject(&id, &created.subject)
            .await?;
        self.store
            .await_confirmation(&id, email.as_str(), &profile, due_at)
            .await?;
        let set = admin.set_password(&created.username, password.expose());
        set.await?;
        let saved =
            self.actor_service
                .save_profile(&created.subject, email, created.is_verified, &empty);
        if saved.await.is_ok() {
            self.store.delete_registrations_of(email.as_str()).await?;
        }
        Ok(created)
    }
}

pub(super) fn seal_profile(key_ring: &KeyRing, id: &str, profile: &Map<String, Value>) -> String {
    key_ring.seal_json(&[PROFILE_CONTEXT, id], profile)
}

/// Returns the profile in the row of a registration, if it has one.
pub(super) fn open_profile(
    key_ring: &KeyRing,
    pending: &PendingRegistration,
) -> Option<Map<String, Value>> {
    let sealed = pending.profile.as_deref()?;
    key_ring.open_json(&[PROFILE_CONTEXT, &pending.id], sealed)
}
