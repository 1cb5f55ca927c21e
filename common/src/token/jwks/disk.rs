//! The last good set, kept across restarts: a gateway that starts while the issuer is away still
//! knows the keys that it knew.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::clock::Timestamp;

/// A set and when it was fetched.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    issuer: String,
    url: String,
    pub(super) fetched_at_ms: i64,
    pub(super) body: String,
}

/// `None` if there is none, or none that can be read; the network is asked then.
pub(super) async fn load(dir: &Path, issuer: &str, url: &Url) -> Option<Saved> {
    let text = tokio::fs::read(path(dir, issuer, url)).await.ok()?;
    let saved: Saved = serde_json::from_slice(&text).ok()?;
    (saved.issuer == issuer && saved.url == url.as_str()).then_some(saved)
}

/// Writes beside and renames, so that a crash leaves the old set or the new one.
pub(super) async fn save(dir: &Path, issuer: &str, url: &Url, fetched_at: Timestamp, body: &[u8]) {
    let Ok(body) = std::str::from_utf8(body) else {
        return;
    };
    let saved = Saved {
        issuer: issuer.to_owned(),
        url: url.to_string(),
        fetched_at_ms: fetched_at.0,
        body: body.to_owned(),
    };
    let path = path(dir, issuer, url);
    if let Err(error) = write(dir, &path, &saved).await {
        tracing::warn!(path = %path.display(), %error, "the keys could not be kept on disk");
    }
}

async fn write(dir: &Path, path: &Path, saved: &Saved) -> std::io::Result<()> {
    tokio::fs::create_dir_all(dir).await?;
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    tokio::fs::write(&beside, serde_json::to_vec(saved)?).await?;
    tokio::fs::rename(&beside, path).await
}

fn path(dir: &Path, issuer: &str, url: &Url) -> PathBuf {
    let digest = Sha256::new()
        .chain_update(issuer)
        .chain_update([0])
        .chain_update(url.as_str())
        .finalize();
    let name: String = digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    dir.join(format!("jwks-{name}.json"))
}
