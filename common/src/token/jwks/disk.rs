//! Persistence of the last fetched key set, so that a process that starts while the issuer is
//! unavailable can verify tokens.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::clock::Timestamp;

/// A key set and the time when it was fetched.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedKeySet {
    issuer: String,
    url: String,
    pub(super) fetched_at_ms: i64,
    pub(super) body: String,
}

/// Loads the saved set. Returns `None` if there is none or it is unreadable.
pub(super) async fn load(dir: &Path, issuer: &str, url: &Url) -> Option<SavedKeySet> {
    let text = tokio::fs::read(path(dir, issuer, url)).await.ok()?;
    let saved: SavedKeySet = serde_json::from_slice(&text).ok()?;
    (saved.issuer == issuer && saved.url == url.as_str()).then_some(saved)
}

/// Saves the set with a temporary file and a rename, so that a crash leaves the old or the new set.
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
    let path = path(dir, issuer, url);
    if let Err(error) = write(dir, &path, &saved).await {
        tracing::warn!(path = %path.display(), %error, "JWKS save failed");
    }
}

async fn write(dir: &Path, path: &Path, saved: &SavedKeySet) -> std::io::Result<()> {
    tokio::fs::create_dir_all(dir).await?;
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    tokio::fs::write(&temporary, serde_json::to_vec(saved)?).await?;
    tokio::fs::rename(&temporary, path).await
}

fn path(dir: &Path, issuer: &str, url: &Url) -> PathBuf {
    let digest = Sha256::new()
        .chain_update(issuer)
        .chain_update([0])
        .chain_update(url.as_str())
        .finalize();
    dir.join(format!("jwks-{}.json", hex::encode(&digest[..16])))
}
