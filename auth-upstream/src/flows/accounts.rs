//! What operators see of accounts and change in them.

use std::sync::Arc;

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};
use serde_json::{Value, json};

use super::{Flows, cache_unavailable};
use crate::account_messages::AccountNotice;
use crate::client::ClientContext;
use crate::crypto::random;
use crate::pool::admin::PoolAdmin;
use crate::telemetry::{AuditedResult, Completed, Operation};

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

// === impl Flows ===

impl Flows {
    /// Lists users by the beginning of their address.
    pub(crate) async fn list_accounts(
        &self,
        email: Option<&str>,
        cursor: Option<String>,
    ) -> Result<Value, Problem> {
        let filter = email.map(|email| ("email ^=", email));
        Ok(self.require_admin()?.list_users(filter, cursor).await?)
    }

    /// Returns a user with its groups, and all groups of the pool.
    pub(crate) async fn describe_account(&self, subject: &str) -> Result<Value, Problem> {
        let (admin, mut user) = self.find_account(subject).await?;
        user["groups"] = json!(admin.groups(user["username"].as_str()).await?);
        user["allGroups"] = json!(admin.groups(None).await?);
        Ok(user)
    }

    /// Changes an account. Access tokens that were issued before remain valid until they expire.
    pub(crate) async fn change_account(
        self: &Arc<Self>,
        client: &ClientContext,
        subject: &str,
        change: &AccountChange,
    ) -> AuditedResult<()> {
        let outcome = Box::pin(self.try_change_account(client, subject, change)).await;
        let outcome = outcome.map(|()| Completed::new(subject, ()));
        self.audit.complete(client, change.operation(), outcome)
    }

    async fn try_change_account(
        self: &Arc<Self>,
        client: &ClientContext,
        subject: &str,
        change: &AccountChange,
    ) -> Result<(), Problem> {
        let (admin, user) = self.find_account(subject).await?;
        let name = user["username"].as_str().unwrap_or_default();
        let email = user["email"].as_str().and_then(EmailAddress::parse);
        let user = (name, subject, email.as_ref());
        let mut work = Box::pin(self.apply_change(client, admin, user, change));
        // As a reset, but also without the lock: an outage or whoever holds it must not prevent the change.
        if let Some(email) = &email {
            let locked = async { Ok::<_, Problem>(work.as_mut().await) };
            if let Ok(changed) = self.with_address(email, locked).await {
                return changed;
            }
        }
        work.await
    }

    async fn apply_change(
        self: &Arc<Self>,
        client: &ClientContext,
        admin: &PoolAdmin,
        (name, subject, email): (&str, &str, Option<&EmailAddress>),
        change: &AccountChange,
    ) -> Result<(), Problem> {
        match change {
            AccountChange::Enable => admin.enable(name).await?,
            AccountChange::Disable => admin.disable(name).await?,
            AccountChange::SignOut => {}
            AccountChange::ResetPassword => admin.set_password(name, &random::password()).await?,
            AccountChange::SetPassword(new) => admin.set_password(name, new.expose()).await?,
            AccountChange::AddToGroup(group) => {
                if !admin.groups(None).await?.contains(group) {
                    let detail = "is not a group of the pool";
                    let problem = Problem::new(Code::ValidationFailed);
                    return Err(problem.error("/group", "unknown_group", detail));
                }
                admin.add_to_group(name, group).await?;
            }
            AccountChange::RemoveFromGroup(group) => admin.remove_from_group(name, group).await?,
        }
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
        let forgotten = self.limiter.forget_trusted_networks(email.as_str()).await;
        if matches!(change, AccountChange::ResetPassword) {
            self.request_code(client.clone(), email.clone());
        } else {
            let notice = AccountNotice::PasswordChanged;
            self.messages.notice(notice, email, Some(subject), client);
        }
        unlinked
            .and(ended)
            .and(forgotten.map_err(cache_unavailable))
    }

    async fn find_account(&self, subject: &str) -> Result<(&PoolAdmin, Value), Problem> {
        let admin = self.require_admin()?;
        // A user name may be an address, which no path and no log has.
        let found = admin.list_users(Some(("sub =", subject)), None).await?;
        let user = &found["users"][0];
        if user.is_null() {
            return Err(Problem::new(Code::NotFound).detail("the pool has no such user"));
        }
        Ok((admin, user.clone()))
    }

    fn require_admin(&self) -> Result<&PoolAdmin, Problem> {
        let detail = "postern-auth has no AWS credentials for its pool";
        let admin = self.pool.admin.as_ref();
        admin.ok_or_else(|| Problem::new(Code::NotFound).detail(detail))
    }
}
