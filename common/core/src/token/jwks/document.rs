//! Parsing of a JWKS document (RFC 7517 section 5).

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::status::SkippedKey;
use crate::token::jwk::{NO_KEY_ID, VerificationKey};
use crate::token::strict_json::StrictObject;

/// A parsed JWKS (RFC 7517 section 5). Unusable keys are skipped, with the reason.
#[derive(Default)]
pub(super) struct JwksDocument {
    /// Keys by `kid`.
    pub(super) keys: Vec<(String, VerificationKey)>,
    /// Keys without `kid`, which are used for ID tokens only and also listed in `skipped`.
    pub(super) unnamed: Vec<VerificationKey>,
    pub(super) skipped: Vec<SkippedKey>,
}

#[derive(Deserialize)]
struct RawKeySet<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// Maximum keys of a set; larger sets are rejected.
const MAX_KEYS: usize = 100;

impl JwksDocument {
    /// Parses a key set.
    pub(super) fn read(text: &[u8]) -> Result<Self, &'static str> {
        let raw = serde_json::from_slice(text);
        let raw: RawKeySet<'_> = raw.map_err(|_| "the answer is not a JWKS")?;
        if raw.keys.len() > MAX_KEYS {
            return Err("the JWKS has more than 100 keys");
        }
        let mut document = Self::default();
        for jwk in raw.keys {
            document.add(jwk);
        }
        document.drop_ambiguous();
        Ok(document)
    }

    fn add(&mut self, jwk: &RawValue) {
        let Ok(object) = StrictObject::read(jwk.get().as_bytes()) else {
            return self.skip(None, "it is not an object with each name once");
        };
        let members = object.to_map();
        match VerificationKey::read(&members) {
            Ok((Some(key_id), key)) => self.keys.push((key_id, key)),
            Ok((None, key)) => {
                self.unnamed.push(key);
                self.skip(None, NO_KEY_ID);
            }
            Err(reason) => {
                let key_id = members.get("kid").and_then(|id| id.as_str());
                self.skip(key_id.map(str::to_owned), reason);
            }
        }
    }

    fn skip(&mut self, key_id: Option<String>, reason: &'static str) {
        self.skipped.push(SkippedKey { key_id, reason });
    }

    /// Removes keys that share a `kid`, because it does not identify one of them.
    fn drop_ambiguous(&mut self) {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for (key_id, _) in &self.keys {
            *counts.entry(key_id.clone()).or_default() += 1;
        }
        counts.retain(|_, count| *count > 1);
        self.keys.retain(|(key_id, _)| !counts.contains_key(key_id));
        for key_id in counts.into_keys() {
            self.skip(Some(key_id), "several keys have this kid");
        }
    }
}
