//! Delivery of one-time codes and initial passwords to users.

use postern_common::Secret;
use tokio::sync::mpsc;

use crate::pool::error::{ApiError, ExceptionKind};

/// The destination of codes.
#[derive(Clone, Debug)]
pub enum CodeDelivery {
    /// Codes are not delivered. The audit log records that one was issued, without the code or
    /// address.
    Log,
    /// Sends codes to a channel whose receiver sends e-mail. If the channel is full, the call fails
    /// with `CodeDeliveryFailureException`.
    Mail(mpsc::Sender<CodeMail>),
}

/// A code to be delivered.
#[derive(Clone, Debug)]
pub struct CodeMail {
    /// E-mail address of the recipient.
    pub to: String,
    /// Purpose of the code.
    pub purpose: CodePurpose,
    /// The code, or the initial password for an invitation.
    pub code: Secret,
}

/// The purpose of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodePurpose {
    /// Confirms a registration.
    SignUp,
    /// Lets a forgotten password be replaced.
    ForgotPassword,
    /// Carries the initial password of a user that an administrator created.
    Invitation,
}

// === impl CodePurpose ===

impl CodePurpose {
    /// Returns the name under which the purpose is stored and logged.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SignUp => "sign_up",
            Self::ForgotPassword => "forgot_password",
            Self::Invitation => "invitation",
        }
    }
}

// === impl CodeDelivery ===

impl CodeDelivery {
    /// Delivers a code, without waiting for the e-mail to be sent.
    pub(crate) fn deliver(&self, mail: CodeMail) -> Result<(), ApiError> {
        let purpose = mail.purpose.name();
        let outcome = match self {
            Self::Log => Ok(()),
            Self::Mail(channel) => channel.try_send(mail).map_err(|error| error.to_string()),
        };
        tracing::info!(target: "audit", purpose, delivered = outcome.is_ok(), "code issued");
        outcome.map_err(|error| {
            tracing::warn!(error, purpose, "code delivery failed");
            ApiError::new(
                ExceptionKind::CodeDeliveryFailure,
                "The code could not be delivered",
            )
        })
    }
}

/// Masks an address for responses: `a***@e***`.
pub(crate) fn masked(address: &str) -> String {
    let first = |part: &str| {
        part.chars()
            .next()
            .map_or(String::new(), |c| format!("{c}***"))
    };
    match address.rsplit_once('@') {
        Some((local, domain)) => format!("{}@{}", first(local), first(domain)),
        None => first(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_masked() {
        assert_eq!(masked("ada@example.com"), "a***@e***");
        assert_eq!(masked("ada"), "a***");
    }

    #[tokio::test]
    async fn full_channel_fails_delivery() {
        let (sender, mut receiver) = mpsc::channel(1);
        let delivery = CodeDelivery::Mail(sender);
        let mail = CodeMail {
            to: "ada@example.com".into(),
            purpose: CodePurpose::SignUp,
            code: "123456".into(),
        };
        delivery.deliver(mail.clone()).expect("room");
        let error = delivery.deliver(mail).expect_err("a full channel");
        assert_eq!(error.kind(), ExceptionKind::CodeDeliveryFailure);
        assert_eq!(
            receiver.recv().await.expect("the first").code.expose(),
            "123456"
        );
    }
}
