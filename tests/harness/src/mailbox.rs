//! Client of the mail catcher's API.

use serde_json::Value;

use crate::client::Client;

/// A reader of delivered mail.
#[derive(Clone, Debug)]
pub struct Mailbox(Client);

// === impl Mailbox ===

impl Mailbox {
    /// Creates a reader for the URL of the mail catcher.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self(Client::new(url))
    }

    /// Returns the newest mail to an address, waiting up to a minute: `subject`, `text`, `html`,
    /// `headers`.
    ///
    /// # Panics
    /// If there is none.
    pub async fn to(&self, recipient: &str) -> Value {
        let list = self.list(recipient, 60).await;
        let id = list.first().and_then(|mail| mail["id"].as_str());
        let id = id
            .unwrap_or_else(|| panic!("no mail for {recipient}"))
            .to_owned();
        self.0.read(&format!("/messages/{id}")).await
    }

    /// Returns the mails to an address, newest first, waiting for the first one.
    pub async fn list(&self, recipient: &str, wait_seconds: u8) -> Vec<Value> {
        let path = format!("/messages?to={recipient}&waitSeconds={wait_seconds}");
        let found = self.0.read(&path).await;
        found["messages"].as_array().cloned().unwrap_or_default()
    }
}
