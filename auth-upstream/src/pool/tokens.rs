//! The tokens that the pool issues.

use aws_sdk_cognitoidentityprovider::types::AuthenticationResultType;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::clock::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{PoolError, PoolFault, PoolResult};
use crate::telemetry::PoolOperation;

#[derive(Clone)]
pub(crate) struct PoolTokens {
    pub(crate) access_token: String,
    pub(crate) id_token: String,
    /// `None` on a refresh at a pool that does not rotate refresh tokens.
    pub(crate) refresh_token: Option<String>,
    pub(crate) claims: AccessTokenClaims,
}

/// The claims of an access token that this service uses. They come directly from the pool over this
/// service's connection, so the signature is not verified here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AccessTokenClaims {
    /// A NumericDate, which may have a fraction (RFC 7519 section 2).
    pub(crate) exp: f64,
    pub(crate) sub: String,
    /// The pool's user name, which differs from the e-mail address. Secret hashes after sign-in are
    /// computed over it.
    pub(crate) username: String,
}

// === impl PoolTokens ===

impl PoolTokens {
    pub(super) fn read(
        operation: PoolOperation,
        result: Option<AuthenticationResultType>,
    ) -> PoolResult<Self> {
        let malformed = || PoolFault {
            operation,
            error: PoolError::Unavailable("response without tokens"),
        };
        let result = result.ok_or_else(malformed)?;
        let access_token = result.access_token.ok_or_else(malformed)?;
        let claims = AccessTokenClaims::decode(&access_token).ok_or_else(malformed)?;
        let id_token = result.id_token.unwrap_or_default();
        Ok(Self {
            access_token,
            id_token,
            refresh_token: result.refresh_token,
            claims,
        })
    }

    /// Returns whether the pool knows that the address is the user's. A trigger may have made the
    /// flag text.
    pub(crate) fn has_verified_email(&self) -> bool {
        let claims: Value = decode(&self.id_token).unwrap_or_default();
        let flag = &claims["email_verified"];
        *flag == true || *flag == "true"
    }
}

// === impl AccessTokenClaims ===

impl AccessTokenClaims {
    pub(crate) fn decode(token: &str) -> Option<Self> {
        decode(token)
    }

    pub(crate) fn expires_at(&self) -> Timestamp {
        Timestamp::from_unix_seconds(self.exp.floor() as i64)
    }
}

/// Decodes the payload of a JWT. Returns `None` if the text is not a JWT with these claims.
fn decode<T: DeserializeOwned>(token: &str) -> Option<T> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

impl std::fmt::Debug for PoolTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolTokens(of {})", self.claims.sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_the_exp_claim_of_the_access_token() {
        for exp in ["1795159800", "1795159800.25", "1.7951598e9"] {
            let payload = format!(r#"{{"exp":{exp},"sub":"s","username":"u","scope":"x"}}"#);
            let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(payload));
            let claims = AccessTokenClaims::decode(&token).expect("claims");
            assert_eq!(claims.expires_at().to_string(), "2026-11-20T07:30:00.000Z");
        }
        assert!(AccessTokenClaims::decode("no token").is_none());
    }

    #[test]
    fn email_is_verified_only_if_the_id_token_says_so() {
        for (claims, expected) in [
            (r#"{"email_verified":true}"#, true),
            (r#"{"email_verified":"true"}"#, true),
            (r#"{"email_verified":false}"#, false),
            (r#"{"email_verified":1}"#, false),
            ("{}", false),
        ] {
            let tokens = PoolTokens {
                access_token: String::new(),
                id_token: format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims)),
                refresh_token: None,
                claims: AccessTokenClaims {
                    exp: 0.0,
                    sub: String::new(),
                    username: String::new(),
                },
            };
            assert_eq!(tokens.has_verified_email(), expected, "{claims}");
        }
    }
}
