//! The confirmation of an address with a code of this service.

use postern_core::Problem;

use super::super::Flows;
use super::super::account_codes::CodePurpose;
use super::RegistrationRequest;
use crate::pool::admin::{PoolAccount, PoolAdmin};
use crate::store::PendingRegistration;

// === impl Flows ===

impl Flows {
    /// Redeems a code of this service and confirms the user. Returns whether the user was confirmed
    /// before.
    pub(super) async fn redeem_confirmation(
        &self,
        admin: &PoolAdmin,
        registration: &RegistrationRequest,
        pending: Option<&PendingRegistration>,
        code: &str,
    ) -> Result<bool, Problem> {
        let email = &registration.email;
        let redeemed = self.redeem_code(CodePurpose::Confirmation, email, code);
        let redeemed = redeemed.await;
        let account = admin.find_owner(email).await;
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
            self.give_back(redeemed).await;
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
                admin.delete_user(&account.username).await?;
            }
            let created = self.pool.sign_up(email, &registration.password).await?;
            if let Some(pending) = pending {
                self.store
                    .set_registration_subject(&pending.id, &created.subject)
                    .await?;
            }
        }
        admin.confirm_sign_up(email.as_str()).await?;
        Ok(admin.verify_email(email.as_str()).await?)
    }
}
