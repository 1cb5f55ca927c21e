//! Configuration of the two identity pools.
//!
//! The pools are Amazon Cognito user pools, or pools of the local identity pool, which implements
//! the same API; the endpoint selects one or the other.
//!
//! The pools are set by environment variables, which `docs/manual/deploy.md` lists. The authentication
//! service requires those of a service account as well, because it calls other services.
//!
//! Secrets can be in files ([`Env::secret`](crate::config::Env::secret)). The table `[identity]` of a
//! configuration file declares the rest, with additional issuers in `[[identity.issuer]]`, each with
//! its own rules. A process that only verifies tokens reads a [`TrustConfig`], in which each pool is
//! optional.
//!
//! Input: the table `[identity]` and the environment. Output: the trusted issuers, and the settings
//! of the pools.

mod assumed;
mod config;
mod issuer;
mod social_proof;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use url::Url;

pub use self::assumed::ASSUMED_IDENTITY;
pub use self::config::partition_domain;
pub use self::social_proof::{
    SOCIAL_PROOF, SOCIAL_PROOF_KEY, SocialAccount, SocialProofKey, SocialStatement,
};
use crate::Secret;
use crate::token::{self, TokenLimits};

/// Settings of the identity pools and of additional issuers.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    /// Region of the pools. Default `us-west-2`.
    pub region: String,
    /// Base URL of the pool API, without a path. `None` selects Amazon's endpoint of the region.
    pub endpoint: Option<Url>,
    /// The pool of users.
    pub actor: Pool,
    /// The pool of service accounts. Always different from `actor`: the issuer of a token decides
    /// its kind.
    pub service: Pool,
    /// Additional issuers whose tokens are accepted. Default none.
    pub issuers: Vec<token::Issuer>,
    /// The limits of tokens.
    pub token_limits: TokenLimits,
    /// The account with which this process calls other services, if it calls any.
    pub service_account: Option<ServiceAccount>,
}

/// The trusted issuers of a process that calls no pool.
#[derive(Clone, Debug, Default)]
pub struct TrustConfig {
    /// The pool of users, if there is one.
    pub actor: Option<Pool>,
    /// The pool of service accounts, if there is one.
    pub service: Option<Pool>,
    /// Additional issuers whose tokens are accepted. Default none.
    pub issuers: Vec<token::Issuer>,
    /// The limits of tokens.
    pub token_limits: TokenLimits,
}

/// A user pool and this installation's client in it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Pool id, such as `us-west-2_a1B2c3D4e`.
    pub pool_id: String,
    /// Client id that tokens must be issued for.
    pub client_id: String,
    /// Client secret, if the client has one. Then each call needs a [`secret_hash`](secret_hash()).
    pub client_secret: Option<Secret>,
    /// `iss` of this pool's tokens, compared byte for byte.
    pub issuer: String,
    /// The other form of `iss` that a pool of Amazon may be set to write.
    pub issuer_alias: Option<String>,
    /// URL of this pool's JWKS.
    pub jwks_url: Url,
}

/// User name and password with which a process obtains its service token.
#[derive(Clone, Debug)]
pub struct ServiceAccount {
    /// User name in the service pool.
    pub username: String,
    /// Password of the account.
    pub password: Secret,
}

// === impl IdentityConfig ===

impl IdentityConfig {
    /// Returns the issuers that a token verifier trusts, as [`TrustConfig::issuers`] does.
    #[must_use]
    pub fn issuers(&self) -> Vec<token::Issuer> {
        trusted(Some(&self.actor), Some(&self.service), &self.issuers)
    }
}

// === impl TrustConfig ===

impl TrustConfig {
    /// Returns the issuers that a token verifier trusts: the actor pool for users, the service pool
    /// for services, and the additional issuers. Service names of additional issuers are excluded
    /// from both pools.
    #[must_use]
    pub fn issuers(&self) -> Vec<token::Issuer> {
        trusted(self.actor.as_ref(), self.service.as_ref(), &self.issuers)
    }

    /// Returns whether tokens can be verified, which `has_keys` says for one issuer: those of all
    /// pools, or without pools those of at least one issuer. An issuer besides the pools may be a
    /// partner whose outage must not stop every gateway.
    #[must_use]
    pub fn is_usable(&self, has_keys: impl Fn(&str) -> bool) -> bool {
        let mut pools = self.actor.iter().chain(&self.service).peekable();
        if pools.peek().is_some() {
            return pools.all(|pool| has_keys(&pool.issuer));
        }
        self.issuers.is_empty() || self.issuers.iter().any(|issuer| has_keys(&issuer.issuer))
    }
}

fn trusted(
    actor: Option<&Pool>,
    service: Option<&Pool>,
    issuers: &[token::Issuer],
) -> Vec<token::Issuer> {
    let reserved = issuers.iter();
    let reserved = reserved.filter_map(|issuer| issuer.rules.services.only());
    let services = token::ServiceNames::AllBut(reserved.flatten().cloned().collect());
    let issuer = |pool: &Pool, kind| token::Issuer {
        issuer: pool.issuer.clone(),
        jwks_url: pool.jwks_url.clone(),
        kind,
        client_ids: vec![pool.client_id.clone()],
        rules: token::IssuerRules {
            alias: pool.issuer_alias.clone(),
            services: services.clone(),
            ..token::IssuerRules::default()
        },
        claims: Vec::new(),
    };
    let users = actor.map(|pool| issuer(pool, token::IssuerKind::User));
    let services = service.map(|pool| issuer(pool, token::IssuerKind::Service));
    let pools = users.into_iter().chain(services);
    pools.chain(issuers.iter().cloned()).collect()
}

// === impl Pool ===

impl Pool {
    /// Returns the `SECRET_HASH` for a call about `username`, or `None` if the client has no
    /// secret.
    #[must_use]
    pub fn secret_hash(&self, username: &str) -> Option<String> {
        let secret = self.client_secret.as_ref()?;
        Some(secret_hash(username, &self.client_id, secret.expose()))
    }
}

/// Returns Cognito's `SECRET_HASH`: Base64 of HMAC-SHA256, keyed with the client secret, over user
/// name and client id ("Computing secret hash values" in the Amazon Cognito developer guide).
///
/// `username` is the name as entered for sign-in, and the pool's user name for challenges and
/// refresh.
#[must_use]
pub fn secret_hash(username: &str, client_id: &str, client_secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, client_secret.as_bytes());
    let mut context = hmac::Context::with_key(&key);
    context.update(username.as_bytes());
    context.update(client_id.as_bytes());
    STANDARD.encode(context.sign())
}

#[cfg(test)]
mod tests;
