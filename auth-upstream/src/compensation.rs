//! Registrations that began and did not end: after a crash, or when a user could not be deleted
//! again.
//!
//! Each is either finished or undone. It is finished if the actor service has the profile, or a
//! social identity has the user, whose profile is saved when the person comes again; otherwise the
//! pool user goes, if it was this registration that made it. The address's lock is held meanwhile,
//! so that a person who tries again is never deleted under their hands.

use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::audit::{self, Act};
use crate::auth::{Auth, Visitor};
use crate::email::Email;
use crate::pool::admin::AdminPool;
use crate::store::{Pending, StoreError};

/// How often it looks.
const EVERY: Duration = Duration::from_secs(15);
/// How many at once.
const BATCH: i64 = 50;
/// The first wait after a failure; it doubles up to an hour.
const BACKOFF: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(3600);

/// What became of one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The profile is there: it had ended well.
    Finished,
    /// The user is gone, or never was.
    Undone,
    /// Something is away.
    Later,
}

// === impl Auth ===

impl Auth {
    /// Looks after unfinished registrations until the stop begins.
    pub(crate) async fn compensate(&self, shutdown: &CancellationToken) {
        loop {
            if let Err(error) = self.compensate_due().await {
                tracing::warn!(%error, "unfinished registrations cannot be read");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// One look: how many registrations were finished or undone. Tests drive this.
    pub(crate) async fn compensate_due(&self) -> Result<usize, StoreError> {
        let mut ended = 0;
        for pending in self
            .store
            .due_registrations(self.clock.now(), BATCH)
            .await?
        {
            ended += usize::from(self.settle(&pending).await?);
        }
        self.metrics
            .pending_registrations
            .set(self.store.count_registrations().await?);
        Ok(ended)
    }

    async fn settle(&self, pending: &Pending) -> Result<bool, StoreError> {
        let verdict = match Email::parse(&pending.email) {
            Some(email) => match self.lock_address(&email).await {
                Ok(guard) => {
                    // It may have ended while we waited for the lock.
                    let judge = async {
                        let found = self.store.registration(&pending.id).await?;
                        let Some(pending) = found else {
                            return Ok::<_, StoreError>(None);
                        };
                        Ok(Some(self.judge(&pending, &email).await))
                    };
                    let verdict = guard
                        .run(Box::pin(judge))
                        .await
                        .unwrap_or(Ok(Some(Verdict::Later)));
                    let Some(verdict) = verdict? else {
                        return Ok(false);
                    };
                    verdict
                }
                Err(_) => Verdict::Later,
            },
            None => Verdict::Undone,
        };
        let visitor = Visitor {
            request_id: pending.id.as_str().into(),
            address: None,
        };
        let subject = pending.subject.as_deref().unwrap_or_default();
        let word = match verdict {
            Verdict::Finished => "finished",
            Verdict::Undone => "undone",
            Verdict::Later => {
                let doublings = u32::try_from(pending.attempts.clamp(0, 7)).unwrap_or(7);
                let wait = (BACKOFF * 2_u32.pow(doublings)).min(LONGEST);
                self.store
                    .postpone_registration(&pending.id, self.clock.now().plus(wait))
                    .await?;
                return Ok(false);
            }
        };
        self.store.end_registration(&pending.id).await?;
        audit::record(&visitor, Act::Compensate, subject, word);
        self.metrics.count(Act::Compensate, word);
        Ok(true)
    }

    /// What becomes of a registration whose address is locked; a user that it made and did not
    /// finish is deleted.
    pub(crate) async fn judge(&self, pending: &Pending, email: &Email) -> Verdict {
        let Some(admin) = &self.pool.admin else {
            // Without credentials nobody can be deleted: the same registration again finishes what
            // began.
            return Verdict::Later;
        };
        let subject = match self.made_by(admin, pending, email).await {
            Ok(Some(subject)) => subject,
            Ok(None) => return Verdict::Undone,
            Err(()) => return Verdict::Later,
        };
        match self.store.has_social_identity(&subject).await {
            Ok(true) => return Verdict::Finished,
            Ok(false) => {}
            Err(_) => return Verdict::Later,
        }
        match self.actors.has(&subject).await {
            Ok(true) => Verdict::Finished,
            Ok(false) => match admin.delete(&subject).await {
                Ok(()) => Verdict::Undone,
                Err(_) => Verdict::Later,
            },
            Err(_) => Verdict::Later,
        }
    }

    /// The user that this registration made. Where the answer to SignUp was never noted, it is the
    /// one with this address, if it is not older than the registration.
    async fn made_by(
        &self,
        admin: &AdminPool,
        pending: &Pending,
        email: &Email,
    ) -> Result<Option<String>, ()> {
        if let Some(subject) = &pending.subject {
            return Ok(Some(subject.clone()));
        }
        let found = admin.find(email.as_str()).await.map_err(drop)?;
        // The pool's clock counts whole seconds and may be a little behind ours.
        let earliest = pending.began_at.saturating_sub(5_000);
        Ok(found
            .filter(|account| account.created_at.0 >= earliest)
            .map(|account| account.subject))
    }
}
