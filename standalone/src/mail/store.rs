//! Where mail is kept: one `.eml` file a message, and an index in memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;
use serde::Serialize;
use tokio::sync::watch;
use uuid::Uuid;

use super::mime::{self, Mail};
use super::session::Envelope;

/// Messages kept; the oldest is deleted for a new one.
const MAX_MESSAGES: usize = 5_000;

/// Messages in one list.
pub(super) const MAX_LIST: usize = 500;

/// Received mail. The envelope stands in front of each message in headers of its own, so that a
/// file says all.
#[derive(Debug)]
pub struct Mailbox {
    folder: PathBuf,
    clock: Clock,
    index: Mutex<BTreeMap<String, Arc<Summary>>>,
    arrived: watch::Sender<u64>,
}

/// One message in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// UUIDv7; sorts by arrival.
    pub id: String,
    /// When it was accepted, RFC 3339.
    pub received_at: String,
    /// The envelope's sender, empty for a bounce.
    pub sender: String,
    /// The envelope's recipients.
    pub recipients: Vec<String>,
    /// The `From` header.
    pub from: String,
    /// The `Subject` header.
    pub subject: String,
    /// Size in bytes as received.
    pub size: usize,
}

/// Which messages are wanted, newest first.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only mail for this envelope recipient, whatever its case.
    pub recipient: Option<String>,
    /// Only mail with this in its subject.
    pub subject: Option<String>,
    /// At most so many; 500 if absent.
    pub limit: Option<usize>,
}

// === impl Mailbox ===

impl Mailbox {
    /// Opens the folder, making it if need be, and reads what is there.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
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
                // Never acknowledged: the process ended while it was written.
                Some("part") => std::fs::remove_file(&path)?,
                _ => {}
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            clock,
            index: Mutex::new(index),
            arrived: watch::Sender::new(0),
        })
    }

    /// Puts a message into the box that did not come by SMTP.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn deliver(
        &self,
        sender: &str,
        recipient: &str,
        message: Vec<u8>,
    ) -> std::io::Result<String> {
        let envelope = Envelope {
            sender: sender.to_owned(),
            recipients: vec![recipient.to_owned()],
        };
        self.store(envelope, message).await
    }

    /// Stores a message and returns its id once it is on disk under its name.
    pub(super) async fn store(
        &self,
        envelope: Envelope,
        message: Vec<u8>,
    ) -> std::io::Result<String> {
        let id = Uuid::now_v7().to_string();
        let mut file = trace(&envelope, self.clock.now()).into_bytes();
        file.extend_from_slice(&message);
        drop(message);
        let summary = Arc::new(summarize(&id, &file));
        let (folder, name) = (self.folder.clone(), id.clone());
        tokio::task::spawn_blocking(move || write_durably(&folder, &name, &file))
            .await
            .map_err(std::io::Error::other)??;
        let crowded_out = {
            let mut index = self.index();
            index.insert(id.clone(), summary);
            (index.len() > MAX_MESSAGES)
                .then(|| index.pop_first())
                .flatten()
        };
        if let Some((oldest, _)) = crowded_out {
            self.remove_file(&oldest)?;
        }
        self.arrived.send_modify(|count| *count += 1);
        Ok(id)
    }

    /// What is there now, newest first.
    #[must_use]
    pub fn list(&self, query: &Query) -> Vec<Arc<Summary>> {
        let limit = query.limit.unwrap_or(MAX_LIST).min(MAX_LIST);
        self.index()
            .values()
            .rev()
            .filter(|summary| query.matches(summary))
            .take(limit)
            .cloned()
            .collect()
    }

    /// What is there as soon as something is, or nothing after `patience`.
    pub async fn wait(&self, query: &Query, patience: Duration) -> Vec<Arc<Summary>> {
        // Subscribes before it looks, so that nothing arrives unseen in between.
        let mut arrived = self.arrived.subscribe();
        let found = async {
            loop {
                arrived.borrow_and_update();
                let list = self.list(query);
                if !list.is_empty() || arrived.changed().await.is_err() {
                    return list;
                }
            }
        };
        tokio::time::timeout(patience, found)
            .await
            .unwrap_or_default()
    }

    /// The message as received, with the envelope in front; `None` for an id that is not there.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn raw(&self, id: &str) -> std::io::Result<Option<Vec<u8>>> {
        if !self.index().contains_key(id) {
            return Ok(None);
        }
        match std::fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The message taken apart.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, id: &str) -> std::io::Result<Option<Mail>> {
        Ok(self.raw(id)?.map(|bytes| mime::parse(&bytes)))
    }

    /// Deletes one message; false if it is not there.
    pub(super) fn delete(&self, id: &str) -> std::io::Result<bool> {
        let known = self.index().remove(id).is_some();
        if known {
            self.remove_file(id)?;
        }
        Ok(known)
    }

    /// Deletes everything.
    pub(super) fn clear(&self) -> std::io::Result<()> {
        let all = std::mem::take(&mut *self.index());
        all.keys().try_for_each(|id| self.remove_file(id))
    }

    pub(super) fn summary(&self, id: &str) -> Option<Arc<Summary>> {
        self.index().get(id).cloned()
    }

    fn remove_file(&self, id: &str) -> std::io::Result<()> {
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Only for ids out of the index, which are UUIDs: no path in disguise.
    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.eml"))
    }

    fn index(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Summary>>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The trace headers that a final delivery adds (RFC 5321 section 4.4), with the time in one of its
/// own.
fn trace(envelope: &Envelope, at: Timestamp) -> String {
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
    let first = |name: &str| headers.first(name).unwrap_or_default();
    // Only the headers in front of the first one of the message itself are ours.
    let ours = headers
        .all("Delivered-To")
        .take(headers.leading("Delivered-To", 1));
    Summary {
        id: id.to_owned(),
        received_at: first("X-Postern-Received"),
        sender: first("Return-Path").trim_matches(['<', '>']).to_owned(),
        recipients: ours.collect(),
        from: first("From"),
        subject: first("Subject"),
        size: file.len(),
    }
}

/// Writes beside the name, syncs, renames, syncs the folder: after this a power cut changes
/// nothing.
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

    fn envelope(to: &str) -> Envelope {
        Envelope {
            sender: "a@b.test".to_owned(),
            recipients: vec![to.to_owned()],
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_the_mail_it_waits_for() {
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
    async fn a_delivered_to_of_the_message_itself_is_no_recipient() {
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
    async fn deleted_mail_is_gone_and_half_written_mail_never_was() {
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
