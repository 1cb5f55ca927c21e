//! The file of the keys, which is read again when it changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use postern_core::exit::Exit;
use postern_core::files::{WRITING_OF_OTHERS, check_access, read_regular_text};

use crate::api_keys::ApiKeys;

/// Maximum bytes of the file: about 400,000 keys.
const MAX_FILE_BYTES: usize = 64 << 20;

/// A file and the keys that were read from it.
#[derive(Debug)]
pub(crate) struct ApiKeyFile {
    path: PathBuf,
    keys: ArcSwap<ApiKeys>,
    /// The result of the last attempt: the hash of the text, or the reason why it cannot be read.
    last_attempt: Mutex<Result<u64, String>>,
}

/// Reads the text of a file that no other user may write.
pub(super) fn read(path: &Path) -> Result<String, Exit> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Exit::usage(format!("{}: cannot read: {error}", path.display()))
    };
    let text = read_regular_text(path, MAX_FILE_BYTES).map_err(|error| unreadable(&error))?;
    check_access(path, WRITING_OF_OTHERS).map_err(|error| unreadable(&error))?;
    Ok(text)
}

impl ApiKeyFile {
    /// # Errors
    /// As [`ApiKeys::load`].
    pub(crate) fn load(path: PathBuf) -> Result<Self, Exit> {
        let text = read(&path)?;
        let keys = ApiKeys::parse(&path, &text)?;
        Ok(Self {
            path,
            keys: ArcSwap::from_pointee(keys),
            last_attempt: Mutex::new(Ok(hash(&text))),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keys(&self) -> Guard<Arc<ApiKeys>> {
        self.keys.load()
    }

    /// Reads the file again if its text has changed. Returns the number of keys if it has, once for
    /// each change. While it is invalid the previous keys stay in use.
    ///
    /// # Errors
    /// As [`ApiKeys::load`], once for each text or reason.
    pub(crate) fn refresh(&self) -> Result<Option<usize>, Exit> {
        let mut last_attempt = self.last_attempt.lock();
        let text = match read(&self.path) {
            Ok(text) => text,
            Err(exit) => {
                let reason = Err(exit.message().to_owned());
                let is_known = *last_attempt == reason;
                *last_attempt = reason;
                return if is_known { Ok(None) } else { Err(exit) };
            }
        };
        let hash = Ok(hash(&text));
        if *last_attempt == hash {
            return Ok(None);
        }
        *last_attempt = hash;
        if text.trim().is_empty() && self.keys.load().len() > 0 {
            return Err(Exit::usage(format!(
                "{}: is empty; a file whose last key is revoked has at least a comment",
                self.path.display()
            )));
        }
        let keys = ApiKeys::parse(&self.path, &text)?;
        keys.inherit_uses(&self.keys.load());
        let count = keys.len();
        self.keys.store(Arc::new(keys));
        Ok(Some(count))
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
