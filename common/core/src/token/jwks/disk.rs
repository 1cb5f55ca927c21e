//! Persistence of the last fetched key set, so that a process that starts while the issuer is
//! unavailable can verify tokens.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;
use url::Url;

use crate::clock::Timestamp;
use crate::files::{WRITING, check_access, private_folder, read_regular, replace_private};

/// Maximum length of a file that is read.
const MAX_FILE_BYTES: usize = 1 << 20;

/// A key set and the time when it was fetched.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedKeySet {
    issuer: String,
    url: String,
    pub(super) fetched_at_ms: i64,
    pub(super) body: String,
}

/// Loads the saved set. Returns `None` if there is none, it is unreadable, or others could have
/// written it.
pub(super) async fn load(dir: &Path, issuer: &str, url: &Url) -> Option<SavedKeySet> {
    let (dir, path) = (dir.to_owned(), path(dir, issuer, url));
    let shown = path.display().to_string();
    let read = spawn_blocking(move || {
        check_access(&dir, WRITING)?;
        check_access(&path, WRITING)?;
        read_regular(&path, MAX_FILE_BYTES)
    });
    let text = match read.await.unwrap_or_else(|error| Err(error.into())) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = shown, %error, "saved JWKS not used");
            return None;
        }
    };
    let saved: SavedKeySet = serde_json::from_slice(&text).ok()?;
    (saved.issuer == issuer && saved.url == url.as_str()).then_some(saved)
}

/// Saves the set, so that a crash leaves the old or the new one.
pub(super) async fn save(dir: &Path, issuer: &str, url: &Url, fetched_at: Timestamp, body: &[u8]) {
    let Ok(body) = std::str::from_utf8(body) else {
        return;
    };
    let saved = SavedKeySet {
        issuer: issuer.to_owned(),
        url: url.to_string(),
        fetched_at_ms: fetched_at.0,
        body: body.to_owned(),
    };
    let (dir, path) = (dir.to_owned(), path(dir, issuer, url));
    let shown = path.display().to_string();
    let write = spawn_blocking(move || {
        private_folder(&dir, WRITING)?;
        replace_private(&path, &serde_json::to_vec(&saved)?)
    });
    if let Err(error) = write.await.unwrap_or_else(|error| Err(error.into())) {
        tracing::warn!(path = shown, %error, "JWKS save failed");
    }
}

fn path(dir: &Path, issuer: &str, url: &Url) -> PathBuf {
    let digest = Sha256::digest(format!("{issuer}\0{url}"));
    dir.join(format!("jwks-{}.json", hex::encode(&digest[..16])))
}
