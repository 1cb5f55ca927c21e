use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::status::SkippedKey;
use crate::token::jwk::{Key, NO_KEY_ID, NamedKey};
use crate::token::strict::Object;

/// A JWKS (RFC 7517 section 5), each key for itself: one that cannot be used is skipped, with its
/// reason.
pub(super) struct Document {
    /// By `kid`.
    pub(super) keys: Vec<(String, Key)>,
    /// Without one: for ID tokens alone, and stand among the skipped as well.
    pub(super) unnamed: Vec<Key>,
    pub(super) skipped: Vec<SkippedKey>,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// A set with more keys than this is not one of ours.
const MAX_KEYS: usize = 100;

impl Document {
    /// # Errors
    /// If the text is no JWKS at all, in words for the operator.
    pub(super) fn read(text: &[u8]) -> Result<Self, &'static str> {
        let raw: Raw<'_> = serde_json::from_slice(text).map_err(|_| "the answer is not a JWKS")?;
        if raw.keys.len() > MAX_KEYS {
            return Err("the JWKS has more than 100 keys");
        }
        let mut document = Self {
            keys: Vec::new(),
            unnamed: Vec::new(),
            skipped: Vec::new(),
        };
        for jwk in raw.keys {
            document.add(jwk);
        }
        document.drop_ambiguous();
        Ok(document)
    }

    fn add(&mut self, jwk: &RawValue) {
        let Ok(members) = Object::read(jwk.get().as_bytes()).map(|object| object.to_map()) else {
            self.skipped.push(SkippedKey {
                key_id: None,
                reason: "it is not an object with each name once",
            });
            return;
        };
        match NamedKey::read(&members) {
            Ok(NamedKey {
                key_id: Some(key_id),
                key,
            }) => self.keys.push((key_id, key)),
            Ok(NamedKey { key_id: None, key }) => {
                self.unnamed.push(key);
                self.skipped.push(SkippedKey {
                    key_id: None,
                    reason: NO_KEY_ID,
                });
            }
            Err(reason) => {
                let key_id = members
                    .get("kid")
                    .and_then(|id| id.as_str())
                    .map(str::to_owned);
                self.skipped.push(SkippedKey { key_id, reason });
            }
        }
    }

    /// A `kid` that stands for several keys stands for none.
    fn drop_ambiguous(&mut self) {
        let mut times: HashMap<String, usize> = HashMap::new();
        for (key_id, _) in &self.keys {
            *times.entry(key_id.clone()).or_default() += 1;
        }
        times.retain(|_, count| *count > 1);
        self.keys.retain(|(key_id, _)| !times.contains_key(key_id));
        self.skipped
            .extend(times.into_keys().map(|key_id| SkippedKey {
                key_id: Some(key_id),
                reason: "its kid stands for several keys",
            }));
    }
}
