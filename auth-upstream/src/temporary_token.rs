//! The temporary token: what a social sign-in hands to the UI, and `POST /auth/tokens/exchange`.
//!
//! It lives for five minutes and is taken once, whatever races. A token that began with a
//! `code_challenge` is given only to whoever has the verifier; a wrong verifier uses it up, so that
//! nobody can try twice.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::{Code, Problem};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::audit::Act;
use crate::auth::{Auth, Visitor, cache_away};
use crate::token_set::TokenSet;
use crate::vault::Drawer;

/// Fixed by the interface.
pub(crate) const TTL: Duration = Duration::from_secs(5 * 60);

/// Who somebody is, as the exchange tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UserInfo {
    pub(crate) user_id: String,
    pub(crate) email: String,
    pub(crate) email_verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) picture: Option<String>,
    pub(crate) provider: String,
}

/// What a temporary token is exchanged for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Exchanged {
    pub(crate) user: UserInfo,
    /// Null where the pool gives no tokens for this user.
    pub(crate) tokens: Option<TokenSet>,
    /// Why there are none: it says how the person gets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens_unavailable: Option<TokensUnavailable>,
}

/// Why a social sign-in gives no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TokensUnavailable {
    /// The account has a password of the person's own, and only that gives tokens: `POST
    /// /auth/login`.
    PasswordRequired,
    /// Nobody in the pool is this identity: the provider has not verified the address, or the
    /// address may not lead to the account that has it. `POST /auth/register` or `POST
    /// /auth/login`, or a sign-in when the address is verified.
    NoAccount,
    /// There are no AWS credentials, without which the pool gives tokens for a password only.
    NotConfigured,
}

/// What is kept under a temporary token.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    exchanged: Exchanged,
    /// S256 of the verifier that the browser must show (RFC 7636 section 4.2).
    code_challenge: Option<String>,
}

// === impl Auth ===

impl Auth {
    /// A temporary token for somebody who has just signed in.
    pub(crate) async fn issue_temporary_token(
        &self,
        exchanged: Exchanged,
        code_challenge: Option<String>,
    ) -> Result<String, Problem> {
        let kept = serde_json::to_vec(&Kept {
            exchanged,
            code_challenge,
        })
        .expect("structs of texts are JSON");
        self.vault
            .issue(Drawer::Temporary, &kept, TTL)
            .await
            .map_err(cache_away)
    }

    /// Takes what a temporary token stands for.
    ///
    /// # Errors
    /// One `invalid_temporary_token` for unknown, used, expired, and a verifier that does not fit.
    pub(crate) async fn exchange(
        &self,
        visitor: &Visitor,
        token: &str,
        verifier: Option<&str>,
    ) -> Result<Exchanged, Problem> {
        let outcome = self.take_exchanged(token, verifier).await;
        self.ended(
            visitor,
            Act::Exchange,
            outcome.map(|found| (found.user.user_id.clone(), found)),
        )
    }

    async fn take_exchanged(
        &self,
        token: &str,
        verifier: Option<&str>,
    ) -> Result<Exchanged, Problem> {
        let taken = self
            .vault
            .take(Drawer::Temporary, token)
            .await
            .map_err(cache_away)?;
        let kept: Option<Kept> = taken.and_then(|plain| serde_json::from_slice(&plain).ok());
        let kept = kept.filter(|kept| is_bound_to(kept.code_challenge.as_deref(), verifier));
        kept.map(|kept| kept.exchanged)
            .ok_or_else(|| Code::InvalidTemporaryToken.into())
    }
}

/// Whether the verifier is the one of the challenge. A verifier without a challenge proves nothing
/// and is refused too: whoever sends one believes to be protected.
fn is_bound_to(challenge: Option<&str>, verifier: Option<&str>) -> bool {
    match (challenge, verifier) {
        (None, None) => true,
        (Some(challenge), Some(verifier)) => {
            let expected = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
            expected.as_bytes().ct_eq(challenge.as_bytes()).into()
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Whether a text is an S256 challenge: 32 bytes in base64url (RFC 7636 section 4.2).
pub(crate) fn is_challenge(text: &str) -> bool {
    text.len() == 43 && URL_SAFE_NO_PAD.decode(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_must_be_the_one_of_the_challenge() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert!(is_challenge(challenge) && !is_challenge("short"));
        assert!(is_bound_to(Some(challenge), Some(verifier)) && is_bound_to(None, None));
        assert!(!is_bound_to(Some(challenge), Some("another")));
        assert!(!is_bound_to(Some(challenge), None) && !is_bound_to(None, Some(verifier)));
    }
}
