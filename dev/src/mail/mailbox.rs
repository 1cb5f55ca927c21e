//! Storage of mail: one `.eml` file per message, and an in-memory index.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use serde::Serialize;
use tokio::sync::watch;
use uuid::Uuid;

use super::mime::{self, ParsedMail};
use super::smtp_session::MailEnvelope;

/// Maximum number of messages; beyond it the oldest message is deleted.
const MAX_MESSAGES: usize = 5_000;

/// Maximum number of messages in a listing.
const MAX_LISTED_MESSAGES: usize = 500;

/// The stored messages. Each file begins with headers that record the envelope, so that the index
/// can be rebuilt from the files.
#[derive(Debug)]
pub struct Mailbox {
    folder: PathBuf,
    clock: Clock,
    index: Mutex<BTreeMap<String, Arc<Summary>>>,
    /// Number of arrivals and deletions.
    changes: watch::Sender<u64>,
}

/// The summary of a message in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Size of the stored file in bytes, including the added trace headers.
    pub size: usize,
}

/// A query for messages.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Envelope recipient, compared case-insensitively.
    pub recipient: Option<String>,
    /// Text contained in the subject.
    pub subject: Option<String>,
    /// Maximum number of messages. Default and maximum 500.
    pub limit: Option<usize>,
}

// === impl Mailbox ===

impl Mailbox {
    /// Opens a mail folder, creating it if it does not exist, and indexes its messages.
    ///
    /// # Errors
    /// Fails if the folder cannot be created or read.
    pub fn open(folder: &Path, clock: Clock) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut index = BTreeMap::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let id = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default()
                .to_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("eml") if is_id(&id) => {
                    let summary = summarize(&id, &std::fs::read(&path)?);
                    index.insert(id, Arc::new(summary));
                }
                // The process ended during the write, before the message was acknowledged.
                Some("part") => std::fs::remove_file(&path)?,
                _ => {}
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            clock,
            index: Mutex::new(index),
            changes: watch::Sender::new(0),
        })
    }

    /// Stores a message from a component of this process, which does not use SMTP. Returns its id.
    ///
    /// # Errors
    /// Fails if the message cannot be written.
    pub async fn store_local(
        &self,
        sender: &str,
        recipient: &str,
        message: Vec<u8>,
    ) -> std::io::Result<String> {
        let envelope = MailEnvelope {
            sender: sender.to_owned(),
            recipients: vec![recipient.to_owned()],
        };
        self.store(envelope, message).await
    }

    /// Stores a message durably and returns its id. Beyond [`MAX_MESSAGES`], the oldest message
    /// leaves the index and its file is deleted. If that deletion fails, a warning is logged: the
    /// new message is stored, and a client that got an error would send it again.
    ///
    /// # Errors
    /// Fails if the message cannot be written.
    pub(super) async fn store(
        &self,
        envelope: MailEnvelope,
        message: Vec<u8>,
    ) -> std::io::Result<String> {
        let id = Uuid::now_v7().to_string();
        let mut file = trace_headers(&envelope, self.clock.now()).into_bytes();
        file.extend_from_slice(&message);
        drop(message);
        let summary = Arc::new(summarize(&id, &file));
        let (folder, name) = (self.folder.clone(), id.clone());
        tokio::task::spawn_blocking(move || write_durably(&folder, &name, &file))
            .await
            .map_err(std::io::Error::other)??;
        let evicted = {
            let mut index = self.index.lock();
            index.insert(id.clone(), summary);
            (index.len() > MAX_MESSAGES)
                .then(|| index.pop_first())
                .flatten()
        };
        if let Some((oldest, _)) = evicted
            && let Err(error) = self.remove_file(&oldest)
        {
            tracing::warn!(%error, id = %oldest, "mail deletion failed");
        }
        self.changes.send_modify(|count| *count += 1);
        Ok(id)
    }

    /// Lists the matching messages, newest first.
    #[must_use]
    pub fn list(&self, query: &Query) -> Vec<Arc<Summary>> {
        let limit = query
            .limit
            .unwrap_or(MAX_LISTED_MESSAGES)
            .min(MAX_LISTED_MESSAGES);
        self.index
            .lock()
            .values()
            .rev()
            .filter(|summary| query.matches(summary))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Waits for a matching message, for at most `timeout`, and lists the matches.
    pub async fn wait(&self, query: &Query, timeout: Duration) -> Vec<Arc<Summary>> {
        // Subscribe before listing, so that no arrival is missed in between.
        let mut changes = self.changes.subscribe();
        let found = async {
            loop {
                changes.borrow_and_update();
                let list = self.list(query);
                if !list.is_empty() || changes.changed().await.is_err() {
                    return list;
                }
            }
        };
        tokio::time::timeout(timeout, found)
            .await
            .unwrap_or_default()
    }

    /// Returns the stored file, or `None` for an unknown id: the trace headers followed by the
    /// message as received.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn raw(&self, id: &str) -> std::io::Result<Option<Vec<u8>>> {
        if !self.index.lock().contains_key(id) {
            return Ok(None);
        }
        match std::fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the parsed message, or `None` for an unknown id.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, id: &str) -> std::io::Result<Option<ParsedMail>> {
        Ok(self.raw(id)?.map(|bytes| mime::parse(&bytes)))
    }

    /// Deletes a message. Returns false for an unknown id.
    pub(super) fn delete(&self, id: &str) -> std::io::Result<bool> {
        let known = self.index.lock().remove(id).is_some();
        if known {
            self.remove_file(id)?;
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(known)
    }

    /// Deletes all messages.
    pub(super) fn clear(&self) -> std::io::Result<()> {
        let all = std::mem::take(&mut *self.index.lock());
        self.changes.send_modify(|count| *count += 1);
        all.keys().try_for_each(|id| self.remove_file(id))
    }

    /// Returns a receiver that is notified when a message arrives or is deleted.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn summary(&self, id: &str) -> Option<Arc<Summary>> {
        self.index.lock().get(id).cloned()
    }

    fn remove_file(&self, id: &str) -> std::io::Result<()> {
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the path of a message. `id` must come from the index, whose keys are UUIDs, so that
    /// it cannot contain a path.
    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.eml"))
    }
}

impl Query {
    fn matches(&self, summary: &Summary) -> bool {
        let to = |wanted: &String| {
            summary
                .recipients
                .iter()
                .any(|known| known.eq_ignore_ascii_case(wanted))
        };
        self.recipient.as_ref().is_none_or(to)
            && self
                .subject
                .as_ref()
                .is_none_or(|wanted| summary.subject.contains(wanted))
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 36 && Uuid::parse_str(text).is_ok()
}

/// Returns the trace headers of a final delivery (RFC 5321 section 4.4) and a header with the time.
fn trace_headers(envelope: &MailEnvelope, at: Timestamp) -> String {
    let to: String = envelope
        .recipients
        .iter()
        .map(|recipient| format!("Delivered-To: {recipient}\r\n"))
        .collect();
    format!(
        "Return-Path: <{}>\r\n{to}X-Postern-Received: {at}\r\n",
        envelope.sender
    )
}

fn summarize(id: &str, file: &[u8]) -> Summary {
    let headers = mime::headers(file);
    let first = |name: &str| {
        let mut named = headers
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named
            .next()
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    };
    // Only `Delivered-To` headers after the first header and before the message's own headers were
    // added by this server.
    let added_by_server = headers
        .iter()
        .skip(1)
        .take_while(|(name, _)| name == "Delivered-To")
        .map(|(_, recipient)| recipient.clone());
    Summary {
        id: id.to_owned(),
        received_at: first("X-Postern-Received"),
        sender: first("Return-Path").trim_matches(['<', '>']).to_owned(),
        recipients: added_by_server.collect(),
        from: first("From"),
        subject: first("Subject"),
        size: file.len(),
    }
}

/// Writes a temporary file, syncs it, renames it, and syncs the folder: the file survives a power
/// failure.
fn write_durably(folder: &Path, id: &str, bytes: &[u8]) -> std::io::Result<()> {
    let part = folder.join(format!("{id}.part"));
    let mut file = std::fs::File::create_new(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&part, folder.join(format!("{id}.eml")))?;
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(to: &str) -> MailEnvelope {
        MailEnvelope {
            sender: "a@b.test".to_owned(),
            recipients: vec![to.to_owned()],
        }
    }

    #[tokio::test]
    async fn wait_returns_on_arrival_of_matching_mail() {
        let folder = tempfile::tempdir().expect("folder");
        let mailbox = Arc::new(Mailbox::open(folder.path(), Clock::system()).expect("mailbox"));
        let query = Query {
            recipient: Some("Ada@b.test".to_owned()),
            ..Query::default()
        };
        let (waiting, wanted) = (Arc::clone(&mailbox), query.clone());
        let waiting =
            tokio::spawn(async move { waiting.wait(&wanted, Duration::from_secs(30)).await });
        mailbox
            .store(envelope("other@b.test"), b"Subject: no\r\n\r\n".to_vec())
            .await
            .expect("stored");
        mailbox
            .store(envelope("ada@b.test"), b"Subject: yes\r\n\r\n".to_vec())
            .await
            .expect("stored");
        assert_eq!(waiting.await.expect("found")[0].subject, "yes");
        assert!(
            mailbox
                .wait(
                    &Query {
                        subject: Some("?".into()),
                        ..query
                    },
                    Duration::ZERO
                )
                .await
                .is_empty()
        );
    }

    #[tokio::test]
    async fn forged_delivered_to_header_is_ignored() {
        let folder = tempfile::tempdir().expect("folder");
        let mailbox = Mailbox::open(folder.path(), Clock::system()).expect("mailbox");
        let forged = b"Delivered-To: forged@b.test\r\nSubject: x\r\n\r\n".to_vec();
        mailbox
            .store(envelope("ada@b.test"), forged)
            .await
            .expect("stored");
        assert_eq!(
            mailbox.list(&Query::default())[0].recipients,
            ["ada@b.test"]
        );
    }

    #[tokio::test]
    async fn deleted_and_partial_mail_is_not_indexed() {
        let folder = tempfile::tempdir().expect("folder");
        let mailbox = Mailbox::open(folder.path(), Clock::system()).expect("mailbox");
        let id = mailbox
            .store(envelope("ada@b.test"), b"\r\n".to_vec())
            .await
            .expect("stored");
        std::fs::write(folder.path().join("x.part"), b"half").expect("written");
        assert!(mailbox.delete(&id).expect("deleted"));
        assert!(!mailbox.delete("../../etc/passwd").expect("unknown"));
        let again = Mailbox::open(folder.path(), Clock::system()).expect("mailbox");
        assert!(again.list(&Query::default()).is_empty());
        assert!(!folder.path().join("x.part").exists());
    }
}
