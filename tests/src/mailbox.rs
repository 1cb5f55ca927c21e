//! The mail catcher's own API.

use serde_json::Value;

use crate::client::Client;

/// Reads what was delivered.
#[derive(Clone, Debug)]
pub struct Mailbox(Client);

// === impl Mailbox ===

impl Mailbox {
    /// By the address of its page.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self(Client::new(url))
    }

    /// The newest mail to an address, waited for up to a minute: `subject`, `text`, `html`,
    /// `headers`.
    ///
    /// # Panics
    /// If none comes.
    pub async fn to(&self, recipient: &str) -> Value {
        let list = self.list(recipient, 60).await;
        let id = list.first().and_then(|mail| mail["id"].as_str());
        let id = id
            .unwrap_or_else(|| panic!("no mail came for {recipient}"))
            .to_owned();
        self.0
            .get(&format!("/messages/{id}"))
            .send()
            .await
            .expect(200)
            .json()
    }

    /// The mail that is there for an address, newest first; waits for the first one.
    pub async fn list(&self, recipient: &str, wait_seconds: u8) -> Vec<Value> {
        let path = format!("/messages?to={recipient}&waitSeconds={wait_seconds}");
        let found = self.0.get(&path).send().await.expect(200).json();
        found["messages"].as_array().cloned().unwrap_or_default()
    }
}
