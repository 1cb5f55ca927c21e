//! Evaluation of attempts under the attempt limits, with uniform errors and response times.

use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::token::oidc::IdToken;
use postern_core::{Code, Problem, Secret};
use tokio::time::Instant;

use super::token_set::SignedInUser;
use super::{Flows, is_not_evaluated};
use crate::account_messages::AccountNotice;
use crate::client::{ClientContext, RequestDetails};
use crate::pool::error::PoolFault;
use crate::protection::{Attempt, AttemptKind, CredentialDigest};
use crate::telemetry::log_limited;

/// `Retry-After` of a throttled anonymous attempt, in seconds. An estimate, since delays double.
const THROTTLED_RETRY_AFTER_S: u32 = 60;

/// The reason, in audit events, of attempts that were not evaluated.
const THROTTLED: &str = "throttled";
/// The reason, in audit events, of right passwords that have been accepted too often.
const SIGN_IN_QUOTA: &str = "sign_in_quota";

#[derive(Clone, Copy, Debug)]
pub(super) struct AccountAttempt<'a> {
    kind: AttemptKind,
    client: &'a ClientContext,
    /// The e-mail address or user name of the account.
    account: &'a str,
    /// The problem code of a wrong guess. A throttled attempt gets it as well.
    failure_code: Code,
}

#[derive(Debug)]
pub(super) struct AttemptError {
    pub(super) problem: Problem,
    /// Whether the guess was right and the attempt failed for another reason, such as a challenge.
    pub(super) is_proven: bool,
}

// === impl Flows ===

impl Flows {
    /// Trusts the client's network after a completed sign-in that started at `started_at`, and
    /// tells the owner of the account if the sign-in is the first one from there.
    pub(super) async fn trust_network(
        &self,
        client: &ClientContext,
        email: &EmailAddress,
        subject: &str,
        started_at: Timestamp,
    ) {
        let (account, subject) = (email.as_str(), Some(subject));
        let limiter = &self.limiter;
        let trusting = limiter.trust_network(client, account, subject, started_at);
        if trusting.await {
            let notice = AccountNotice::NewNetwork;
            self.messages.notice(notice, email, subject, client);
        }
    }

    /// Counts and logs a throttled attempt. The account is not logged: it may be an e-mail address.
    fn record_throttled(&self, kind: AttemptKind, client: &ClientContext) {
        let _ = client.details.reason.set(THROTTLED);
        let (kind, request_id) = (kind.name(), &*client.request_id);
        let throttled = &self.metrics.own.attempts_throttled;
        throttled.with_label_values(&[kind]).inc();
        log_limited!(warn, kind, request_id, "attempts throttled");
    }

    /// Evaluates an attempt unless it is throttled. A throttled attempt gets the problem of a wrong
    /// guess, after as long a time.
    pub(super) async fn evaluate<T>(
        &self,
        attempt: AccountAttempt<'_>,
        evaluation: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, Problem> {
        let evaluation = Box::pin(evaluation);
        self.evaluate_with(attempt, |_| evaluation).await
    }

    /// Evaluates an attempt as [`Flows::evaluate`] does; the evaluation depends on how the
    /// attempt is counted.
    async fn evaluate_with<T, F>(
        &self,
        attempt: AccountAttempt<'_>,
        evaluation: impl FnOnce(&Attempt) -> F,
    ) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, AttemptError>>,
    {
        let AccountAttempt {
            kind,
            client,
            account,
            failure_code,
        } = attempt;
        let started_at = Instant::now();
        let Some(mut attempt) = self.limiter.admit(kind, client, account).await else {
            self.record_throttled(kind, client);
            self.padding.pad(kind, started_at).await;
            return Err(failure_code.into());
        };
        let outcome = evaluation(&attempt).await;
        match outcome
            .as_ref()
            .map_err(|error| (error.is_proven, error.problem.code()))
        {
            Ok(_) => self.limiter.record_success(attempt).await,
            // A further challenge does not prove that the last response was right: a pool repeats a
            // custom challenge after a wrong one. The attempt was counted on admission.
            Err((true, _)) if kind == AttemptKind::SecondFactor => attempt.settle().await,
            Err((true, _)) => self.limiter.record_success(attempt).await,
            Err((false, code)) if code == failure_code => {
                self.limiter.record_failure(&mut attempt).await;
                self.padding.record(kind, started_at).await;
            }
            Err((false, code)) if is_not_evaluated(code) => self.limiter.refund(attempt).await,
            // Other errors say nothing of the guess. They count for the address, so that one client
            // cannot use up the attempts of many accounts.
            Err((false, _)) => self.limiter.record_failure(&mut attempt).await,
        }
        outcome.map_err(|error| error.problem)
    }

    /// Evaluates a password as [`Flows::evaluate`] does, and limits how often the right one
    /// is accepted.
    pub(super) async fn evaluate_password(
        &self,
        attempt: AccountAttempt<'_>,
        password: &Secret,
        evaluation: impl Future<Output = Result<SignedInUser, AttemptError>>,
    ) -> Result<SignedInUser, Problem> {
        let evaluation = Box::pin(evaluation);
        // The quota is read for admitted attempts only: it would reveal that a password is right.
        let limited = |admitted: &Attempt| {
            let credential = self.limiter.credential_digest(admitted, password);
            let details = &attempt.client.details;
            Box::pin(async move { self.apply_quota(&credential, details, evaluation).await })
        };
        self.evaluate_with(attempt, limited).await
    }

    async fn apply_quota(
        &self,
        credential: &CredentialDigest,
        details: &RequestDetails,
        evaluation: impl Future<Output = Result<SignedInUser, AttemptError>>,
    ) -> Result<SignedInUser, AttemptError> {
        if let Some(wait) = self.limiter.quota_wait(credential).await {
            // The pool was not asked: the password may have been changed since, so that this is no
            // proof and must not reset the account's failures.
            return Err(self.too_many_sign_ins(details, wait).into());
        }
        let outcome = evaluation.await;
        let is_proven = match &outcome {
            Ok(_) => true,
            Err(error) => error.is_proven,
        };
        if !is_proven {
            return outcome;
        }
        let Some(wait) = self.limiter.count_sign_in(credential).await else {
            return outcome;
        };
        if let Ok(signed_in) = outcome {
            self.discard(&signed_in).await;
        }
        let problem = self.too_many_sign_ins(details, wait);
        Err(AttemptError::after_proof(problem))
    }

    /// Admits an attempt that names no account.
    pub(super) async fn admit_anonymous(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
    ) -> Result<Attempt, Problem> {
        let attempt = self.limiter.check_anonymous(kind, client).await;
        attempt.ok_or_else(|| {
            self.record_throttled(kind, client);
            Problem::new(Code::RateLimited).retry_after(THROTTLED_RETRY_AFTER_S)
        })
    }

    /// Counts a sign-in of a social identity.
    pub(super) async fn count_social_sign_in(
        &self,
        client: &ClientContext,
        id: &IdToken,
    ) -> Result<(), Problem> {
        let identity = self.limiter.social_digest(&id.issuer, &id.subject);
        match self.limiter.count_sign_in(&identity).await {
            None => Ok(()),
            Some(wait) => Err(self.too_many_sign_ins(&client.details, wait)),
        }
    }

    /// Counts and logs a right password, or a social identity, that is accepted too often.
    fn too_many_sign_ins(&self, details: &RequestDetails, wait: Duration) -> Problem {
        let _ = details.reason.set(SIGN_IN_QUOTA);
        self.metrics.own.sign_in_quota_exceeded.inc();
        log_limited!(warn, "sign-in quota exceeded");
        let seconds = u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        Problem::new(Code::RateLimited).retry_after(seconds.max(1))
    }

    /// Runs `sending`, which sends a code. Returns `None` if many were requested for the address: the
    /// last one stays valid then, so that its owner is neither flooded nor kept out.
    pub(super) async fn limit_codes(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
        address: &EmailAddress,
        sending: impl Future<Output = Result<(), Problem>>,
    ) -> Option<Result<(), Problem>> {
        let admitted = self.limiter.admit(kind, client, address.as_str()).await;
        let Some(mut attempt) = admitted else {
            self.record_throttled(kind, client);
            return None;
        };
        let sent = sending.await;
        match &sent {
            Err(problem) if is_not_evaluated(problem.code()) => self.limiter.refund(attempt).await,
            // Each message counts as a failure, because an attacker may request it.
            Ok(()) | Err(_) => self.limiter.record_failure(&mut attempt).await,
        }
        Some(sent)
    }
}

// === impl AccountAttempt ===

impl<'a> AccountAttempt<'a> {
    pub(super) fn new(
        kind: AttemptKind,
        client: &'a ClientContext,
        account: &'a str,
        failure_code: Code,
    ) -> Self {
        Self {
            kind,
            client,
            account,
            failure_code,
        }
    }
}

// === impl AttemptError ===

impl AttemptError {
    pub(super) fn after_proof(problem: Problem) -> Self {
        Self {
            problem,
            is_proven: true,
        }
    }
}

impl From<Problem> for AttemptError {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            is_proven: false,
        }
    }
}

impl From<PoolFault> for AttemptError {
    fn from(fault: PoolFault) -> Self {
        Problem::from(fault).into()
    }
}

impl From<Code> for AttemptError {
    fn from(code: Code) -> Self {
        Problem::new(code).into()
    }
}
