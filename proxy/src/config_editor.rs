//! The configuration file as operators edit it over the admin listener.
//!
//! - **Enters:** a text, and the configurations that become active.
//! - **Leaves:** the report of a check, the file with another text, and the configurations that were
//!   active before. A reload is requested from its owner by [`ReloadRequests`].
//! - **May depend on:** [`crate::config`], [`crate::routing`], `certificates` for warnings, and
//!   `state` for the status of the configuration.
//!
//! Checks and reloads run one at a time, so that they do not take more than one core from requests.

mod check;
mod file;
mod history;
mod warnings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::config::ConfigFile;
use postern_core::exit::Exit;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use crate::state::GatewayState;
use crate::state::config_status::ConfigStatus;

use check::ChangeSummary;
pub(crate) use check::{CheckReport, CheckRules};
pub(crate) use file::MAX_TEXT_BYTES;
use file::{ReplaceError, read_only_reason, replace};
use history::{ConfigHistory, HistoryEntry, default_folder, write_entry};
pub(crate) use history::{StoredEntry, read_entry};
pub use warnings::{ConfigWarning, FoundWarnings};

/// Maximum time for a check, with the wait for the one before.
const CHECK_TIMEOUT: Duration = Duration::from_secs(8);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The operator of a change that was not made over the admin listener.
const FILE: &str = "file";

/// Requests to check the file for changes; each is answered when this is done.
pub(crate) type ReloadRequests = mpsc::Receiver<oneshot::Sender<()>>;

/// Held while a text is checked, by the editor or by a reload.
pub(crate) type CheckPermit = Arc<tokio::sync::Mutex<()>>;

pub(crate) struct ConfigEditor {
    pub(crate) path: PathBuf,
    rules: CheckRules,
    pub(crate) state: Arc<GatewayState>,
    pub(crate) history: Mutex<ConfigHistory>,
    in_force: Mutex<Arc<ConfigFile>>,
    reloads: mpsc::Sender<oneshot::Sender<()>>,
    /// Changes are made one after the other.
    changing: tokio::sync::Mutex<()>,
    permit: CheckPermit,
    /// The hash that a change will have when it is active, and the person who makes it.
    author: Mutex<Option<(u64, String)>>,
}

#[derive(Debug)]
pub(crate) struct ConfigChange {
    pub(crate) text: String,
    /// The hash of the file that the operator has read.
    pub(crate) base_hash: String,
    pub(crate) operator: String,
    /// Whether a change by which more requests are accepted is refused.
    pub(crate) refuse_widened: bool,
}

#[derive(Debug)]
pub(crate) struct Changed {
    /// The hash of the file before.
    pub(crate) before: String,
    /// The configuration in force after the reload.
    pub(crate) active: ConfigStatus,
    /// Whether more requests are accepted than before.
    pub(crate) widened: bool,
    /// Whether the file had this text already.
    pub(crate) was_same: bool,
}

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum ChangeError {
    FileChanged(String),
    /// The file cannot be written, with the reason.
    ReadOnly(String),
    /// The text does not load, or a test fails.
    Invalid(Box<CheckReport>),
    /// More requests would be accepted, or it is unknown whether.
    Widened(Box<CheckReport>),
    /// The text loads but could not be activated. The file has its previous text.
    NotActivated(String),
    /// The file was written, but the reload has not ended in time.
    Unknown,
    /// The check, or the one before, takes too long.
    CheckTimeout,
    CheckPanicked,
    Stopping,
}

/// Formats a hash as in the event `configuration reloaded`.
pub(crate) fn hash_text(hash: u64) -> String {
    format!("{hash:016x}")
}

impl ConfigEditor {
    /// Creates the editor of a file whose texts `in_force` are active. `history` is the folder of
    /// the history, by default the file with `.history` added.
    pub(crate) fn new(
        path: PathBuf,
        history: Option<PathBuf>,
        rules: CheckRules,
        in_force: ConfigFile,
        state: Arc<GatewayState>,
        permit: CheckPermit,
    ) -> (Self, ReloadRequests) {
        let (reloads, requests) = mpsc::channel(1);
        let folder = history.unwrap_or_else(|| default_folder(&path));
        let editor = Self {
            path,
            rules,
            state,
            history: Mutex::new(ConfigHistory::open(folder)),
            in_force: Mutex::new(Arc::new(in_force)),
            reloads,
            changing: tokio::sync::Mutex::default(),
            permit,
            author: Mutex::default(),
        };
        (editor, requests)
    }

    /// Reads the file, and the reason why it cannot be written, if there is one. Blocks.
    pub(crate) fn read(&self) -> (Result<ConfigFile, Exit>, Option<String>) {
        (ConfigFile::read(&self.path), read_only_reason(&self.path))
    }

    /// Adds the configuration at the start to the history, unless it is the newest entry. Blocks.
    pub(crate) fn record_start(&self) {
        let files = Arc::clone(&self.in_force.lock());
        let before = {
            let history = self.history.lock();
            let newest = history.newest().map(|entry| entry.number);
            newest.map(|number| (history.folder.clone(), number))
        };
        let before = before.and_then(|(folder, number)| read_entry(&folder, number).ok());
        let before = before.map(|stored| ConfigFile::with_text(&self.path, stored.text));
        self.add_entry(&before.unwrap_or_else(|| (*files).clone()), &files);
    }

    /// Records a configuration that became active. Blocks.
    pub(crate) fn record(&self, files: ConfigFile) {
        let files = Arc::new(files);
        let before = std::mem::replace(&mut *self.in_force.lock(), Arc::clone(&files));
        self.add_entry(&before, &files);
    }

    fn add_entry(&self, before: &ConfigFile, files: &ConfigFile) {
        let hash = files.hash();
        let author = self.author.lock().take_if(|(known, _)| *known == hash);
        let (folder, newest) = {
            let history = self.history.lock();
            (history.folder.clone(), history.newest().cloned())
        };
        let hash = hash_text(hash);
        if newest.as_ref().is_some_and(|newest| newest.hash == hash) {
            return;
        }
        let summary = match &newest {
            Some(_) => check::summarize(before, files, &self.rules.env),
            None => ChangeSummary {
                text: "the first one that was recorded".to_owned(),
                ..ChangeSummary::default()
            },
        };
        let entry = HistoryEntry {
            number: newest.map_or(1, |newest| newest.number + 1),
            hash,
            loaded_at: self.now().to_string(),
            operator: author.map_or_else(|| FILE.to_owned(), |(_, operator)| operator),
            summary,
        };
        let stored = StoredEntry {
            entry,
            file: self.path.display().to_string(),
            text: files.text().to_owned(),
        };
        match write_entry(&folder, &stored) {
            Ok(()) => self.history.lock().push(stored.entry),
            Err(error) => self.history.lock().note_fault(error.to_string()),
        }
    }

    /// Checks a text.
    ///
    /// # Errors
    /// If there is no result within 8 s. The check continues to its end, and others wait for it.
    pub(crate) async fn check(&self, text: String) -> Result<CheckReport, ChangeError> {
        let work = async {
            let permit = Arc::clone(&self.permit).lock_owned().await;
            let (path, rules, now) = (self.path.clone(), self.rules.clone(), self.now());
            let in_force = Arc::clone(&self.in_force.lock());
            let checked = spawn_blocking(move || {
                let _permit = permit;
                check::check(&ConfigFile::with_text(&path, text), &in_force, &rules, now)
            });
            checked.await.map_err(|_| ChangeError::CheckPanicked)
        };
        let checked = tokio::time::timeout(CHECK_TIMEOUT, work).await;
        checked.unwrap_or(Err(ChangeError::CheckTimeout))
    }

    /// Replaces the text of the file and activates it. Must run to its end once it has begun.
    ///
    /// # Errors
    /// The file has its previous text, except with [`ChangeError::Unknown`].
    pub(crate) async fn change(
        self: &Arc<Self>,
        change: ConfigChange,
    ) -> Result<Changed, ChangeError> {
        let _one = self.changing.lock().await;
        if self.reloads.is_closed() {
            return Err(ChangeError::Stopping);
        }
        let this = Arc::clone(self);
        let (files, read_only) = blocking(move || this.read()).await?;
        let files = files.map_err(|exit| ChangeError::ReadOnly(exit.message().to_owned()))?;
        let before = hash_text(files.hash());
        let was_same = files.text() == change.text;
        if before != change.base_hash && !was_same {
            return Err(ChangeError::FileChanged(before));
        }
        let report = Box::new(self.check(change.text.clone()).await?);
        if !report.is_good() {
            return Err(ChangeError::Invalid(report));
        }
        let may_widen = report.widened || report.differences_error.is_some();
        if change.refuse_widened && may_widen {
            return Err(ChangeError::Widened(report));
        }
        if !was_same {
            if let Some(reason) = read_only {
                return Err(ChangeError::ReadOnly(reason));
            }
            self.write(files.text(), &change).await?;
        }
        match self.reload().await? {
            Ok(active) => Ok(Changed {
                before,
                active,
                widened: report.widened,
                was_same,
            }),
            Err(error) => {
                if !was_same {
                    self.write_back(change.text, files.text().to_owned())
                        .await?;
                }
                Err(ChangeError::NotActivated(error))
            }
        }
    }

    async fn write(
        self: &Arc<Self>,
        before: &str,
        change: &ConfigChange,
    ) -> Result<(), ChangeError> {
        let (path, text) = (self.path.clone(), change.text.clone());
        let (before, operator) = (before.to_owned(), change.operator.clone());
        let this = Arc::clone(self);
        let written = blocking(move || {
            let hash = ConfigFile::with_text(&path, text.clone()).hash();
            // Before the file is replaced, because the reload may be faster.
            *this.author.lock() = Some((hash, operator));
            let replaced = replace(&path, &before, &text);
            if replaced.is_err() {
                *this.author.lock() = None;
            }
            replaced
        });
        match written.await? {
            Ok(()) => Ok(()),
            Err(ReplaceError::Changed) => {
                let this = Arc::clone(self);
                let (files, _) = blocking(move || this.read()).await?;
                let hash = files.map(|files| hash_text(files.hash()));
                Err(ChangeError::FileChanged(hash.unwrap_or_default()))
            }
            Err(error @ ReplaceError::Io(_)) => Err(ChangeError::ReadOnly(error.to_string())),
        }
    }

    /// Restores the text after a failed activation, unless somebody has changed the file since.
    async fn write_back(&self, text: String, before: String) -> Result<(), ChangeError> {
        let path = self.path.clone();
        *self.author.lock() = None;
        let restored = blocking(move || replace(&path, &text, &before)).await?;
        if let Err(error) = restored {
            let file = self.path.display();
            tracing::error!(%file, %error, "configuration file not restored");
        }
        self.reload().await.map(|_| ())
    }

    /// Requests a reload and waits for it. Returns the status, or why the file is not active.
    async fn reload(&self) -> Result<Result<ConfigStatus, String>, ChangeError> {
        let (done, reloaded) = oneshot::channel();
        let reload = async {
            self.reloads.send(done).await.ok()?;
            reloaded.await.ok()
        };
        let ended = tokio::time::timeout(RELOAD_TIMEOUT, reload).await;
        ended
            .map_err(|_| ChangeError::Unknown)?
            .ok_or(ChangeError::Unknown)?;
        let path = self.path.clone();
        let files = blocking(move || ConfigFile::read(&path)).await?;
        let expected = files.map(|files| hash_text(files.hash())).ok();
        let status = self.state.config_status.lock().clone();
        Ok(match status.last_error {
            Some(error) => Err(error),
            None if expected.is_some() && status.hash == expected => Ok(status),
            None => Err("the file has changed again".to_owned()),
        })
    }

    fn now(&self) -> Timestamp {
        self.state.clock.now()
    }
}

/// Runs work that blocks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ChangeError> {
    // Fails only while the runtime stops.
    spawn_blocking(work)
        .await
        .map_err(|_| ChangeError::Stopping)
}
