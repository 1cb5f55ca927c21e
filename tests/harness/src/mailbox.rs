//! Client of the mail catcher's API.

use serde_json::Value;

use crate::client::Client;

/// A reader of delivered mail.
#[derive(Clone, Debug)]
pub struct Mailbox(Client);

impl Mailbox {
    /// Creates a reader for the URL of the mail catcher.
    pub fn at(url: &str) -> Self {
        Self(Client::new(url))
    }

    /// Returns the newest mail to an address, waiting up to a minute: `subject`, `text`, `html`,
    /// `headers`.
    pub async fn to(&self, recipient: &str) -> Value {
        let list = self.list(recipient, 60).await;
        let id = list.first().and_then(|mail| mail["id"].as_str());
        let id = id.unwrap_or_else(|| panic!("no mail for {recipient}"));
        self.0.read(&format!("/messages/{id}")).await
    }

    /// Returns the mails to an address, newest first, waiting for the first one.
    pub async fn list(&self, recipient: &str, wait_seconds: u8) -> Vec<Value> {
        let path = format!("/messages?to={recipient}&waitSeconds={wait_seconds}");
        let found = self.0.read(&path).await;
        found["messages"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the code of eight digits in the newest mail to an address.
    pub async fn code(&self, recipient: &str) -> String {
        let mail = self.to(recipient).await;
        let text = mail["text"].as_str().unwrap_or_default();
        let mut numbers = text.split(|it: char| !it.is_ascii_digit());
        let code = numbers.find(|number| number.len() == 8);
        code.unwrap_or_else(|| panic!("no code in {mail}"))
            .to_owned()
    }
}
