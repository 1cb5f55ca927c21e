use std::path::PathBuf;

use serde_json::json;

use super::{FaultScope, OutgoingMessage, ProviderAck, ProviderRefusal};
use crate::delivery::retry::FailureClass;
use crate::templates::MessageContent;

/// A provider that writes each notification to a JSON file. A repetition replaces the file.
#[derive(Debug)]
pub(crate) struct FileProvider {
    folder: PathBuf,
}

// === impl FileProvider ===

impl FileProvider {
    /// Creates a provider that writes to `folder`, which is created if necessary.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn path(&self, message: &OutgoingMessage<'_>) -> PathBuf {
        self.folder.join(format!("{}.json", message.id))
    }

    pub(super) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
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
            Ok(()) => Ok(ProviderAck {
                detail: Some("written".to_owned()),
            }),
            Err(error) => Err(ProviderRefusal {
                class: FailureClass::Configuration,
                code: "file_not_written".to_owned(),
                scope: FaultScope::Provider,
                ..ProviderRefusal::unsupported_message().with_detail(error.kind().to_string())
            }),
        }
    }
}

fn document(message: &OutgoingMessage<'_>) -> serde_json::Value {
    let content = match message.content {
        MessageContent::Email {
            subject,
            text,
            html,
        } => json!({ "subject": subject, "text": text, "html": html }),
        MessageContent::Sms { text } => json!({ "text": text }),
        MessageContent::Push { title, body } => json!({ "title": title, "body": body }),
    };
    json!({ "notificationId": message.id.to_string(), "to": message.to, "content": content, "sentAt": message.sent_at })
}
