//! `POST /auth/password/forgot` and `/auth/password/reset`.

use std::sync::Arc;

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};
use tokio::task::JoinHandle;

use super::account_codes::CodePurpose;
use super::attempt_guard::{AccountAttempt, AttemptError};
use super::{Flows, cache_unavailable, run_to_completion};
use crate::account_messages::AccountNotice;
use crate::client::ClientContext;
use crate::pool::admin::PoolAdmin;
use crate::pool::error::PoolFault;
use crate::protection::AttemptKind;
use crate::telemetry::{AuditedResult, Completed, Operation, log_consequence};

pub(crate) const MAX_CODE_REQUESTS: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct ResetRequest {
    pub(crate) email: EmailAddress,
    pub(crate) code: String,
    pub(crate) new_password: Secret,
}

// === impl Flows ===

impl Flows {
    /// Requests a code in a background task, so that response and response time are the same for
    /// every address, registered or not. Returns the task for tests, or `None` if
    /// [`MAX_CODE_REQUESTS`] are in progress.
    pub(crate) fn request_code(
        self: &Arc<Self>,
        client: ClientContext,
        email: EmailAddress,
    ) -> Option<JoinHandle<()>> {
        let Ok(permit) = Arc::clone(&self.code_requests).try_acquire_owned() else {
            log_consequence!("password reset code not requested, too many in progress");
            return None;
        };
        let flows = Arc::clone(self);
        Some(postern_core::trace::spawn(async move {
            flows.send_reset_code(&client, &email).await;
            drop(permit);
        }))
    }

    async fn send_reset_code(&self, client: &ClientContext, email: &EmailAddress) {
        client.details.set_email(email);
        let operation = Operation::RequestResetCode;
        // Logs failures only, not that the user does not exist.
        let sending = Box::pin(async {
            match self.own_codes() {
                Some(admin) => self.send_own_code(admin, email, client).await,
                None => Ok(self.pool.forgot_password(email).await?),
            }
        });
        let sent = self.limit_codes(AttemptKind::ResetRequest, client, email, sending);
        let outcome = match sent.await {
            None => Code::RateLimited.as_str(),
            Some(Err(problem)) => problem.code().as_str(),
            Some(Ok(())) => "ok",
        };
        self.audit.record(client, operation, "", outcome);
    }

    /// Sets a new password, revokes all refresh tokens of the user and forgets the trusted
    /// networks. Completes even if the client disconnects.
    ///
    /// # Errors
    /// `invalid_code` for a wrong code and an unknown user alike; `weak_password`; the problem
    /// codes of pool errors.
    pub(crate) async fn reset_password(
        self: &Arc<Self>,
        client: &ClientContext,
        request: &ResetRequest,
    ) -> AuditedResult<()> {
        client.details.set_email(&request.email);
        let (flows, owned_client, request) = (Arc::clone(self), client.clone(), request.clone());
        let outcome = run_to_completion(async move {
            Box::pin(flows.limited_reset(&owned_client, &request)).await
        })
        .await;
        let completed = outcome.map(|subject| Completed::new(subject.unwrap_or_default(), ()));
        self.audit
            .complete(client, Operation::PasswordReset, completed)
    }

    async fn limited_reset(
        &self,
        client: &ClientContext,
        request: &ResetRequest,
    ) -> Result<Option<String>, Problem> {
        let account = request.email.as_str();
        let (kind, code) = (AttemptKind::ResetCode, Code::InvalidCode);
        let attempt = AccountAttempt::new(kind, client, account, code);
        let reset = Box::pin(self.try_reset(client, request));
        let subject = self.evaluate(attempt, reset).await?;
        let notice = AccountNotice::PasswordChanged;
        self.messages
            .notice(notice, &request.email, subject.as_deref(), client);
        Ok(subject)
    }

    /// Resets the password, ends what somebody else may have begun, and returns the user's subject if it
    /// can be found. If the latter fails, the code of this service can be used again.
    async fn try_reset(
        &self,
        client: &ClientContext,
        request: &ResetRequest,
    ) -> Result<Option<String>, AttemptError> {
        let (email, code) = (&request.email, &request.code);
        let work = async {
            let Some(admin) = self.own_codes() else {
                let password = &request.new_password;
                // The pool's code is used up by the call: what fails before can be repeated.
                self.renew_stamps(&[email.as_str()]).await?;
                self.pool.reset_password(email, code, password).await?;
                return self.end_earlier_sign_ins(client, email).await;
            };
            let redeemed = self.redeem_code(CodePurpose::Reset, email, code).await?;
            let done = async {
                self.renew_stamps(&[email.as_str()]).await?;
                self.set_password(admin, client, request).await?;
                self.end_earlier_sign_ins(client, email).await
            };
            let done = done.await;
            if done.is_err() {
                self.give_back(redeemed).await;
            }
            done
        };
        let done: Result<_, Problem> = self.with_address(email, Box::pin(work)).await;
        Ok(done?)
    }

    /// Sets the password of an account whose owner has proven the address. If nobody had proven it
    /// before, the account is replaced, unless an operator has created it:
    /// registrations save a profile.
    async fn set_password(
        &self,
        admin: &PoolAdmin,
        client: &ClientContext,
        request: &ResetRequest,
    ) -> Result<(), Problem> {
        let (email, password) = (&request.email, &request.new_password);
        let account = admin.find_owner(email).await?;
        let account = account.filter(|account| account.is_enabled);
        let account = account.ok_or(Code::InvalidCode)?;
        let is_kept = account.is_verified || {
            let has_profile = self.actor_service.has_profile(&account.subject);
            account.is_invited && !has_profile.await.map_err(|_| Code::Unavailable)?
        };
        if is_kept && !account.is_verified {
            // First, because a new password ends the invitation.
            admin.verify_email(&account.username).await?;
        }
        // Before a replacement as well: a password that the pool refuses must change nothing.
        let set = admin.set_password(&account.username, password.expose());
        set.await?;
        if is_kept {
            return Ok(());
        }
        self.replace_unproven(client, email, &account, password)
            .await
            .map(drop)
    }

    /// Removes the social links of an account, ends its sign-ins and forgets the networks that may have
    /// been trusted for an attacker who knew the old password. The address is locked, so that no link is
    /// made meanwhile.
    async fn end_earlier_sign_ins(
        &self,
        client: &ClientContext,
        email: &EmailAddress,
    ) -> Result<Option<String>, Problem> {
        let found = match &self.pool.admin {
            Some(admin) => {
                let owner = admin.find_owner(email).await?;
                owner.map(|it| (it.subject, it.username))
            }
            None if self.pool.has_social_sign_in() => {
                let started = self.pool.start_social_sign_in(email.as_str()).await;
                let owner = started.map_err(PoolFault::of_operator)?;
                let owner = owner.filter(|it| it.account.has_email(email));
                owner.map(|it| (it.account.subject, it.username))
            }
            None => None,
        };
        let (subject, username) = found.unzip();
        let unlinked = match &subject {
            Some(subject) => self.remove_links(email, subject).await,
            None => Ok(()),
        };
        let ended = self.end_sign_ins(Some(email), username.as_deref()).await;
        let account = email.as_str();
        let trusted = self.limiter.trust_only(client, account, subject.as_deref());
        let trusted = trusted.await.map_err(cache_unavailable);
        unlinked.and(ended).and(trusted).map(|()| subject)
    }

    /// Sends a code to an address that has an account which may sign in, in the locale of its person.
    async fn send_own_code(
        &self,
        admin: &PoolAdmin,
        email: &EmailAddress,
        client: &ClientContext,
    ) -> Result<(), Problem> {
        let account = admin.find_owner(email).await?;
        let Some(account) = account.filter(|account| account.is_enabled) else {
            return Ok(());
        };
        let client = self.messages.client_of(&account.subject, client).await;
        self.issue_code(CodePurpose::Reset, email, &client).await
    }
}
