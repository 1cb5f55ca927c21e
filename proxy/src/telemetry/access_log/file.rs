//! A log file that is rotated by size.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// A log file that is rotated by size.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: Option<u64>,
}

impl LogFile {
    /// Opens the file with mode 0640. Targets that are not regular files (`/dev/stdout`, a pipe)
    /// are never rotated.
    pub(super) fn open(path: PathBuf, max_bytes: Option<u64>) -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&path)?;
        let metadata = file.metadata()?;
        let max_bytes = max_bytes.filter(|_| metadata.is_file());
        Ok(Self {
            path,
            file,
            bytes: metadata.len(),
            max_bytes,
        })
    }

    /// Writes a batch. A batch is never split: the file is rotated before it, replacing the
    /// previously rotated file.
    pub(super) fn write(&mut self, batch: &[u8]) -> std::io::Result<()> {
        let next = self.bytes.saturating_add(batch.len() as u64);
        if self.bytes > 0
            && self.max_bytes.is_some_and(|max_bytes| next > max_bytes)
            && let Err(error) = self.rotate()
        {
            tracing::warn!(%error, path = %self.path.display(), "access log rotation failed");
        }
        self.file.write_all(batch)?;
        self.bytes = self.bytes.saturating_add(batch.len() as u64);
        Ok(())
    }

    /// Rotates the file. If another process rotated it (as during a hot restart) or an operator
    /// moved it, the path refers to another file or to none, and nothing is renamed.
    fn rotate(&mut self) -> std::io::Result<()> {
        let identity = |file: &Metadata| (file.dev(), file.ino());
        match std::fs::metadata(&self.path) {
            Ok(named) if identity(&named) == identity(&self.file.metadata()?) => {
                // The target of a symbolic link is renamed, and the link is kept.
                let file = std::fs::canonicalize(&self.path)?;
                let mut aside = file.clone().into_os_string();
                aside.push(".1");
                std::fs::rename(file, aside)?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.reopen();
        Ok(())
    }

    /// Reopens the file at the path.
    pub(super) fn reopen(&mut self) {
        match Self::open(self.path.clone(), self.max_bytes) {
            Ok(fresh) => *self = fresh,
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "access log reopen failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn full_file_is_rotated() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let mut file = LogFile::open(path.clone(), Some(8)).expect("opens");
        for line in [&b"one\n"[..], b"two\n", b"three and more\n", b"four\n"] {
            file.write(line).expect("writes");
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("reads");
        assert_eq!(
            (read("access.log"), read("access.log.1")),
            ("four\n".into(), "three and more\n".into())
        );
        let mut again = LogFile::open(path, Some(8)).expect("opens");
        again.write(b"five\n").expect("writes");
        assert_eq!(read("access.log"), "five\n", "the existing size counts");
    }

    #[test]
    fn removed_file_is_created_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let mut file = LogFile::open(path.clone(), Some(8)).expect("opens");
        file.write(b"one\n").expect("writes");
        std::fs::remove_file(&path).expect("removes");
        file.write(b"two and more\n").expect("writes");
        assert_eq!(
            std::fs::read_to_string(&path).expect("reads"),
            "two and more\n"
        );
        file.write(b"three\n").expect("writes");
        assert_eq!(
            std::fs::read_to_string(path).expect("reads"),
            "three\n",
            "rotated as before"
        );
    }

    #[test]
    fn two_processes_rotate_a_shared_file_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let open = || LogFile::open(path.clone(), Some(8)).expect("opens");
        let (mut old, mut new) = (open(), open());
        for (one, other) in [(b"1234\n", b"abcd\n"), (b"5678\n", b"efgh\n")] {
            old.write(one).expect("writes");
            new.write(other).expect("writes");
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("reads");
        let all = format!("{}{}", read("access.log.1"), read("access.log"));
        for line in ["1234\n", "abcd\n", "5678\n", "efgh\n"] {
            assert!(all.contains(line), "{line:?} is lost: {all:?}");
        }
    }

    #[test]
    fn rotation_keeps_links_and_skips_devices() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, target) = (
            folder.path().join("access.log"),
            folder.path().join("real.log"),
        );
        std::os::unix::fs::symlink(&target, &link).expect("links");
        let mut file = LogFile::open(link.clone(), Some(8)).expect("opens");
        file.write(b"one\n").expect("writes");
        file.write(b"two and more\n").expect("writes");
        assert!(
            std::fs::symlink_metadata(&link)
                .expect("exists")
                .is_symlink()
        );
        assert_eq!(
            std::fs::read_to_string(link).expect("reads"),
            "two and more\n"
        );
        assert_eq!(
            std::fs::read_to_string(folder.path().join("real.log.1")).expect("reads"),
            "one\n"
        );
        let mode = std::fs::metadata(target)
            .expect("exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o027, 0, "not readable by others: {mode:o}");
        let null = LogFile::open("/dev/null".into(), Some(8)).expect("opens");
        assert_eq!(null.max_bytes, None);
    }
}
