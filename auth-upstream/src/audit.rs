//! The audit log: who did what, with what outcome, in which request. Events go to the log under the
//! target `postern_auth::audit`; never a token, password or address stands in one.

use crate::auth::Visitor;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    SignIn,
    Register,
    Refresh,
    RefreshReuse,
    SignOut,
    PasswordReset,
    SocialSignIn,
    SocialLink,
    Exchange,
    Compensate,
}

// === impl Act ===

impl Act {
    /// The name in log lines and metric labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SignIn => "sign_in",
            Self::Register => "register",
            Self::Refresh => "refresh",
            Self::RefreshReuse => "refresh_reuse",
            Self::SignOut => "sign_out",
            Self::PasswordReset => "password_reset",
            Self::SocialSignIn => "social_sign_in",
            Self::SocialLink => "social_link",
            Self::Exchange => "exchange",
            Self::Compensate => "compensate",
        }
    }
}

/// Writes one event. `subject` is the pool's subject, or empty where nobody is known; `outcome` is
/// `ok` or a problem's code.
pub(crate) fn record(visitor: &Visitor, act: Act, subject: &str, outcome: &str) {
    let request_id = &*visitor.request_id;
    tracing::info!(target: "postern_auth::audit", act = act.name(), subject, outcome, request_id, "audit");
}
