//! The `state` parameter of a social sign-in.
//!
//! The state contains, sealed, what is needed when the browser returns. Starting a sign-in
//! therefore stores nothing, and cannot fill a store. A state can be used once: redeeming it sets a
//! mark in the cache, which succeeds for one of concurrent callers. The state is bound to the epoch
//! of the cache, so that a mark that is lost in a restart or a fail-over does not make it valid
//! again.

use std::net::IpAddr;

use postern_core::Problem;
use serde::{Deserialize, Serialize};

use super::super::{Flows, cache_unavailable};
use super::{STATE_TTL, SocialError};
use crate::crypto::{random, sha256_hex};

const STATE_CONTEXT: [&str; 1] = ["postern social state"];

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AuthorizationState {
    pub(super) pkce_verifier: String,
    pub(super) nonce: String,
    pub(super) issuer: String,
    /// The address of the client that started the sign-in, for which a failure counts.
    pub(super) address: Option<IpAddr>,
    /// Binds the temporary token to the browser that started the sign-in.
    pub(super) code_challenge: Option<String>,
    expires_at: i64,
    /// The epoch of the cache in which the mark of its use will be set.
    epoch: String,
}

// === impl Flows ===

impl Flows {
    pub(super) async fn create_state(
        &self,
        issuer: &str,
        address: Option<IpAddr>,
        code_challenge: Option<String>,
    ) -> Result<(String, AuthorizationState), Problem> {
        let nonce = random::token();
        let epoch = self
            .cache
            .epoch(&mark_key(&nonce))
            .await
            .map_err(cache_unavailable)?;
        let state = AuthorizationState {
            pkce_verifier: random::token(),
            nonce,
            issuer: issuer.to_owned(),
            address,
            code_challenge,
            expires_at: self.clock.now().plus(STATE_TTL).0,
            epoch,
        };
        Ok((self.key_ring.seal_json(&STATE_CONTEXT, &state), state))
    }

    /// Opens a state and marks it as used.
    pub(super) async fn redeem_state(
        &self,
        sealed: Option<&str>,
    ) -> Result<AuthorizationState, SocialError> {
        let sealed = sealed.ok_or(SocialError::InvalidRequest)?;
        let state: Option<AuthorizationState> = self.key_ring.open_json(&STATE_CONTEXT, sealed);
        let state = state
            .filter(|state| self.clock.now().0 < state.expires_at)
            .ok_or(SocialError::InvalidState)?;
        // The key is derived from the nonce, because the encoding of the state is not unique.
        let is_first_use = self
            .cache
            .set_if_absent_in(&state.epoch, &mark_key(&state.nonce), b"1", STATE_TTL)
            .await;
        if is_first_use.map_err(cache_unavailable)? {
            Ok(state)
        } else {
            Err(SocialError::InvalidState)
        }
    }
}

fn mark_key(nonce: &str) -> String {
    format!("postern:auth:social-used:{}", sha256_hex(nonce))
}
