//! Verification of ID tokens of a social provider (OpenID Connect Core 1.0 section 3.1.3.7), with
//! the same strict parser and key sets as Bearer tokens.

use std::sync::Arc;

use serde_json::{Map, Value};
use url::Url;

use super::jwks::{JwksStatus, KeySource};
use super::jws::CompactJws;
use super::strict_json::{JsonValue, StrictObject};
use super::trust::{TokenTimes, check_types, text};
use super::{TokenError, TokenLimits, VerifierOptions};
use crate::clock::Clock;

/// A verifier of ID tokens that one provider issues to one client.
pub struct OidcVerifier {
    issuer: Arc<str>,
    client_id: String,
    clock: Clock,
    limits: TokenLimits,
    source: KeySource,
}

/// The identity in a verified ID token. It consists of issuer and subject; the e-mail address alone
/// does not identify a person.
#[derive(Clone)]
pub struct IdToken {
    /// `iss`.
    pub issuer: String,
    /// `sub`.
    pub subject: String,
    /// `email`.
    pub email: Option<String>,
    /// `email_verified`; false if the claim is missing.
    pub email_verified: bool,
    /// `name`.
    pub name: Option<String>,
    /// `picture`.
    pub picture: Option<String>,
    /// All claims.
    pub claims: Map<String, Value>,
}

// === impl OidcVerifier ===

impl OidcVerifier {
    /// Creates a verifier without keys; they are fetched for the first token.
    #[must_use]
    pub fn new(
        issuer: impl Into<Arc<str>>,
        client_id: impl Into<String>,
        jwks_url: Url,
        clock: Clock,
    ) -> Arc<Self> {
        let issuer = issuer.into();
        let settings = VerifierOptions {
            clock: clock.clone(),
            ..VerifierOptions::default()
        }
        .into_settings();
        let source = KeySource::new(Arc::clone(&issuer), jwks_url, settings);
        Arc::new(Self {
            issuer,
            client_id: client_id.into(),
            clock,
            limits: TokenLimits::default(),
            source,
        })
    }

    /// Verifies an ID token for a request with `nonce` and returns its identity. Keys that are due
    /// are fetched first; if that fails, the last fetched ones are used.
    ///
    /// # Errors
    /// Returns the reason why the token is rejected.
    pub async fn verify(&self, id_token: &str, nonce: &str) -> Result<IdToken, TokenError> {
        self.limits.check_length(id_token)?;
        let jws = CompactJws::read(id_token)?;
        let claims = jws.claims()?;
        if text(&claims, "iss")? != &*self.issuer {
            return Err(TokenError::Issuer);
        }
        self.source.refresh_if_due().await;
        self.check_signature(&jws).await?;
        check_types(&claims)?;
        TokenTimes::read(&claims)?
            .check(self.clock.now().unix_seconds(), self.limits.leeway_s())?;
        require_claim(&claims, "iat")?;
        self.check_audience(&claims)?;
        if text(&claims, "nonce")? != nonce {
            return Err(TokenError::Nonce);
        }
        IdToken::read(&claims)
    }

    /// A provider with one key may omit `kid`. Then a failed verification is the only sign of a key
    /// change, and causes a refetch.
    async fn check_signature(&self, jws: &CompactJws<'_>) -> Result<(), TokenError> {
        if let Some(key_id) = &jws.key_id {
            return self.source.obtain(key_id).await?.check(jws);
        }
        if self
            .source
            .only_key(jws.algorithm)
            .and_then(|key| key.check(jws))
            .is_ok()
        {
            return Ok(());
        }
        self.source.refetch().await;
        self.source.only_key(jws.algorithm)?.check(jws)
    }

    /// Checks that this client is an audience. With several audiences, or if `azp` is present,
    /// `azp` must be this client.
    fn check_audience(&self, claims: &StrictObject<'_>) -> Result<(), TokenError> {
        let (ours, several) = match claims.get("aud") {
            Some(JsonValue::List(all)) => (
                all.iter().any(|one| one.as_text() == Some(&self.client_id)),
                all.len() > 1,
            ),
            Some(_) => (text(claims, "aud")? == self.client_id, false),
            None => return Err(TokenError::ClaimMissing),
        };
        let authorized = match claims.get("azp") {
            Some(party) => party.as_text() == Some(&self.client_id),
            None => !several,
        };
        if ours && authorized {
            Ok(())
        } else {
            Err(TokenError::Client)
        }
    }

    /// Returns the status of the provider's keys, for the admin listener.
    #[must_use]
    pub fn status(&self) -> JwksStatus {
        self.source.status()
    }
}

fn require_claim(claims: &StrictObject<'_>, name: &str) -> Result<(), TokenError> {
    if claims.contains(name) {
        Ok(())
    } else {
        Err(TokenError::ClaimMissing)
    }
}

impl std::fmt::Debug for OidcVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OidcVerifier")
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

// === impl IdToken ===

impl IdToken {
    fn read(claims: &StrictObject<'_>) -> Result<Self, TokenError> {
        let optional = |name: &str| {
            claims
                .get(name)
                .and_then(JsonValue::as_text)
                .map(str::to_owned)
        };
        // Some providers send the flag as text.
        let email_verified = match claims.get("email_verified") {
            Some(JsonValue::Bool(flag)) => *flag,
            Some(JsonValue::Text(flag)) => flag == "true",
            Some(
                JsonValue::Null | JsonValue::Number(_) | JsonValue::List(_) | JsonValue::Object(_),
            )
            | None => false,
        };
        Ok(Self {
            issuer: text(claims, "iss")?.to_owned(),
            subject: text(claims, "sub")?.to_owned(),
            email: optional("email"),
            email_verified,
            name: optional("name"),
            picture: optional("picture"),
            claims: claims.to_map(),
        })
    }
}

impl std::fmt::Debug for IdToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdToken")
            .field("issuer", &self.issuer)
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}
