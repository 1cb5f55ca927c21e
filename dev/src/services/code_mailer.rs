//! Delivery of the identity pool's one-time codes as mail.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use tokio::sync::mpsc;

use crate::mail::Mailbox;
use crate::pool::{CodeMail, CodePurpose};

/// Delivers codes to the mailbox until shutdown.
pub(super) async fn deliver(
    mut codes: mpsc::Receiver<CodeMail>,
    mailbox: Arc<Mailbox>,
    shutdown: CancellationToken,
) {
    loop {
        let code = tokio::select! {
            () = shutdown.cancelled() => return,
            code = codes.recv() => code,
        };
        let Some(code) = code else {
            return shutdown.cancelled().await;
        };
        if let Err(error) = mailbox
            .store_local("no-reply@postern.invalid", &code.to, message(&code))
            .await
        {
            tracing::error!(%error, "mail storage failed");
        }
    }
}

fn message(mail: &CodeMail) -> Vec<u8> {
    let (subject, line) = match mail.purpose {
        CodePurpose::SignUp => ("Confirm your registration", "Your confirmation code is"),
        CodePurpose::ForgotPassword => ("Reset your password", "Your password reset code is"),
        CodePurpose::Invitation => ("You are invited", "Your first password is"),
    };
    let (to, code) = (&mail.to, mail.code.expose());
    format!(
        "From: Postern <no-reply@postern.invalid>\r\nTo: <{to}>\r\nSubject: {subject}\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\r\n{line}: {code}\r\n"
    )
    .into_bytes()
}
