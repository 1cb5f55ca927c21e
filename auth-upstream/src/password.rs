//! `POST /auth/password/forgot` and `/auth/password/reset`.

use std::sync::Arc;

use postern_common::{Code, Problem, Secret};
use tokio::task::JoinHandle;

use crate::abuse::Door;
use crate::audit::Act;
use crate::auth::{Auth, Refused, Visitor, is_unseen};
use crate::email::Email;
use crate::log_limit::log_limited;
use crate::pool::fault::Operation;

/// A new password with the code that allows it.
#[derive(Clone, Debug)]
pub(crate) struct Reset {
    pub(crate) email: Email,
    pub(crate) code: String,
    pub(crate) new_password: Secret,
}

// === impl Auth ===

impl Auth {
    /// Has a code sent, if there is such a user. The answer does not wait for it: it is the same,
    /// after the same time, for every address. Tests wait for the task.
    pub(crate) fn forgot_password(
        self: &Arc<Self>,
        visitor: Visitor,
        email: Email,
    ) -> Option<JoinHandle<()>> {
        let Ok(permit) = Arc::clone(&self.codes).try_acquire_owned() else {
            log_limited!(
                warn,
                "too many codes for a new password are being asked for; one is left out"
            );
            return None;
        };
        let auth = Arc::clone(self);
        Some(tokio::spawn(async move {
            auth.send_code(&visitor, &email).await;
            drop(permit);
        }))
    }

    async fn send_code(&self, visitor: &Visitor, email: &Email) {
        let Some(mut attempt) = self
            .abuse
            .admit(Door::Forgot, visitor, email.as_str())
            .await
        else {
            self.metrics.held(Door::Forgot);
            return;
        };
        // Every mail counts, wanted or not.
        self.abuse.failed(&mut attempt).await;
        if let Err(fault) = self.pool.forgot_password(email).await {
            // Logs what concerns every address alike; that there is no such user is nobody's
            // business.
            let problem = fault.problem(Operation::ForgotPassword);
            if is_unseen(problem.code()) {
                self.abuse.refund(attempt).await;
            }
        }
    }

    /// Sets the new password.
    pub(crate) async fn reset_password(
        &self,
        visitor: &Visitor,
        reset: &Reset,
    ) -> Result<(), Problem> {
        let door = (Door::Reset, Code::InvalidCode);
        let outcome = self
            .guarded(door, visitor, reset.email.as_str(), self.try_reset(reset))
            .await;
        if let Ok(subject) = &outcome {
            // Whoever knew the password that was may have been trusted elsewhere.
            self.abuse.forget_networks(reset.email.as_str()).await;
            self.abuse
                .trust_network(visitor, reset.email.as_str(), subject.as_deref())
                .await;
        }
        self.ended(
            visitor,
            Act::PasswordReset,
            outcome.map(|subject| (subject.unwrap_or_default(), ())),
        )
    }

    /// The subject whose password is new, where the pool tells it.
    async fn try_reset(&self, reset: &Reset) -> Result<Option<String>, Refused> {
        let outcome = self
            .pool
            .reset_password(&reset.email, &reset.code, &reset.new_password)
            .await;
        outcome.map_err(|fault| fault.problem(Operation::ResetPassword))?;
        Ok(self.begin_anew(&reset.email).await)
    }

    /// Whoever signed in before may be the one for whose sake the password was reset: Cognito lets
    /// them stay, so that we end it. And from now on the person has a password, which a social
    /// sign-in must not replace.
    async fn begin_anew(&self, email: &Email) -> Option<String> {
        let admin = self.pool.admin.as_ref()?;
        let account = match admin.find(email.as_str()).await {
            Ok(Some(account)) => account,
            Ok(None) => return None,
            Err(fault) => {
                log_limited!(warn, %fault, "a new password did not end earlier sign-ins");
                return None;
            }
        };
        if let Err(fault) = admin.sign_out_everywhere(&account.username).await {
            log_limited!(warn, %fault, "a new password did not end earlier sign-ins");
        }
        if let Err(error) = self
            .store
            .mark_own_password(&account.username, self.clock.now())
            .await
        {
            log_limited!(warn, %error, "a new password is not noted for social sign-in");
        }
        Some(account.subject)
    }
}
