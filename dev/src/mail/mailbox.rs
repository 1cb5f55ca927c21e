//! Storage of mail: in the SQLite database, with the summaries in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_store::database::Sqlite;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use super::mime::{self, ParsedMail};

/// Maximum number of messages; beyond it the oldest message is deleted.
const MAX_MESSAGES: usize = 5_000;

/// Maximum number of messages in a listing.
const MAX_LISTED_MESSAGES: usize = 500;

const SELECT_SUMMARIES: &str = "SELECT id, summary FROM mail";
const SELECT_MESSAGE: &str = "SELECT message FROM mail WHERE id = ?1";
const INSERT: &str = "INSERT INTO mail (id, summary, message) VALUES (?1, ?2, ?3)";
const DELETE: &str = "DELETE FROM mail WHERE id = ?1";
const DELETE_ALL: &str = "DELETE FROM mail";

/// The stored messages.
#[derive(Debug)]
pub struct Mailbox {
    sqlite: Sqlite,
    clock: Clock,
    index: Mutex<BTreeMap<String, Arc<Summary>>>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
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
    /// Opens the mailbox of a development database.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub(crate) async fn open(sqlite: Sqlite, clock: Clock) -> Result<Self, sqlx::Error> {
        let rows: Vec<(String, String)> = sqlx::query_as(SELECT_SUMMARIES)
            .fetch_all(&sqlite.readers)
            .await?;
        let summaries = rows
            .into_iter()
            .filter_map(|(id, summary)| Some((id, serde_json::from_str(&summary).ok()?)));
        Ok(Self {
            index: Mutex::new(summaries.collect()),
            sqlite,
            clock,
            changes: watch::Sender::new(0),
        })
    }

    /// Stores a message durably and returns its id. Beyond `MAX_MESSAGES`, the oldest message is
    /// deleted.
    ///
    /// # Errors
    /// Fails if the message cannot be written.
    pub async fn store(
        &self,
        envelope: MailEnvelope,
        message: Vec<u8>,
    ) -> Result<String, sqlx::Error> {
        let summary = self.summarize(envelope, &message);
        let id = summary.id.clone();
        sqlx::query(INSERT)
            .bind(&id)
            .bind(serde_json::to_string(&summary).unwrap_or_default())
            .bind(message)
            .execute(&self.sqlite.writer)
            .await?;
        let oldest = {
            let mut index = self.index.lock();
            index.insert(id.clone(), Arc::new(summary));
            let oldest = index.keys().next().cloned();
            oldest.filter(|_| index.len() > MAX_MESSAGES)
        };
        self.changes.send_modify(|count| *count += 1);
        if let Some(oldest) = oldest
            && let Err(error) = self.delete(&oldest).await
        {
            // A client that got an error would send the new message again.
            tracing::warn!(%error, id = %oldest, "mail deletion failed");
        }
        Ok(id)
    }

    fn summarize(&self, envelope: MailEnvelope, message: &[u8]) -> Summary {
        let headers = mime::headers(message);
        let first = |name: &str| {
            let mut headers = headers.iter();
            let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone()).unwrap_or_default()
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

    /// Lists the newest 500 messages to a recipient, or to all, newest first. Case does not matter.
    #[must_use]
    pub fn list(&self, recipient: Option<&str>) -> Vec<Arc<Summary>> {
        let is_wanted = |summary: &&Arc<Summary>| {
            let mut recipients = summary.recipients.iter();
            recipient.is_none_or(|wanted| recipients.any(|it| it.eq_ignore_ascii_case(wanted)))
        };
        let index = self.index.lock();
        let wanted = index.values().rev().filter(is_wanted);
        wanted.take(MAX_LISTED_MESSAGES).cloned().collect()
    }

    /// Waits for a message to a recipient, for at most `timeout`, and lists them.
    pub async fn wait(&self, recipient: Option<&str>, timeout: Duration) -> Vec<Arc<Summary>> {
        // Subscribe before listing, so that no arrival is missed in between.
        let mut changes = self.changes.subscribe();
        let found = async {
            loop {
                changes.borrow_and_update();
                let list = self.list(recipient);
                if !list.is_empty() || changes.changed().await.is_err() {
                    return list;
                }
            }
        };
        tokio::time::timeout(timeout, found)
            .await
            .unwrap_or_default()
    }

    /// Returns a message as received, or `None` for an unknown id.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn raw(&self, id: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let found: Option<(Vec<u8>,)> = sqlx::query_as(SELECT_MESSAGE)
            .bind(id)
            .fetch_optional(&self.sqlite.readers)
            .await?;
        Ok(found.map(|(message,)| message))
    }

    /// Returns the parsed message, or `None` for an unknown id.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn read(&self, id: &str) -> Result<Option<ParsedMail>, sqlx::Error> {
        Ok(self.raw(id).await?.map(|message| mime::parse(&message)))
    }

    /// Deletes a message. Returns false for an unknown id.
    pub(super) async fn delete(&self, id: &str) -> Result<bool, sqlx::Error> {
        let known = self.index.lock().remove(id).is_some();
        if known {
            let delete = sqlx::query(DELETE).bind(id);
            delete.execute(&self.sqlite.writer).await?;
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(known)
    }

    /// Deletes all messages.
    pub(super) async fn clear(&self) -> Result<(), sqlx::Error> {
        self.index.lock().clear();
        sqlx::query(DELETE_ALL).execute(&self.sqlite.writer).await?;
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns a receiver that is notified when a message arrives or is deleted.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn summary(&self, id: &str) -> Option<Arc<Summary>> {
        self.index.lock().get(id).cloned()
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

    pub(crate) async fn open_in(folder: &tempfile::TempDir) -> Mailbox {
        let path = folder.path().join("development.db");
        let sqlite = database::open(&path).await.expect("database");
        let mailbox = Mailbox::open(sqlite, Clock::system()).await;
        mailbox.expect("mailbox")
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
        assert!(mailbox.delete(&ids[0]).await.expect("deleted"));
        assert!(!mailbox.delete("unknown").await.expect("unknown"));
        let again = open_in(&folder).await;
        assert_eq!(again.list(None)[0].recipients, ["grace@b.test"]);
        assert_eq!(again.raw(&ids[0]).await.expect("read"), None);
        assert_eq!(again.raw(&ids[1]).await.expect("read"), Some(message));
    }
}
