//! The directory with the account, the certificates and the challenges.
//!
//! Files are replaced atomically and have mode 0600. Each private key is in a file with its
//! certificate.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use postern_core::exit::Exit;
use postern_core::files::{OTHERS, private_folder, read_regular, replace_private};
use serde::{Deserialize, Serialize};

use crate::certificates::files::modified_at;

/// Maximum length of a file that is read.
const MAX_FILE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct AcmeStore {
    folder: PathBuf,
}

/// The lock of a store, which ends with this value or the process.
pub(super) type StoreLock = File;

/// The failed orders for a name since the last success.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FailureRecord {
    pub(super) failures: u32,
    /// The time of the next order, in Unix seconds.
    pub(super) retry_at: i64,
    /// The last error, for operators.
    pub(super) error: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum StoreFile<'a> {
    /// The account key and URL, by a digest of the directory URL.
    Account(&'a str),
    /// The private key and the certificate chain of a name, PEM.
    Certificate(&'a str),
    Failures(&'a str),
    /// The key authorization of the pending order of a name.
    Challenge(&'a str),
}

impl AcmeStore {
    /// Opens a store, creating its directory with mode 0700 if it does not exist.
    ///
    /// # Errors
    /// Status 69 if the directory cannot be used, or other users may access it.
    pub(crate) fn open(folder: &Path) -> Result<Self, Exit> {
        let failed = |error: &dyn std::fmt::Display| {
            Exit::unavailable(format!("acme.store {}: {error}", folder.display()))
        };
        for (part, denied) in [("", OTHERS), ("certificates", 0), ("challenges", 0)] {
            private_folder(&folder.join(part), denied).map_err(|error| failed(&error))?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Acquires the lock; `None` if another process holds it.
    pub(super) fn try_lock(&self) -> io::Result<Option<StoreLock>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.folder.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Returns the contents of a file; `None` if it does not exist.
    pub(super) fn read(&self, file: StoreFile<'_>) -> io::Result<Option<Vec<u8>>> {
        match read_regular(&self.path(file), MAX_FILE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    pub(super) fn write(&self, file: StoreFile<'_>, contents: &[u8]) -> io::Result<()> {
        replace_private(&self.path(file), contents)
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, file: StoreFile<'_>) -> io::Result<()> {
        match std::fs::remove_file(self.path(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes the challenges that a process left behind. Requires the lock.
    pub(super) fn remove_challenges(&self, _lock: &StoreLock) -> io::Result<()> {
        for entry in std::fs::read_dir(self.folder.join("challenges"))? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Returns the modification time of a file; `None` if it does not exist.
    pub(super) fn modified_at(&self, file: StoreFile<'_>) -> Option<SystemTime> {
        modified_at(&self.path(file))
    }

    /// Returns the failed orders for a name. An unreadable record counts as none.
    pub(super) fn failures(&self, domain: &str) -> FailureRecord {
        let record = self.read(StoreFile::Failures(domain)).ok().flatten();
        record
            .and_then(|record| serde_json::from_slice(&record).ok())
            .unwrap_or_default()
    }

    /// The parts of names are host names, digests and checked tokens, which contain no separator.
    fn path(&self, file: StoreFile<'_>) -> PathBuf {
        let (folder, name) = match file {
            StoreFile::Account(digest) => ("", format!("account-{digest}.json")),
            StoreFile::Certificate(domain) => ("certificates", format!("{domain}.pem")),
            StoreFile::Failures(domain) => ("certificates", format!("{domain}.failures.json")),
            StoreFile::Challenge(domain) => ("challenges", domain.to_owned()),
        };
        self.folder.join(folder).join(name)
    }
}
