//! Temporary tokens and `POST /auth/tokens/exchange`.
//!
//! A social sign-in ends with a temporary token for the UI. It is valid for 5 minutes and can be
//! exchanged once. If the sign-in started with a `code_challenge`, the exchange needs the verifier
//! (RFC 7636); a wrong verifier invalidates the token, so that it cannot be tried again.
//!
//! The cache never contains the token: the entry's key is the token's SHA-256 digest, and the value
//! is sealed with a key derived from the token. Reading the cache therefore reveals neither. A value
//! is sealed to the epoch of the cache in which it was stored, so that a copy restored from a
//! snapshot, a replica or a fail-back does not open.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::{Code, Problem};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::token_set::TokenSet;
use super::{Flows, cache_unavailable};
use crate::client::ClientContext;
use crate::crypto::{KeyRing, SealingKey, random, sha256_hex};
use crate::telemetry::{AuditedResult, Completed, Operation};

/// Validity of a temporary token, as the HTTP API promises.
const TEMPORARY_TOKEN_TTL: Duration = Duration::from_secs(5 * 60);
/// The first part of the sealing context of values. The second is the epoch.
const VALUE_CONTEXT: &str = "temporary";

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExchangedIdentity {
    pub(crate) user: UserInfo,
    /// Absent if the pool has no triggers for social sign-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<TokenSet>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SocialResult {
    User(ExchangedIdentity),
    /// The member `challenge` of the problem that asks for the next step.
    Challenge(Value),
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredExchange {
    result: SocialResult,
    /// The S256 challenge of the verifier that the exchange needs (RFC 7636 section 4.2).
    code_challenge: Option<String>,
}

// === impl Flows ===

impl Flows {
    pub(super) async fn issue_temporary_token(
        &self,
        result: SocialResult,
        code_challenge: Option<String>,
    ) -> Result<String, Problem> {
        let stored = StoredExchange {
            result,
            code_challenge,
        };
        let token = random::token();
        let key = temporary_token_key(&token);
        let storing = async {
            let epoch = self.cache.epoch(&key).await?;
            let sealed = key_ring(&token).seal_json(&[VALUE_CONTEXT, &epoch], &stored);
            self.cache
                .set(&key, sealed.as_bytes(), TEMPORARY_TOKEN_TTL)
                .await
        };
        storing.await.map_err(cache_unavailable)?;
        Ok(token)
    }

    /// Removes and returns the result under a token. Of concurrent callers at most one gets it.
    ///
    /// Tokens issued before a restart or a fail-over of the cache are lost even if the cache still
    /// contains them, because they may have been exchanged already.
    async fn redeem_temporary_token(
        &self,
        token: &str,
        verifier: Option<&str>,
    ) -> Result<ExchangedIdentity, Problem> {
        let taken = self
            .cache
            .take_with_epoch(&temporary_token_key(token))
            .await;
        let (sealed, epoch) = taken.map_err(cache_unavailable)?;
        let stored = sealed.and_then(|sealed| -> Option<StoredExchange> {
            let sealed = String::from_utf8(sealed).ok()?;
            key_ring(token).open_json(&[VALUE_CONTEXT, &epoch], &sealed)
        });
        let redeemed =
            stored.filter(|stored| matches_challenge(stored.code_challenge.as_deref(), verifier));
        match redeemed.map(|stored| stored.result) {
            Some(SocialResult::User(exchanged)) => Ok(exchanged),
            Some(SocialResult::Challenge(challenge)) => {
                Err(Problem::new(Code::ChallengeRequired).member("challenge", challenge))
            }
            None => Err(Code::InvalidTemporaryToken.into()),
        }
    }

    /// Exchanges a temporary token.
    ///
    /// # Errors
    /// `invalid_temporary_token` for an unknown, used or expired token and for a wrong verifier
    /// alike; `challenge_required` if the sign-in has a next step, answered at
    /// `POST /auth/challenge`.
    pub(crate) async fn exchange(
        &self,
        client: &ClientContext,
        token: &str,
        verifier: Option<&str>,
    ) -> AuditedResult<ExchangedIdentity> {
        let outcome = self.redeem_temporary_token(token, verifier).await;
        let completed = outcome.map(|it| Completed::new(it.user.user_id.clone(), it));
        self.audit.complete(client, Operation::Exchange, completed)
    }
}

pub(crate) fn temporary_token_key(token: &str) -> String {
    format!("postern:auth:temporary:{}", sha256_hex(token))
}

fn key_ring(token: &str) -> KeyRing {
    let digest = Sha256::new()
        .chain_update("postern vault v1\0")
        .chain_update(token)
        .finalize();
    KeyRing::new(SealingKey::new(&digest.into()), Vec::new())
}

/// Returns whether a verifier matches a challenge. A verifier without a challenge is rejected: its
/// sender assumes a protection that the sign-in does not have.
fn matches_challenge(challenge: Option<&str>, verifier: Option<&str>) -> bool {
    match (challenge, verifier) {
        (None, None) => true,
        (Some(challenge), Some(verifier)) => {
            let expected = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
            expected.as_bytes().ct_eq(challenge.as_bytes()).into()
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Returns whether a text is an S256 challenge: 32 bytes in base64url (RFC 7636 section 4.2).
pub(crate) fn is_code_challenge(text: &str) -> bool {
    text.len() == 43 && URL_SAFE_NO_PAD.decode(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fixture;

    #[test]
    fn verifier_must_match_the_challenge() {
        // RFC 7636 appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert!(is_code_challenge(challenge) && !is_code_challenge("short"));
        assert!(matches_challenge(Some(challenge), Some(verifier)));
        assert!(matches_challenge(None, None));
        assert!(!matches_challenge(Some(challenge), Some("another")));
        assert!(!matches_challenge(Some(challenge), None));
        assert!(!matches_challenge(None, Some(verifier)));
    }

    #[tokio::test]
    async fn cache_contains_neither_token_nor_value() {
        let fixture = Fixture::new().await;
        let flows = fixture.flows();
        let result = SocialResult::Challenge("ada@example.com".into());
        let token = flows.issue_temporary_token(result, None).await;
        let token = token.expect("stored");
        let key = temporary_token_key(&token);
        assert!(!key.contains(&token));
        let stored = flows.cache.get(&key).await.expect("cache answers");
        let stored = stored.expect("an entry");
        assert!(!String::from_utf8_lossy(&stored).contains("ada"));
    }
}
