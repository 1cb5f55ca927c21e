//! Storage of mail, in the SQLite database.

use std::time::Duration;

use postern_core::Clock;
use postern_store::database::Sqlite;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::mime;

/// Maximum number of messages; beyond it the oldest messages are deleted.
const MAX_MESSAGES: i64 = 5_000;

const MAX_LISTED_MESSAGES: i64 = 500;

/// Recipients are compared without case.
const SELECT_SUMMARIES: &str = "SELECT summary FROM mail WHERE ?1 IS NULL OR EXISTS \
     (SELECT 1 FROM json_each(summary, '$.recipients') WHERE value = ?1 COLLATE NOCASE) \
     ORDER BY id DESC LIMIT ?2";
const SELECT_MESSAGE: &str = "SELECT summary, message FROM mail WHERE id = ?1";
const INSERT: &str = "INSERT INTO mail (id, summary, message) VALUES (?1, ?2, ?3)";
const DELETE_SURPLUS: &str =
    "DELETE FROM mail WHERE id <= (SELECT id FROM mail ORDER BY id DESC LIMIT 1 OFFSET ?1)";
const DELETE: &str = "DELETE FROM mail WHERE id = ?1";
const DELETE_ALL: &str = "DELETE FROM mail";

/// The stored messages.
#[derive(Debug)]
pub struct Mailbox {
    sqlite: Sqlite,
    clock: Clock,
    /// Number of arrivals and deletions.
    changes: watch::Sender<u64>,
}

/// Sender and recipients of the SMTP transaction, which may differ from the message's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailEnvelope {
    /// Reverse path; empty for a bounce.
    pub sender: String,
    /// Accepted recipients, in order.
    pub recipients: Vec<String>,
}

/// The summary of a message in a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Message id, a UUIDv7; ids sort by time of arrival.
    pub id: String,
    /// Time of acceptance, RFC 3339.
    pub received_at: String,
    /// Sender of the envelope; empty for a bounce.
    pub sender: String,
    /// Recipients of the envelope.
    pub recipients: Vec<String>,
    /// The `From` header.
    pub from: String,
    /// The `Subject` header.
    pub subject: String,
    /// Size of the message in bytes.
    pub size: usize,
}

// === impl Mailbox ===

impl Mailbox {
    pub(crate) fn new(sqlite: Sqlite, clock: Clock) -> Self {
        Self {
            sqlite,
            clock,
            changes: watch::Sender::new(0),
        }
    }

    /// Stores a message durably and returns its id.
    ///
    /// # Errors
    /// Fails if the message cannot be written.
    pub async fn store(
        &self,
        envelope: MailEnvelope,
        message: Vec<u8>,
    ) -> Result<String, sqlx::Error> {
        let summary = self.summarize(envelope, &message);
        let insert = sqlx::query(INSERT).bind(&summary.id);
        let insert = insert.bind(serde_json::to_string(&summary).unwrap_or_default());
        let insert = insert.bind(message).execute(&self.sqlite.writer);
        insert.await?;
        let delete = sqlx::query(DELETE_SURPLUS).bind(MAX_MESSAGES);
        if let Err(error) = delete.execute(&self.sqlite.writer).await {
            // A client that got an error would send the new message again.
            tracing::warn!(%error, "mail deletion failed");
        }
        self.changes.send_modify(|count| *count += 1);
        Ok(summary.id)
    }

    fn summarize(&self, envelope: MailEnvelope, message: &[u8]) -> Summary {
        let headers = mime::headers(message);
        let first = |name: &str| {
            let mut headers = headers.iter();
            let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map_or_else(String::new, |(_, value)| value.clone())
        };
        Summary {
            id: Uuid::now_v7().to_string(),
            received_at: self.clock.now().to_string(),
            sender: envelope.sender,
            recipients: envelope.recipients,
            from: first("From"),
            subject: first("Subject"),
            size: message.len(),
        }
    }

    /// Lists the newest messages to a recipient, or to all, newest first.
    pub(super) async fn list(&self, recipient: Option<&str>) -> Result<Vec<Summary>, sqlx::Error> {
        let select = sqlx::query_scalar(SELECT_SUMMARIES).bind(recipient);
        let select = select.bind(MAX_LISTED_MESSAGES);
        let found: Vec<String> = select.fetch_all(&self.sqlite.readers).await?;
        let read = |summary: &String| serde_json::from_str(summary).ok();
        Ok(found.iter().filter_map(read).collect())
    }

    /// Waits for a message to a recipient, for at most `timeout`, and lists them.
    pub(super) async fn wait(
        &self,
        recipient: Option<&str>,
        timeout: Duration,
    ) -> Result<Vec<Summary>, sqlx::Error> {
        // Subscribe before listing, so that no arrival is missed in between.
        let mut changes = self.changes.subscribe();
        let deadline = Instant::now() + timeout;
        loop {
            changes.borrow_and_update();
            let list = self.list(recipient).await?;
            if !list.is_empty() || Instant::now() >= deadline {
                return Ok(list);
            }
            let _elapsed = timeout_at(deadline, changes.changed()).await;
        }
    }

    /// Returns a message as received, or `None` for an unknown id.
    pub(super) async fn get(&self, id: &str) -> Result<Option<(Summary, Vec<u8>)>, sqlx::Error> {
        let select = sqlx::query_as(SELECT_MESSAGE).bind(id);
        let found: Option<(String, Vec<u8>)> = select.fetch_optional(&self.sqlite.readers).await?;
        let read =
            |(summary, message): (String, _)| Some((serde_json::from_str(&summary).ok()?, message));
        Ok(found.and_then(read))
    }

    /// Deletes a message, or all. Returns how many there were.
    pub(super) async fn delete(&self, id: Option<&str>) -> Result<u64, sqlx::Error> {
        let delete = match id {
            Some(id) => sqlx::query(DELETE).bind(id),
            None => sqlx::query(DELETE_ALL),
        };
        let deleted = delete.execute(&self.sqlite.writer).await?.rows_affected();
        self.changes.send_modify(|count| *count += 1);
        Ok(deleted)
    }

    /// Returns a receiver that is notified when a message arrives or is deleted.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::database;

    /// Opens a mailbox, whose folder is deleted on drop.
    pub(crate) async fn open() -> (Mailbox, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("folder");
        (open_in(&folder).await, folder)
    }

    async fn open_in(folder: &tempfile::TempDir) -> Mailbox {
        let path = folder.path().join("development.db");
        let sqlite = database::open(&path).await.expect("database");
        Mailbox::new(sqlite, Clock::system())
    }

    pub(crate) fn envelope(to: &str) -> MailEnvelope {
        MailEnvelope {
            sender: "a@b.test".to_owned(),
            recipients: vec![to.to_owned()],
        }
    }

    #[tokio::test]
    async fn deleted_mail_stays_deleted() {
        let (mailbox, folder) = open().await;
        let message = b"Subject: x\r\n\r\n".to_vec();
        let mut ids = Vec::new();
        for to in ["ada@b.test", "grace@b.test"] {
            let stored = mailbox.store(envelope(to), message.clone()).await;
            ids.push(stored.expect("stored"));
        }
        assert_eq!(mailbox.delete(Some(&ids[0])).await.expect("deleted"), 1);
        assert_eq!(mailbox.delete(Some("unknown")).await.expect("unknown"), 0);
        let again = open_in(&folder).await;
        for (recipient, count) in [
            (None, 1),
            (Some("GRACE@b.test"), 1),
            (Some("ada@b.test"), 0),
        ] {
            let listed = again.list(recipient).await.expect("listed");
            assert_eq!(listed.len(), count, "{recipient:?}");
        }
        assert_eq!(again.get(&ids[0]).await.expect("read"), None);
        let (summary, stored) = again.get(&ids[1]).await.expect("read").expect("stored");
        assert_eq!((summary.id, stored), (ids[1].clone(), message));
    }
}
