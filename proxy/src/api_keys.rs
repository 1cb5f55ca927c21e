//! API keys of services, from a file that contains their digests.
//!
//! - **Enters:** the file that `[api_keys]` names, and keys that clients present.
//! - **Leaves:** the service that a key identifies. A key is `pk_`, an id, `_` and a secret of 256
//!   random bits, so that a plain SHA-256 digest of it cannot be guessed.
//! - **May depend on:** no other module of this crate.

mod create;
mod file;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ahash::AHashMap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use postern_common::Code;
use postern_common::Problem;
use postern_common::clock::Timestamp;
use postern_common::config;
use postern_common::decode::{Field, Object};
use postern_common::exit::Exit;
use postern_common::token::{Caller, Service};
use serde_json::json;
use sha2::{Digest, Sha256};

pub use create::{NewApiKey, create};
pub(crate) use file::ApiKeyFile;

/// The beginning of every key, by which it differs from a token and is found by secret scanners.
const PREFIX: &str = "pk_";

/// Characters of an id.
const ID_LENGTH: usize = 12;

/// Characters of a secret: 32 bytes in base64url.
const SECRET_LENGTH: usize = 43;

/// The issuer of the services that keys identify.
const ISSUER: &str = "urn:postern:api-keys";

/// The keys of a file.
#[derive(Default)]
pub struct ApiKeys(AHashMap<Box<str>, ApiKey>);

/// A key without its secret.
struct ApiKey {
    /// The SHA-256 digest of the whole key.
    digest: [u8; 32],
    service: Arc<Service>,
    /// Time of its last use in Unix seconds; 0 if it was not used.
    last_used: AtomicI64,
}

/// The use of a key.
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

/// Returns whether a value of `Authorization` contains an API key, with any scheme or none.
#[must_use]
pub(crate) fn has_api_key(authorization: &[u8]) -> bool {
    let mut words = authorization.split(u8::is_ascii_whitespace);
    words.any(|word| word.starts_with(PREFIX.as_bytes()))
}

// === impl ApiKeys ===

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
            let mut keys = AHashMap::new();
            let _count = root.list("key", |field| {
                let (id, key) = field.object(ApiKey::read)?;
                if keys.insert(id, key).is_some() {
                    field.fail("duplicate_name", "a key with this id is listed before")
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
    /// `invalid_api_key` if it is malformed, unknown or expired. Whether its id is known makes no
    /// difference in time.
    pub fn verify(&self, key: &str, now: Timestamp) -> Result<Caller, Problem> {
        let refused = || Problem::from(Code::InvalidApiKey);
        let id = id_of(key).ok_or_else(refused)?;
        let digest = Sha256::digest(key.as_bytes());
        let known = self.0.get(id);
        let expected = known.map_or(&[0; 32], |known| &known.digest);
        let is_equal = verify_slices_are_equal(digest.as_slice(), expected).is_ok();
        let known = known.filter(|_| is_equal).ok_or_else(refused)?;
        if known.service.expires_at <= now.unix_seconds() {
            return Err(refused().detail("The API key has expired."));
        }
        known.last_used.store(now.unix_seconds(), Ordering::Relaxed);
        Ok(Caller::Service(Arc::clone(&known.service)))
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the uses of all keys.
    pub(crate) fn uses(&self) -> impl Iterator<Item = ApiKeyUse> {
        self.0.iter().map(|(id, key)| ApiKeyUse {
            id: id.clone(),
            name: Arc::clone(&key.service.service_id),
            last_used: key.last_used.load(Ordering::Relaxed),
        })
    }

    /// Takes over the times of last use of the same keys.
    fn inherit_uses(&self, before: &Self) {
        for (id, key) in &self.0 {
            if let Some(earlier) = before.0.get(id).filter(|it| it.digest == key.digest) {
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

/// Returns the id of a well-formed key.
fn id_of(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?;
    let (id, secret) = rest.split_at_checked(ID_LENGTH)?;
    let secret = secret.strip_prefix('_')?;
    let is_secret = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_good = is_id(id) && secret.len() == SECRET_LENGTH && secret.bytes().all(is_secret);
    is_good.then_some(id)
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == ID_LENGTH && text.bytes().all(is_digit)
}

// === impl ApiKey ===

impl ApiKey {
    /// Reads an entry of the file.
    fn read(entry: &Object<'_>) -> Option<(Box<str>, Self)> {
        let id = entry.required("id", |field| {
            let id =
                field.string_as(|| json!({ "type": "string", "pattern": "^[0-9a-f]{12}$" }))?;
            match is_id(id) {
                true => Some(Box::from(id)),
                false => field.fail("invalid_format", "must be 12 hexadecimal digits"),
            }
        });
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
            id?,
            Self {
                digest: digest?,
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
fn read_digest(field: Field<'_>) -> Option<[u8; 32]> {
    let form = || json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" });
    let digest: Option<[u8; 32]> = hex::decode(field.string_as(form)?)
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
