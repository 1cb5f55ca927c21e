//! Uploaded files: hashed while they are written, under a temporary name until complete.

use std::path::Path;

use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempPath};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// A file that is being received. It is deleted on drop unless it was kept.
#[derive(Debug)]
pub(super) struct IncomingFile {
    pub(super) name: String,
    pub(super) content_type: Option<String>,
    path: TempPath,
    file: File,
    hash: Sha256,
    pub(super) size: u64,
}

// === impl IncomingFile ===

impl IncomingFile {
    pub(super) fn create(
        folder: &Path,
        name: String,
        content_type: Option<String>,
    ) -> std::io::Result<Self> {
        let (file, path) = NamedTempFile::new_in(folder)?.into_parts();
        Ok(Self {
            name,
            content_type,
            path,
            file: File::from_std(file),
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
        self.path.persist(folder.join(id))?;
        File::open(folder).await?.sync_all().await?;
        Ok(hex::encode(self.hash.finalize()))
    }
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
}
