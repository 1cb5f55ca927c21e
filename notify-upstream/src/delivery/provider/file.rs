use std::path::PathBuf;

use serde_json::json;

use super::{FaultScope, OutgoingMessage, ProviderRefusal, SendResult};
use crate::delivery::retry::FailureClass;

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

    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let path = self.folder.join(format!("{}.json", message.id));
        let draft = path.with_extension("part");
        let written = async {
            tokio::fs::create_dir_all(&self.folder).await?;
            tokio::fs::write(&draft, document(message).to_string()).await?;
            tokio::fs::rename(&draft, &path).await
        };
        match written.await {
            Ok(()) => Ok(Some("written".to_owned())),
            Err(error) => Err(ProviderRefusal {
                class: FailureClass::Configuration,
                scope: FaultScope::Provider,
                ..ProviderRefusal::not_sent("file_not_written")
                    .with_detail(error.kind().to_string())
            }),
        }
    }
}

fn document(message: &OutgoingMessage<'_>) -> serde_json::Value {
    json!({
        "notificationId": message.id,
        "to": message.to,
        "content": message.content,
        "sentAt": message.sent_at,
    })
}
