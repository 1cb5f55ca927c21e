//! How a one-time code reaches its user.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use postern_common::Secret;
use serde_json::json;
use tokio::sync::mpsc;

use crate::fault::{Fault, Kind};

/// Where codes go.
#[derive(Clone, Debug)]
pub enum CodeDelivery {
    /// Nowhere: the log tells that a code was due, never the code or the address.
    Log,
    /// To whoever holds the other end, which sends a mail. When the channel is full the call fails
    /// with `CodeDeliveryFailureException`.
    Mail(mpsc::Sender<CodeMail>),
    /// To a file, one JSON object a line (`to`, `purpose`, `code`), for scripts and tests. Mode
    /// 0600.
    File(PathBuf),
}

/// A code on its way.
#[derive(Clone, Debug)]
pub struct CodeMail {
    /// The address.
    pub to: String,
    /// What the code is for.
    pub purpose: CodePurpose,
    /// The code itself, or a password that an administrator gave.
    pub code: Secret,
}

/// What a code proves, or lets its user do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodePurpose {
    /// Confirms a registration.
    SignUp,
    /// Lets a forgotten password be replaced.
    ForgotPassword,
    /// Proves that an address belongs to a user who is signed in.
    VerifyEmail,
    /// Not a code but the first password of a user whom an administrator made.
    Invitation,
}

// === impl CodePurpose ===

impl CodePurpose {
    /// The name by which it is kept and logged.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SignUp => "sign_up",
            Self::ForgotPassword => "forgot_password",
            Self::VerifyEmail => "verify_email",
            Self::Invitation => "invitation",
        }
    }
}

// === impl CodeDelivery ===

impl CodeDelivery {
    /// Hands the code over. It does not wait for the mail to be sent.
    pub(crate) fn deliver(&self, mail: CodeMail) -> Result<(), Fault> {
        let purpose = mail.purpose.name();
        let outcome = match self {
            Self::Log => Ok(()),
            Self::Mail(channel) => channel.try_send(mail).map_err(|error| error.to_string()),
            Self::File(path) => append(path, &mail).map_err(|error| error.to_string()),
        };
        tracing::info!(target: "audit", purpose, delivered = outcome.is_ok(), "code issued");
        outcome.map_err(|cause| {
            tracing::warn!(cause, purpose, "a code could not be handed over");
            Fault::new(Kind::CodeDeliveryFailure, "The code could not be delivered")
        })
    }
}

fn append(path: &PathBuf, mail: &CodeMail) -> std::io::Result<()> {
    let line = json!({"to": mail.to, "purpose": mail.purpose.name(), "code": mail.code.expose()});
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{line}")
}

/// The address as an answer may show it: `a***@e***`.
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
    fn an_address_is_masked() {
        assert_eq!(masked("ada@example.com"), "a***@e***");
        assert_eq!(masked("ada"), "a***");
    }

    #[tokio::test]
    async fn a_full_channel_fails_the_call() {
        let (sender, mut receiver) = mpsc::channel(1);
        let delivery = CodeDelivery::Mail(sender);
        let mail = CodeMail {
            to: "ada@example.com".into(),
            purpose: CodePurpose::SignUp,
            code: "123456".into(),
        };
        delivery.deliver(mail.clone()).expect("room");
        let fault = delivery.deliver(mail).expect_err("no room");
        assert_eq!(fault.kind(), Kind::CodeDeliveryFailure);
        assert_eq!(
            receiver.recv().await.expect("the first").code.expose(),
            "123456"
        );
    }
}
