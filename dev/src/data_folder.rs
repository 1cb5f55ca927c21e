//! The data folder: exclusive use by one process, files readable by their owner only, and atomic
//! writes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::Secret;
use postern_core::exit::Exit;
use postern_core::files::replace_private;

use crate::random;

/// The data folder, locked by this process. The lock is released on drop, and by the operating
/// system if the process is killed.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    lock: File,
}

// === impl DataFolder ===

impl DataFolder {
    /// Creates the folder if it does not exist, and locks it.
    ///
    /// # Errors
    /// Exits with status 69 if the folder is not writable, or is locked by another process.
    pub fn acquire(path: &Path) -> Result<Self, Exit> {
        let unusable = |error: std::io::Error| {
            Exit::unavailable(format!("{}: cannot write here: {error}", path.display()))
        };
        create_private(path)?;
        let path = path.canonicalize().map_err(unusable)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.join("lock")).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, lock }),
            Err(TryLockError::WouldBlock) => Err(Exit::unavailable(format!(
                "{}: another postern is running with this folder; stop it, or give this one --data-dir",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a subfolder, creating it if it does not exist.
    ///
    /// # Errors
    /// Exits with status 69 if it cannot be created.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf, Exit> {
        let path = self.path.join(name);
        create_private(&path)?;
        Ok(path)
    }

    /// Returns the URL of a SQLite database in the folder.
    #[must_use]
    pub fn database(&self, name: &str) -> String {
        database_url(&self.path.join(name))
    }

    /// Returns the secret in a file. On first use, generates 32 random bytes and stores them as
    /// encoded by `encode`.
    ///
    /// # Errors
    /// Exits with status 69 if the file cannot be read or written.
    pub fn secret(&self, name: &str, encode: impl Fn(&[u8; 32]) -> String) -> Result<Secret, Exit> {
        let path = self.path.join(name);
        if let Some(bytes) = read_optional(&path)? {
            let text = String::from_utf8(bytes).unwrap_or_default();
            return Ok(Secret::new(text.trim().to_owned()));
        }
        let secret = encode(&random::bytes());
        write_private(&path, secret.as_bytes())?;
        Ok(Secret::new(secret))
    }
}

impl Drop for DataFolder {
    /// Unlocks explicitly: closing the file alone leaves the lock with a child process until it
    /// calls exec.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

/// Creates a folder for its owner only, unless it exists.
fn create_private(path: &Path) -> Result<(), Exit> {
    let mut builder = std::fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o700).create(path);
    created.map_err(|error| {
        Exit::unavailable(format!("{}: cannot write here: {error}", path.display()))
    })
}

/// Returns the `sqlite://` URL of a path.
#[must_use]
pub fn database_url(path: &Path) -> String {
    let path = path.display().to_string();
    format!("sqlite://{}", path.replace('%', "%25").replace('?', "%3F"))
}

/// Encodes 32 bytes as 43 characters that need no quoting.
#[must_use]
pub fn url_safe(bytes: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a file. Returns `None` if it does not exist.
///
/// # Errors
/// Exits with status 69 if it cannot be read.
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, Exit> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Exit::unavailable(format!(
            "{}: cannot read: {error}",
            path.display()
        ))),
    }
}

/// Writes a file with mode 0600, atomically.
///
/// # Errors
/// Exits with status 69 if it cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Exit> {
    replace_private(path, bytes)
        .map_err(|error| Exit::unavailable(format!("{}: cannot write: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secret_is_persisted_with_private_mode() {
        let base = tempfile::tempdir().expect("folder");
        let folder = DataFolder::acquire(base.path()).expect("the folder is locked");
        let first = folder
            .secret("key", url_safe)
            .expect("the secret is generated");
        assert_eq!(
            first,
            folder.secret("key", url_safe).expect("the secret is read")
        );
        let mode = std::fs::metadata(base.path().join("key"))
            .expect("the entry exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
