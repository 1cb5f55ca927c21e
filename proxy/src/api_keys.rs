//! API keys of services, from a file that contains their digests.
//!
//! - **Enters:** the file that `[api_keys]` names, and keys that clients present.
//! - **Leaves:** the service that a key identifies. A created key is `pk_`, an id, `_` and a secret of
//!   256 random bits, so that a plain SHA-256 digest of it cannot be guessed. An imported one has any
//!   form.
//! - **May depend on:** no other module of this crate.

mod create;
mod file;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ahash::{AHashMap, AHashSet};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;
use postern_core::Code;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_core::config;
use postern_core::decode::{Field, Object};
use postern_core::exit::Exit;
use postern_core::token::{Caller, Service};
use serde_json::json;
use sha2::{Digest, Sha256};

pub use create::{NewApiKey, create};
pub(crate) use file::ApiKeyFile;

/// The beginning of every key, by which it differs from a token and is found by secret scanners.
const PREFIX: &str = "pk_";

const ISSUER: &str = "urn:postern:api-keys";

/// The SHA-256 digest of a whole key.
type KeyDigest = [u8; 32];

/// The keys of a file.
#[derive(Default)]
pub struct ApiKeys(AHashMap<KeyDigest, ApiKey>);

/// A key without its secret.
struct ApiKey {
    /// The name of this key among those of the service.
    id: Box<str>,
    service: Arc<Service>,
    /// Time of its last use in Unix seconds; 0 if it was not used.
    last_used: AtomicI64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiKeyUse {
    pub(crate) id: Box<str>,
    pub(crate) name: Arc<str>,
    /// Unix seconds; 0 if it was not used.
    pub(crate) last_used: i64,
}

/// Returns whether a Bearer token is an API key, valid or not.
#[must_use]
pub fn is_api_key(token: &str) -> bool {
    token.starts_with(PREFIX)
}

/// Returns whether a value of `Authorization` contains an API key, in whatever form: with any scheme
/// or none, quoted, as a parameter, or as the user or password of Basic authentication (RFC 7617).
#[must_use]
pub(crate) fn has_api_key(authorization: &[u8]) -> bool {
    // Not within a token: any three characters may be in one.
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(byte);
    let has_key = |text: &[u8]| {
        let mut found = memmem::find_iter(text, PREFIX);
        found.any(|at| !text[..at].last().is_some_and(is_word))
    };
    let basic = authorization.split_at_checked(5);
    let basic = basic.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic"));
    let basic = basic.and_then(|(_, encoded)| STANDARD.decode(encoded.trim_ascii()).ok());
    has_key(authorization) || basic.is_some_and(|text| has_key(&text))
}

impl ApiKeys {
    /// Reads a file.
    ///
    /// # Errors
    /// Status 64 if it cannot be read or is invalid, with all mistakes.
    pub fn load(path: &Path) -> Result<Self, Exit> {
        Self::parse(path, &file::read(path)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Exit> {
        config::parse(&path.display().to_string(), text, |root| {
            let (mut keys, mut ids) = (AHashMap::new(), AHashSet::new());
            let _count = root.list("key", |field| {
                let (digest, key) = field.object(ApiKey::read)?;
                if !ids.insert(key.id.clone()) {
                    field.fail("duplicate_name", "a key with this id is listed before")
                } else if keys.insert(digest, key).is_some() {
                    field.fail("duplicate_key", "a key with this digest is listed before")
                } else {
                    Some(())
                }
            });
            Some(Self(keys))
        })
    }

    /// Verifies a key.
    ///
    /// # Errors
    /// `invalid_api_key` if it is unknown or expired. The time of the look-up depends on the digest,
    /// which tells nothing about the digests of other keys that a client could use.
    pub fn verify(&self, key: &str, now: Timestamp) -> Result<Caller, Problem> {
        let refused = || Problem::from(Code::InvalidApiKey);
        let digest: KeyDigest = Sha256::digest(key.as_bytes()).into();
        let known = self.0.get(&digest).ok_or_else(refused)?;
        if known.service.expires_at <= now.unix_seconds() {
            return Err(refused().detail("The API key has expired."));
        }
        known.last_used.store(now.unix_seconds(), Ordering::Relaxed);
        Ok(Caller::Service(Arc::clone(&known.service)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn uses(&self) -> impl Iterator<Item = ApiKeyUse> {
        self.0.values().map(|key| ApiKeyUse {
            id: key.id.clone(),
            name: Arc::clone(&key.service.service_id),
            last_used: key.last_used.load(Ordering::Relaxed),
        })
    }

    /// Takes over the times of last use of the same keys.
    fn inherit_uses(&self, before: &Self) {
        for (digest, key) in &self.0 {
            if let Some(earlier) = before.0.get(digest) {
                let last_used = earlier.last_used.load(Ordering::Relaxed);
                key.last_used.store(last_used, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiKeys").field(&self.0.len()).finish()
    }
}

impl ApiKey {
    fn read(entry: &Object<'_>) -> Option<(KeyDigest, Self)> {
        let id = entry.required("id", |field| read_word(field, "an id"));
        let name = entry.required("name", |field| read_word(field, "a name"));
        let scopes = entry.list("scopes", |field| read_word(field, "a scope"));
        let digest = entry.required("sha256", read_digest);
        let expires_at = entry.optional("expires_at", |field| field.timestamp());
        let name: Arc<str> = name?.into();
        let service = Service {
            issuer: ISSUER.into(),
            subject: Arc::clone(&name),
            service_id: name,
            scopes: scopes.into(),
            expires_at: match entry.has("expires_at") {
                // An invalid time is a mistake, and no permission.
                true => expires_at.map_or(i64::MIN, Timestamp::unix_seconds),
                false => i64::MAX,
            },
        };
        Some((
            digest?,
            Self {
                id: id?.into(),
                service: Arc::new(service),
                last_used: AtomicI64::new(0),
            },
        ))
    }
}

/// Reads 1 to 128 visible ASCII characters, which a header field can carry.
fn read_word(field: Field<'_>, what: &str) -> Option<String> {
    let text = field.text(1..=128)?;
    if is_word(&text) {
        return Some(text);
    }
    field.fail(
        "invalid_format",
        format!("must be {what} of visible ASCII characters without quotation marks"),
    )
}

fn is_word(text: &str) -> bool {
    let is_visible = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    (1..=128).contains(&text.len()) && text.bytes().all(is_visible)
}

/// Reads a SHA-256 digest in hexadecimal digits. One whose bytes are all equal is a placeholder.
fn read_digest(field: Field<'_>) -> Option<KeyDigest> {
    let form = || json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" });
    let digest: Option<KeyDigest> = hex::decode(field.string_as(form)?)
        .ok()
        .and_then(|bytes| bytes.try_into().ok());
    match digest {
        Some(digest) if digest.iter().any(|byte| *byte != digest[0]) => Some(digest),
        Some(_) | None => field.fail(
            "invalid_format",
            "must be the SHA-256 digest of a key, as `postern-proxy api-key create` prints it",
        ),
    }
}

#[cfg(test)]
mod tests;
