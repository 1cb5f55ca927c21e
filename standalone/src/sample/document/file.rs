//! A file that arrives: hashed as it is written, under a temporary name until it is whole.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// Temporary names end with this.
const PART: &str = "part";

/// Removes its file when it is dropped, unless it was renamed.
#[derive(Debug)]
struct Temporary(Option<PathBuf>);

/// A file of which more will come.
#[derive(Debug)]
pub(super) struct Incoming {
    path: Temporary,
    file: File,
    hash: Sha256,
    size: u64,
}

/// A file of which all has come and is on disk.
#[derive(Debug)]
pub(super) struct Whole {
    path: Temporary,
    /// Bytes.
    pub(super) size: u64,
    /// Lower-case hexadecimal.
    pub(super) sha256: String,
}

// === impl Incoming ===

impl Incoming {
    pub(super) async fn create(folder: &Path, id: &str) -> std::io::Result<Self> {
        let path = folder.join(format!("{id}.{PART}"));
        let file = File::create_new(&path).await?;
        Ok(Self {
            path: Temporary(Some(path)),
            file,
            hash: Sha256::new(),
            size: 0,
        })
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        self.file.write_all(bytes).await
    }

    pub(super) async fn finish(mut self) -> std::io::Result<Whole> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        let mut sha256 = String::with_capacity(64);
        for byte in self.hash.finalize() {
            let _never_fails = write!(sha256, "{byte:02x}");
        }
        Ok(Whole {
            path: self.path,
            size: self.size,
            sha256,
        })
    }
}

// === impl Whole ===

impl Whole {
    /// Gives the file its name for good.
    pub(super) async fn keep(mut self, folder: &Path, id: &str) -> std::io::Result<()> {
        if let Some(path) = &self.path.0 {
            tokio::fs::rename(path, folder.join(id)).await?;
            self.path.0 = None;
        }
        File::open(folder).await?.sync_all().await
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _swept_at_the_next_start = std::fs::remove_file(path);
        }
    }
}

/// Removes what a crash left half-way.
pub(super) fn sweep(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == PART) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The last segment of what the client calls the file, without control characters; it is shown,
/// never opened.
pub(super) fn plain_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String = last
        .chars()
        .filter(|character| !character.is_control())
        .take(200)
        .collect();
    if plain.is_empty() {
        "unnamed".to_owned()
    } else {
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_only_a_name() {
        assert_eq!(plain_name("../../etc/passwd"), "passwd");
        assert_eq!(plain_name("C:\\x\\cv\r\n.pdf"), "cv.pdf");
        assert_eq!(plain_name("a/"), "unnamed");
    }

    #[tokio::test]
    async fn an_upload_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let mut file = Incoming::create(folder.path(), "one")
            .await
            .expect("created");
        file.write(b"abc").await.expect("written");
        drop(file);
        std::fs::write(folder.path().join("two.part"), b"").expect("written");
        sweep(folder.path()).expect("swept");
        assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0);
        let mut file = Incoming::create(folder.path(), "one")
            .await
            .expect("created");
        file.write(b"abc").await.expect("written");
        let whole = file.finish().await.expect("whole");
        assert_eq!(
            whole.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        whole.keep(folder.path(), "one").await.expect("kept");
        assert_eq!(
            std::fs::read(folder.path().join("one")).expect("there"),
            b"abc"
        );
    }
}
