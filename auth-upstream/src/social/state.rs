//! The `state` of a social sign-in: what must be remembered while the person is at the provider,
//! sealed, so that beginning a sign-in stores nothing and nobody can fill a store with beginnings.
//!
//! A state is used once: whoever comes back first leaves a mark in the cache, and of callers that
//! race one leaves it. It is bound to the epoch of the cache too, so that no mark that a restart or
//! a fail-over has lost makes a used one new.

use postern_common::Problem;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{STATE_TTL, SocialFault};
use crate::auth::{Auth, cache_away};
use crate::random;
use crate::seal::hex;

/// What a sealed state is for: it opens as nothing else.
const CONTEXT: [&str; 1] = ["postern social state"];

/// What must be remembered while the person is at the provider.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) pkce_verifier: String,
    pub(super) nonce: String,
    /// Binds the temporary token to the browser that began, if that asked for it.
    pub(super) code_challenge: Option<String>,
    expires_at: i64,
    /// The epoch of the cache that will hold the mark.
    epoch: String,
}

// === impl Begun ===

impl Begun {
    /// Where the mark of its use stands. The nonce is unique; the text of the state could be spelt
    /// in another way.
    fn mark(&self) -> String {
        mark_of(&self.nonce)
    }
}

// === impl Auth ===

impl Auth {
    /// A new state, sealed and as it was before.
    pub(super) async fn begin_state(
        &self,
        code_challenge: Option<String>,
    ) -> Result<(String, Begun), Problem> {
        let nonce = random::token();
        let epoch = self
            .cache
            .epoch(&mark_of(&nonce))
            .await
            .map_err(cache_away)?;
        let expires_at = self.clock.now().plus(STATE_TTL).0;
        let begun = Begun {
            pkce_verifier: random::token(),
            nonce,
            code_challenge,
            expires_at,
            epoch,
        };
        let plain = serde_json::to_vec(&begun).expect("a struct of texts is JSON");
        Ok((self.ring.seal(&CONTEXT, &plain), begun))
    }

    /// Opens a state and uses it up.
    pub(super) async fn take_state(&self, state: Option<&str>) -> Result<Begun, SocialFault> {
        let state = state.ok_or(SocialFault::InvalidRequest)?;
        let plain = self.ring.open(&CONTEXT, state);
        let begun = plain.and_then(|plain| serde_json::from_slice::<Begun>(&plain).ok());
        let begun = begun.filter(|begun| self.clock.now().0 < begun.expires_at);
        let begun = begun.ok_or(SocialFault::InvalidState)?;
        let mark = begun.mark();
        let is_first = self
            .cache
            .set_if_absent_in(&begun.epoch, &mark, b"1", STATE_TTL)
            .await;
        if is_first.map_err(cache_away)? {
            Ok(begun)
        } else {
            Err(SocialFault::InvalidState)
        }
    }
}

fn mark_of(nonce: &str) -> String {
    format!("postern:auth:social-used:{}", hex(&Sha256::digest(nonce)))
}
