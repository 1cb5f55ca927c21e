//! The data folder: one owner at a time, files that only the user reads, writes that happen whole
//! or not at all.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::Secret;
use postern_common::exit::Exit;

/// The data folder while this process owns it; the lock goes with the value, also when the process
/// is killed.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
}

// === impl Folder ===

impl Folder {
    /// Makes the folder if it is not there, and takes it.
    ///
    /// # Errors
    /// 69 when it cannot be written, or another process has it.
    pub(crate) fn take(path: &Path) -> Result<Self, Exit> {
        let unusable = |error: std::io::Error| {
            Exit::unavailable(format!("{}: cannot write here: {error}", path.display()))
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(unusable)?;
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

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder inside, made if need be.
    pub(crate) fn subfolder(&self, name: &str) -> Result<PathBuf, Exit> {
        let path = self.path.join(name);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| {
                Exit::unavailable(format!("{}: cannot write here: {error}", path.display()))
            })?;
        Ok(path)
    }

    /// A SQLite database inside, as a URL.
    pub(crate) fn database(&self, name: &str) -> String {
        database_url(&self.path.join(name))
    }

    /// A secret that is made on first use and kept: 32 random bytes in base64 by `encode`.
    pub(crate) fn secret(
        &self,
        name: &str,
        encode: impl Fn(&[u8; 32]) -> String,
    ) -> Result<Secret, Exit> {
        let path = self.path.join(name);
        if let Some(bytes) = read_if_there(&path)? {
            let text = String::from_utf8(bytes).unwrap_or_default();
            return Ok(Secret::new(text.trim().to_owned()));
        }
        let secret = encode(&random()?);
        write_private(&path, secret.as_bytes())?;
        Ok(Secret::new(secret))
    }
}

impl Drop for Folder {
    /// Unlocks by name: closing alone leaves the lock to a child of this process until that child
    /// begins its program.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

/// A path as a `sqlite://` URL.
pub(crate) fn database_url(path: &Path) -> String {
    format!(
        "sqlite://{}",
        path.display()
            .to_string()
            .replace('%', "%25")
            .replace('?', "%3F")
    )
}

/// 32 bytes from the system's random source.
pub(crate) fn random() -> Result<[u8; 32], Exit> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|_| Exit::unavailable("the system gives no random bytes"))?;
    Ok(bytes)
}

/// 32 random bytes as 43 characters that need no quoting anywhere.
pub(crate) fn url_safe(bytes: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The file's bytes; `None` if there is no such file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Exit> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Exit::unavailable(format!(
            "{}: cannot read: {error}",
            path.display()
        ))),
    }
}

/// Writes a file that only its owner reads (0600), whole or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Exit> {
    write_and_rename(path, bytes)
        .map_err(|error| Exit::unavailable(format!("{}: cannot write: {error}", path.display())))
}

fn write_and_rename(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = path.with_added_extension("part");
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&part, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let base = tempfile::tempdir().expect("folder");
        let path = base.path().join("var");
        let folder = Folder::take(&path).expect("taken");
        let second = Folder::take(&path).expect_err("refused");
        assert_eq!(second.status(), 69);
        assert!(second.message().contains("another postern"), "{second}");
        let as_a_child_has_it = folder.lock.try_clone().expect("a second descriptor");
        drop(folder);
        Folder::take(&path).expect("free again");
        drop(as_a_child_has_it);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_one_line() {
        let base = tempfile::tempdir().expect("folder");
        let file = base.path().join("file");
        std::fs::write(&file, b"").expect("written");
        let exit = Folder::take(&file.join("var")).expect_err("refused");
        assert_eq!((exit.status(), exit.message().lines().count()), (69, 1));
    }

    #[test]
    fn a_secret_is_kept_and_private() {
        let base = tempfile::tempdir().expect("folder");
        let folder = Folder::take(base.path()).expect("taken");
        let first = folder.secret("key", url_safe).expect("made");
        assert_eq!(first, folder.secret("key", url_safe).expect("kept"));
        let mode = std::fs::metadata(base.path().join("key"))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
