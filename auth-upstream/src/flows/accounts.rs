//! What operators see of accounts and change in them.

use std::sync::Arc;

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};
use serde_json::{Value, json};

use super::{FlowParts, PasswordFlow, cache_unavailable};
use crate::account_messages::AccountNotice;
use crate::client::ClientContext;
use crate::crypto::random;
use crate::pool::admin::PoolAdmin;
use crate::pool::error::{PoolCall, PoolError};
use crate::telemetry::{AuditedResult, Completed, Operation};

/// Lists and changes accounts for operators.
#[derive(Clone, Debug)]
pub(crate) struct AccountsFlow {
    pub(crate) parts: Arc<FlowParts>,
    pub(crate) password: PasswordFlow,
}

/// A change of an account.
#[derive(Debug)]
pub(crate) enum AccountChange {
    Enable,
    /// Refuses sign-ins and revokes all refresh tokens.
    Disable,
    SignOut,
    /// Replaces the password by a random one and sends a code for a new one.
    ResetPassword,
    SetPassword(Secret),
    AddToGroup(String),
    RemoveFromGroup(String),
}

// === impl AccountChange ===

impl AccountChange {
    fn operation(&self) -> Operation {
        match self {
            Self::Enable => Operation::EnableAccount,
            Self::Disable => Operation::DisableAccount,
            Self::SignOut => Operation::SignOutEverywhere,
            Self::ResetPassword | Self::SetPassword(_) => Operation::SetPassword,
            Self::AddToGroup(_) | Self::RemoveFromGroup(_) => Operation::ChangeGroups,
        }
    }
}

// === impl AccountsFlow ===

impl AccountsFlow {
    /// Lists users by the beginning of their address.
    ///
    /// # Errors
    /// `not_found` without AWS credentials; the problem codes of pool errors.
    pub(crate) async fn list(
        &self,
        email: Option<&str>,
        cursor: Option<String>,
    ) -> Result<Value, Problem> {
        let filter = email.map(|email| ("email ^=", email));
        let page = self.admin()?.list_users(filter, cursor).await;
        page.map_err(|error| problem(&error))
    }

    /// Returns a user with its groups, and all groups of the pool.
    ///
    /// # Errors
    /// `not_found` for an unknown subject, and as [`AccountsFlow::list`].
    pub(crate) async fn describe(&self, subject: &str) -> Result<Value, Problem> {
        let (admin, mut user) = self.find(subject).await?;
        user["groups"] = json!(
            admin
                .groups(user["username"].as_str())
                .await
                .map_err(|error| problem(&error))?
        );
        user["allGroups"] = json!(admin.groups(None).await.map_err(|error| problem(&error))?);
        Ok(user)
    }

    /// Changes an account. Access tokens that were issued before remain valid until they expire.
    ///
    /// # Errors
    /// `weak_password`, `validation_failed` for an unknown group, and as [`AccountsFlow::describe`].
    pub(crate) async fn change(
        &self,
        client: &ClientContext,
        subject: &str,
        change: &AccountChange,
    ) -> AuditedResult<()> {
        let outcome = Box::pin(self.try_change(client, subject, change)).await;
        let outcome = outcome.map(|()| Completed {
            subject: subject.to_owned(),
            value: (),
        });
        self.audit.complete(client, change.operation(), outcome)
    }

    async fn try_change(
        &self,
        client: &ClientContext,
        subject: &str,
        change: &AccountChange,
    ) -> Result<(), Problem> {
        let (admin, user) = self.find(subject).await?;
        let name = user["username"].as_str().unwrap_or_default();
        let email = user["email"].as_str().and_then(EmailAddress::parse);
        let mut work = Box::pin(self.apply(client, (admin, name), subject, email.as_ref(), change));
        // As a reset, but also without the lock: an outage or whoever holds it must not prevent the change.
        if let Some(email) = &email {
            let locked = async { Ok::<_, Problem>(work.as_mut().await) };
            if let Ok(changed) = self.locks.with_address(email, locked).await {
                return changed;
            }
        }
        work.await
    }

    async fn apply(
        &self,
        client: &ClientContext,
        (admin, name): (&PoolAdmin, &str),
        subject: &str,
        email: Option<&EmailAddress>,
        change: &AccountChange,
    ) -> Result<(), Problem> {
        let changed = match change {
            AccountChange::Enable => admin.enable(name).await,
            AccountChange::Disable => admin.disable(name).await,
            AccountChange::SignOut => Ok(()),
            AccountChange::ResetPassword => admin.set_password(name, &random::password()).await,
            AccountChange::SetPassword(new) => admin.set_password(name, new.expose()).await,
            AccountChange::AddToGroup(group) => {
                if !admin
                    .groups(None)
                    .await
                    .map_err(|error| problem(&error))?
                    .contains(group)
                {
                    let detail = "is not a group of the pool";
                    let problem = Problem::new(Code::ValidationFailed);
                    return Err(problem.error("/group", "unknown_group", detail));
                }
                admin.add_to_group(name, group).await
            }
            AccountChange::RemoveFromGroup(group) => admin.remove_from_group(name, group).await,
        };
        changed.map_err(|error| problem(&error))?;
        let operation = change.operation();
        if matches!(
            operation,
            Operation::EnableAccount | Operation::ChangeGroups
        ) {
            return Ok(());
        }
        let (Operation::SetPassword, Some(email)) = (operation, email) else {
            return self.end_sign_ins(email, Some(name)).await;
        };
        // Each step, also after one that has failed.
        let unlinked = self.remove_links(email, subject).await;
        let ended = self.end_sign_ins(Some(email), Some(name)).await;
        let limiter = self.guard.limiter();
        let forgotten = limiter.forget_trusted_networks(email.as_str()).await;
        if matches!(change, AccountChange::ResetPassword) {
            self.password.request_code(client.clone(), email.clone());
        } else {
            let notice = AccountNotice::PasswordChanged;
            let messages = self.guard.messages();
            messages.notice(notice, email, Some(subject), client);
        }
        unlinked
            .and(ended)
            .and(forgotten.map_err(cache_unavailable))
    }

    async fn find(&self, subject: &str) -> Result<(&PoolAdmin, Value), Problem> {
        let admin = self.admin()?;
        // A user name may be an address, which no path and no log has.
        let found = admin.list_users(Some(("sub =", subject)), None).await;
        let user = &found.map_err(|error| problem(&error))?["users"][0];
        if user.is_null() {
            return Err(Problem::new(Code::NotFound).detail("the pool has no such user"));
        }
        Ok((admin, user.clone()))
    }

    fn admin(&self) -> Result<&PoolAdmin, Problem> {
        let detail = "postern-auth has no AWS credentials for its pool";
        let admin = self.pool.admin.as_ref();
        admin.ok_or_else(|| Problem::new(Code::NotFound).detail(detail))
    }
}

fn problem(error: &PoolError) -> Problem {
    error.problem(PoolCall::Admin)
}
