//! Verification of ID tokens of a social provider (OpenID Connect Core 1.0 section 3.1.3.7), with
//! the same strict parser and key sets as Bearer tokens.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use super::jwks::KeySource;
use super::jws::CompactJws;
use super::strict_json::{JsonValue, StrictObject};
use super::trust::{TokenTimes, check_types, is_audience, text};
use super::{TokenError, TokenLimits, VerifierOptions};
use crate::clock::Clock;
use crate::hidden_characters::is_hidden;

/// The claims with names of a person (OpenID Connect Core 1.0 section 5.1) that are used.
const NAME_CLAIMS: [&str; 3] = ["name", "given_name", "family_name"];

/// Maximum number of characters of a name.
const MAX_SHOWN_CHARS: usize = 256;

/// A verifier of ID tokens that one provider issues to one client.
pub struct OidcVerifier {
    issuer: Arc<str>,
    client_id: String,
    clock: Clock,
    limits: TokenLimits,
    pub(super) source: KeySource,
}

/// The identity in a verified ID token. It consists of issuer and subject; the e-mail address alone
/// does not identify a person.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdToken {
    /// `iss`.
    pub issuer: String,
    /// `sub`.
    pub subject: String,
    /// `email`, unless it has characters that are not shown.
    pub email: Option<String>,
    /// `email_verified`; false if the claim is missing.
    pub email_verified: bool,
    /// `name`, as it may be shown.
    pub name: Option<String>,
    /// `picture`, if it is an HTTPS URL.
    pub picture: Option<String>,
    /// All claims; those with names as they may be shown.
    pub claims: Map<String, Value>,
}

// === impl OidcVerifier ===

impl OidcVerifier {
    /// Creates a verifier without keys; they are fetched for the first token. `leeway` is that of
    /// [`TokenLimits`]. A token may be as long
    /// as any limit of Bearer tokens: it comes by the back channel, which limits requests' heads not.
    #[must_use]
    pub fn new(
        issuer: impl Into<Arc<str>>,
        client_id: impl Into<String>,
        jwks_url: Url,
        clock: Clock,
        leeway: Duration,
    ) -> Arc<Self> {
        let issuer = issuer.into();
        let settings = VerifierOptions {
            clock: clock.clone(),
            ..VerifierOptions::default()
        };
        let source = KeySource::new(Arc::clone(&issuer), jwks_url, settings);
        Arc::new(Self {
            issuer,
            client_id: client_id.into(),
            clock,
            limits: TokenLimits {
                bytes: TokenLimits::MAX_BYTES,
                leeway,
            },
            source,
        })
    }

    /// Verifies an ID token for a request with `nonce` and returns its identity. Keys that are due
    /// are fetched first; if that fails, the last fetched ones are used. Unless `nonce_required`, a
    /// token without one is accepted.
    pub async fn verify(
        &self,
        id_token: &str,
        nonce: &str,
        nonce_required: bool,
    ) -> Result<IdToken, TokenError> {
        self.limits.check_length(id_token)?;
        let jws = CompactJws::read(id_token)?;
        let claims = jws.claims()?;
        if text(&claims, "iss")? != &*self.issuer {
            return Err(TokenError::Issuer);
        }
        self.source.refresh_if_due().await;
        self.check_signature(&jws).await?;
        check_types(&claims)?;
        let (times, now_s) = (TokenTimes::read(&claims)?, self.clock.now().unix_seconds());
        times.check(now_s, self.limits.leeway_s())?;
        if !claims.contains("iat") {
            return Err(TokenError::ClaimMissing("iat"));
        }
        self.check_audience(&claims)?;
        let needs_nonce = nonce_required || claims.contains("nonce");
        if needs_nonce && text(&claims, "nonce")? != nonce {
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
        let key = self.source.only_key(jws.algorithm);
        if key.is_ok_and(|key| key.check(jws).is_ok()) {
            return Ok(());
        }
        self.source.refetch().await;
        self.source.only_key(jws.algorithm)?.check(jws)
    }

    /// Checks that this client is an audience. With several audiences, or if `azp` is present,
    /// `azp` must be this client.
    fn check_audience(&self, claims: &StrictObject<'_>) -> Result<(), TokenError> {
        let several = match claims.get("aud") {
            Some(JsonValue::List(all)) => all.len() > 1,
            Some(_) => false,
            None => return Err(TokenError::ClaimMissing("aud")),
        };
        let ours = is_audience(claims, &self.client_id);
        let authorized = match claims.get("azp") {
            Some(party) => party.as_text() == Some(&self.client_id),
            None => !several,
        };
        match (ours, authorized) {
            (false, _) => Err(TokenError::Client),
            (true, false) => Err(TokenError::AuthorizedParty),
            (true, true) => Ok(()),
        }
    }
}

/// Returns a text of a provider as it may be shown: at most 256 characters, none of which is hidden,
/// or controls or reorders others.
fn shown_text(text: &str) -> String {
    let is_shown = |char: &char| !char.is_control() && !is_hidden(*char);
    let shown = text.chars().filter(is_shown);
    shown.take(MAX_SHOWN_CHARS).collect()
}

impl std::fmt::Debug for OidcVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OidcVerifier({})", self.issuer)
    }
}

// === impl IdToken ===

impl IdToken {
    fn read(claims: &StrictObject<'_>) -> Result<Self, TokenError> {
        let mut all = claims.to_map();
        for name in NAME_CLAIMS {
            if let Some(Value::String(text)) = all.get_mut(name) {
                *text = shown_text(text);
            }
        }
        let optional = |name: &str| all.get(name).and_then(Value::as_str).map(str::to_owned);
        let is_https = |text: &String| Url::parse(text).is_ok_and(|url| url.scheme() == "https");
        // Some providers send the flag as text.
        let email_verified = match claims.get("email_verified") {
            Some(JsonValue::Bool(flag)) => *flag,
            Some(JsonValue::Text(flag)) => flag == "true",
            Some(_) | None => false,
        };
        Ok(Self {
            issuer: text(claims, "iss")?.to_owned(),
            subject: text(claims, "sub")?.to_owned(),
            email: optional("email").filter(|email| shown_text(email) == *email),
            email_verified,
            name: optional("name").filter(|name| !name.is_empty()),
            picture: optional("picture").filter(is_https),
            claims: all,
        })
    }

    /// Adds given and family name where the token has none. The browser has sent them, so that the
    /// person may have changed them.
    pub fn add_names(&mut self, given: Option<&str>, family: Option<&str>) {
        if self.name.is_some() {
            return;
        }
        let [_, given_name, family_name] = NAME_CLAIMS;
        let mut words = Vec::new();
        for (claim, text) in [(given_name, given), (family_name, family)] {
            let text = text.map(shown_text).unwrap_or_default();
            if !text.is_empty() && !self.claims.contains_key(claim) {
                self.claims.insert(claim.to_owned(), text.clone().into());
                words.push(text);
            }
        }
        self.name = Some(words.join(" ")).filter(|name| !name.is_empty());
    }
}

impl std::fmt::Debug for IdToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdToken({} {})", self.issuer, self.subject)
    }
}
