//! Uploaded files: hashed while they are written, under a temporary name until complete.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// Extension of temporary names.
const PARTIAL_EXTENSION: &str = "part";

/// The path of a temporary file, which is deleted on drop unless it was renamed.
#[derive(Debug)]
struct TemporaryPath(Option<PathBuf>);

/// A file that is being received.
#[derive(Debug)]
pub(super) struct IncomingFile {
    path: TemporaryPath,
    file: File,
    hash: Sha256,
    /// Bytes received.
    pub(super) size: u64,
}

// === impl IncomingFile ===

impl IncomingFile {
    pub(super) async fn create(folder: &Path, id: &str) -> std::io::Result<Self> {
        let path = folder.join(format!("{id}.{PARTIAL_EXTENSION}"));
        let file = File::create_new(&path).await?;
        Ok(Self {
            path: TemporaryPath(Some(path)),
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

    /// Gives the file, now complete and on disk, its final name. Returns its SHA-256 digest in
    /// lower-case hexadecimal.
    pub(super) async fn persist(mut self, folder: &Path, id: &str) -> std::io::Result<String> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        if let Some(path) = &self.path.0 {
            tokio::fs::rename(path, folder.join(id)).await?;
            self.path.0 = None;
        }
        File::open(folder).await?.sync_all().await?;
        Ok(hex::encode(self.hash.finalize()))
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _deleted_at_the_next_start = std::fs::remove_file(path);
        }
    }
}

/// Deletes incomplete files.
pub(super) fn delete_incomplete(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == PARTIAL_EXTENSION)
        {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Returns the last segment of a file name from the client, without control characters. The result
/// is only displayed.
pub(super) fn sanitize_file_name(name: &str) -> String {
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
    fn file_name_is_reduced_to_last_segment() {
        assert_eq!(sanitize_file_name("../../etc/passwd"), "passwd");
        assert_eq!(sanitize_file_name("C:\\x\\cv\r\n.pdf"), "cv.pdf");
        assert_eq!(sanitize_file_name("a/"), "unnamed");
    }

    #[tokio::test]
    async fn aborted_upload_leaves_no_file() {
        let folder = tempfile::tempdir().expect("folder");
        let mut file = IncomingFile::create(folder.path(), "one")
            .await
            .expect("created");
        file.write(b"abc").await.expect("written");
        drop(file);
        std::fs::write(folder.path().join("two.part"), b"").expect("written");
        delete_incomplete(folder.path()).expect("swept");
        assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0);
        let mut file = IncomingFile::create(folder.path(), "one")
            .await
            .expect("created");
        file.write(b"abc").await.expect("written");
        let digest = file.persist(folder.path(), "one").await.expect("kept");
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            std::fs::read(folder.path().join("one")).expect("the entry exists"),
            b"abc"
        );
    }
}
