//! `POST /auth/password/forgot` and `/auth/password/reset`.

use postern_common::{Code, Problem, Secret};

use crate::audit::Act;
use crate::auth::{Auth, Visitor};
use crate::email::Email;
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
    /// Has a code sent, if there is such a user. The answer never tells whether there is: only faults that
    /// concern every address alike are told.
    pub(crate) async fn forgot_password(&self, email: &Email) -> Result<(), Problem> {
        let Err(fault) = self.pool.forgot_password(email).await else { return Ok(()) };
        match fault.code(Operation::ForgotPassword) {
            Code::IdpMisconfigured | Code::Unavailable => Err(fault.problem(Operation::ForgotPassword)),
            _ => Ok(()),
        }
    }

    /// Sets the new password.
    pub(crate) async fn reset_password(&self, visitor: &Visitor, reset: &Reset) -> Result<(), Problem> {
        let outcome = self.pool.reset_password(&reset.email, &reset.code, &reset.new_password).await;
        let outcome = outcome.map_err(|fault| fault.problem(Operation::ResetPassword));
        self.ended(visitor, Act::PasswordReset, outcome.map(|()| (String::new(), ())))
    }
}
