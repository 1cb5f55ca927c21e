//! The command that prints the history of a notification.

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_core::output::Output;
use postern_service::timeline::{MAX_ENTRIES, TimelineQuery, TimelineSelector};
use serde_json::json;

use super::open;
use crate::Config;
use crate::notification::NotificationId;
use crate::status::timeline::NotificationReader;

/// Prints the events of a notification.
pub(super) async fn show(config: &Config, id: NotificationId, output: Output) -> Result<(), Exit> {
    let reader = NotificationReader::new(open(config).await?, Clock::system());
    let selector = TimelineSelector::Notification(id.to_string());
    let timeline = reader
        .timeline(&TimelineQuery::new(selector, MAX_ENTRIES), &[])
        .await?;
    if timeline.entries.is_empty() {
        return Err(Exit::usage(format!("there is no notification {id}")));
    }
    for entry in &timeline.entries {
        output.record(&entry.to_string(), &json!(entry))?;
    }
    Ok(())
}

// === impl NotificationReader ===

impl NotificationReader {
    /// Opens the history of a configuration, without starting the service.
    ///
    /// # Errors
    /// Exit status 69 if the database is unavailable.
    pub async fn open(config: &Config) -> Result<Self, Exit> {
        let store = open(config).await?;
        Ok(Self::new(store, Clock::system()))
    }

    /// Opens the history in a database.
    ///
    /// # Errors
    /// As [`NotificationReader::open`].
    pub async fn open_database(url: &str) -> Result<Self, Exit> {
        let store = super::open_database(url).await?;
        Ok(Self::new(store, Clock::system()))
    }
}
