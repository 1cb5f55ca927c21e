//! ID tokens of a social provider (OpenID Connect Core 1.0 section 3.1.3.7), verified with the same
//! strict reader and key engine as Bearer tokens.

use std::sync::Arc;

use serde_json::{Map, Value};
use url::Url;

use super::jwks::{JwksStatus, Source};
use super::jws::Jws;
use super::strict::{Json, Object};
use super::trust::{Times, check_types, text};
use super::{Refusal, VerifierOptions};
use crate::clock::Clock;

/// Verifies the ID tokens that one provider issues to one client.
pub struct OidcVerifier {
    issuer: Arc<str>,
    client_id: String,
    clock: Clock,
    source: Source,
}

/// Whom the provider says it is. The identity is issuer and subject, never the e-mail address
/// alone.
#[derive(Clone)]
pub struct IdToken {
    /// `iss`.
    pub issuer: String,
    /// `sub`.
    pub subject: String,
    /// `email`.
    pub email: Option<String>,
    /// `email_verified`; false where the provider does not say so.
    pub email_verified: bool,
    /// `name`.
    pub name: Option<String>,
    /// `picture`.
    pub picture: Option<String>,
    /// Every claim.
    pub claims: Map<String, Value>,
}

/// How far `iat` and `nbf` may be ahead of the clock, in seconds.
const LEEWAY_S: i64 = 5;

// === impl OidcVerifier ===

impl OidcVerifier {
    /// A verifier without keys yet: they are fetched with the first token.
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
        let source = Source::new(Arc::clone(&issuer), jwks_url, settings);
        Arc::new(Self {
            issuer,
            client_id: client_id.into(),
            clock,
            source,
        })
    }

    /// The identity in an ID token that answers the request with this nonce. Keys that are due are
    /// fetched first; if that fails, the last good ones count.
    ///
    /// # Errors
    /// Why the token is refused.
    pub async fn verify(&self, id_token: &str, nonce: &str) -> Result<IdToken, Refusal> {
        let jws = Jws::read(id_token)?;
        let claims = jws.claims()?;
        if text(&claims, "iss")? != &*self.issuer {
            return Err(Refusal::Issuer);
        }
        self.source.refresh_if_due().await;
        self.check_signature(&jws).await?;
        check_types(&claims)?;
        Times::read(&claims)?.check(self.clock.now().unix_seconds(), LEEWAY_S)?;
        instant_is_there(&claims, "iat")?;
        self.check_audience(&claims)?;
        if text(&claims, "nonce")? != nonce {
            return Err(Refusal::Nonce);
        }
        IdToken::read(&claims)
    }

    /// A provider with one key may leave `kid` out, and nothing tells then when it has another one.
    async fn check_signature(&self, jws: &Jws<'_>) -> Result<(), Refusal> {
        if let Some(key_id) = &jws.key_id {
            return self.source.obtain(key_id).await?.check(jws);
        }
        if self
            .source
            .only(jws.algorithm)
            .and_then(|key| key.check(jws))
            .is_ok()
        {
            return Ok(());
        }
        self.source.refetch().await;
        self.source.only(jws.algorithm)?.check(jws)
    }

    /// We must be an audience; where there are others too, or `azp` is there, `azp` must name us.
    fn check_audience(&self, claims: &Object<'_>) -> Result<(), Refusal> {
        let (ours, several) = match claims.get("aud") {
            Some(Json::List(all)) => (
                all.iter().any(|one| one.as_text() == Some(&self.client_id)),
                all.len() > 1,
            ),
            Some(_) => (text(claims, "aud")? == self.client_id, false),
            None => return Err(Refusal::ClaimMissing),
        };
        let authorized = match claims.get("azp") {
            Some(party) => party.as_text() == Some(&self.client_id),
            None => !several,
        };
        if ours && authorized {
            Ok(())
        } else {
            Err(Refusal::Client)
        }
    }

    /// The provider's keys, for the admin listener.
    #[must_use]
    pub fn status(&self) -> JwksStatus {
        self.source.status()
    }
}

fn instant_is_there(claims: &Object<'_>, name: &str) -> Result<(), Refusal> {
    if claims.has(name) {
        Ok(())
    } else {
        Err(Refusal::ClaimMissing)
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
    fn read(claims: &Object<'_>) -> Result<Self, Refusal> {
        let optional = |name: &str| claims.get(name).and_then(Json::as_text).map(str::to_owned);
        // Some providers send the flag as text.
        let email_verified = match claims.get("email_verified") {
            Some(Json::Bool(flag)) => *flag,
            Some(Json::Text(flag)) => flag == "true",
            Some(Json::Null | Json::Number(_) | Json::List(_) | Json::Object(_)) | None => false,
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
