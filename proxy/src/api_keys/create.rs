//! Creation of keys.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::Secret;
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use sha2::{Digest, Sha256};

use crate::api_keys::{PREFIX, is_word};

/// The properties of a new key.
#[derive(Clone, Debug)]
pub struct NewApiKey {
    /// The name of the service that it identifies.
    pub name: String,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// Its lifetime; `None` if it does not expire.
    pub lifetime: Option<Duration>,
}

/// A created key.
#[derive(Debug)]
pub struct CreatedApiKey {
    /// The key, which is stored nowhere.
    pub key: Secret,
    /// The entry of the file, without secrets.
    pub entry: String,
}

/// Creates a key from 38 random bytes.
///
/// # Errors
/// Status 64 if the name or a scope cannot be in the file.
pub fn create(new: &NewApiKey, random: &[u8; 38], now: Timestamp) -> Result<CreatedApiKey, Exit> {
    for (what, text) in
        std::iter::once(("name", &new.name)).chain(new.scopes.iter().map(|scope| ("scope", scope)))
    {
        if !is_word(text) {
            return Err(Exit::usage(format!(
                "the {what} must be 1 to 128 visible ASCII characters without quotation marks"
            )));
        }
    }
    let (id, secret) = random.split_at(6);
    let id = hex::encode(id);
    let key = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
    let digest = hex::encode(Sha256::digest(key.as_bytes()));
    let (name, scopes) = (&new.name, &new.scopes);
    let mut entry = format!(
        "[[key]]\nid = \"{id}\"\nname = \"{name}\"\nscopes = {scopes:?}\nsha256 = \"{digest}\"\n"
    );
    if let Some(lifetime) = new.lifetime {
        entry += &format!("expires_at = \"{}\"\n", now.plus(lifetime));
    }
    Ok(CreatedApiKey {
        key: key.into(),
        entry,
    })
}
