use std::path::PathBuf;

use serde_json::json;

use super::{FaultScope, OutgoingMessage, ProviderRefusal, SendResult};
use crate::delivery::retry::FailureClass;

/// A provider that writes each notification to a JSON file. A repetition replaces the file.
pub(crate) struct FileProvider {
    /// The folder, which is created if necessary.
    pub(crate) folder: PathBuf,
}

impl FileProvider {
    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let path = self.folder.join(format!("{}.json", message.id));
        let draft = path.with_extension("part");
        let document = json!({
            "notificationId": message.id,
            "to": message.to,
            "content": message.content,
            "sentAt": message.sent_at,
        });
        let written = async {
            tokio::fs::create_dir_all(&self.folder).await?;
            tokio::fs::write(&draft, document.to_string()).await?;
            tokio::fs::rename(&draft, &path).await
        };
        let failed = |error: std::io::Error| ProviderRefusal {
            class: FailureClass::Configuration,
            scope: FaultScope::Provider,
            ..ProviderRefusal::not_sent("file_not_written").with_detail(error.kind().to_string())
        };
        written.await.map_err(failed)?;
        Ok(Some("written".to_owned()))
    }
}
