use std::path::PathBuf;

use serde_json::json;

use super::{FaultScope, Message, Refusal, Sight, Taken};
use crate::address::Address;
use crate::delivery::retry::Class;
use crate::templates::MessageContent;

/// Writes what would be sent, one JSON file a notification: a repeat of the same one replaces it.
#[derive(Debug)]
pub(crate) struct File {
    folder: PathBuf,
}

// === impl File ===

impl File {
    /// Writes into `folder`, which is made when it is missing.
    #[must_use]
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) async fn look(&self, message: &Message<'_>) -> Sight {
        match tokio::fs::try_exists(self.path(message)).await {
            Ok(true) => Sight::There(Taken {
                detail: Some("written".to_owned()),
            }),
            Ok(false) => Sight::NotThere,
            Err(_) => Sight::Blind,
        }
    }

    fn path(&self, message: &Message<'_>) -> PathBuf {
        self.folder.join(format!("{}.json", message.id))
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<Taken, Refusal> {
        let path = self.path(message);
        let text = document(message).to_string();
        let folder = self.folder.clone();
        let written = async {
            tokio::fs::create_dir_all(&folder).await?;
            let draft = path.with_extension("part");
            tokio::fs::write(&draft, text).await?;
            tokio::fs::rename(&draft, &path).await
        };
        match written.await {
            Ok(()) => Ok(Taken {
                detail: Some("written".to_owned()),
            }),
            Err(error) => Err(Refusal {
                class: Class::Configuration,
                code: "file_not_written".to_owned(),
                scope: FaultScope::Provider,
                ..Refusal::unfit().with_detail(error.kind().to_string())
            }),
        }
    }
}

fn document(message: &Message<'_>) -> serde_json::Value {
    let to = match message.to {
        Address::Email(email) => json!({ "email": email }),
        Address::Phone(phone) => json!({ "phone": phone }),
        Address::DeviceToken(token) => json!({ "deviceToken": token }),
        Address::Subscription(subscription) => json!({ "subscription": subscription }),
    };
    let content = match message.content {
        MessageContent::Email {
            subject,
            text,
            html,
        } => json!({ "subject": subject, "text": text, "html": html }),
        MessageContent::Sms { text } => json!({ "text": text }),
        MessageContent::Push { title, body } => json!({ "title": title, "body": body }),
    };
    json!({ "notificationId": message.id.to_string(), "to": to, "content": content, "createdAt": message.created_at })
}
