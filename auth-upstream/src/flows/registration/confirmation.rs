//! The confirmation of an address with a code of this service.

use postern_core::Problem;

use super::super::account_codes::{AccountCodes, CodePurpose};
use super::{RegistrationFlow, RegistrationRequest};
use crate::pool::admin::{PoolAccount, PoolAdmin};
use crate::pool::error::PoolCall;
use crate::store::PendingRegistration;

// === impl RegistrationFlow ===

impl RegistrationFlow {
    /// Redeems a code of this service and confirms the user. Returns whether the user was confirmed
    /// before.
    pub(super) async fn redeem(
        &self,
        (codes, admin): (&AccountCodes, &PoolAdmin),
        registration: &RegistrationRequest,
        pending: Option<&PendingRegistration>,
        code: &str,
    ) -> Result<bool, Problem> {
        let email = &registration.email;
        let redeemed = codes.redeem(CodePurpose::Confirmation, email, code).await;
        let account = admin.find_owner(email).await;
        let account = account.map_err(|error| error.problem(PoolCall::Admin));
        let is_confirmed = |account: &PoolAccount| !account.is_unconfirmed;
        let redeemed = match (redeemed, &account) {
            (_, Ok(Some(account))) if is_confirmed(account) => return Ok(true),
            (redeemed, _) => redeemed?,
        };
        let confirmed = async {
            let account = account?;
            self.confirm_user(admin, registration, pending, account.as_ref())
                .await
        };
        let confirmed = confirmed.await;
        if confirmed.is_err() {
            redeemed.give_back().await;
        }
        confirmed.map(|()| false)
    }

    /// Confirms the user of a registration whose code was right. If another registration of the
    /// address has replaced the user meanwhile, the user is created anew, so that whoever can read
    /// the mail decides on the password.
    async fn confirm_user(
        &self,
        admin: &PoolAdmin,
        registration: &RegistrationRequest,
        pending: Option<&PendingRegistration>,
        account: Option<&PoolAccount>,
    ) -> Result<(), Problem> {
        let email = &registration.email;
        let subject = pending.and_then(|pending| pending.subject.as_deref());
        if account.is_none_or(|account| subject != Some(&*account.subject)) {
            if let Some(account) = account {
                let deleted = admin.delete_user(&account.username).await;
                deleted.map_err(|error| error.problem(PoolCall::Admin))?;
            }
            let created = self.pool.sign_up(email, &registration.password).await;
            let created = created.map_err(|error| error.problem(PoolCall::SignUp))?;
            if let Some(pending) = pending {
                self.store
                    .set_registration_subject(&pending.id, &created.subject)
                    .await?;
            }
        }
        let verified = admin.confirm_verified(email.as_str()).await;
        verified.map_err(|error| error.problem(PoolCall::Admin))
    }
}
