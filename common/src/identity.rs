//! The two pools that this installation trusts, and the client that speaks to them.
//!
//! The pools are Amazon Cognito's, or those of the local identity pool, which speaks the same
//! protocol: which of the two it is, is a matter of `endpoint`.
//!
//! Settings stand in the table `[identity]` of each process's file and in the variables of the
//! interface's "Configuration inputs"; a variable wins over the file. A secret stands in a variable
//! or in a file of its own that a `…_file` key names, never in the configuration.
//!
//! | key | variable | default |
//! |---|---|---|
//! | `region` | `CLOUD_REGION` | `us-west-2` |
//! | `endpoint` | `AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER` | Cognito's own of the region |
//! | `actor.pool_id` | `IDP_ACTOR_POOL_ID` | required |
//! | `actor.client_id` | `IDP_ACTOR_CLIENT_ID` | required |
//! | `actor.client_secret_file` | `IDP_ACTOR_CLIENT_SECRET` (the secret itself) | none: a client without a secret |
//! | `actor.issuer`, `actor.jwks_url` | | made from endpoint or region, and the pool |
//! | `service.pool_id` | `IDP_SERVICE_POOL_ID` | required |
//! | `service.client_id` | `IDP_SERVICE_CLIENT_ID` | required |
//! | `service.client_secret_file` | `IDP_SERVICE_CLIENT_SECRET` (the secret itself) | none |
//! | `service.issuer`, `service.jwks_url` | | as for actor |
//! | `service_account.username` | `IDP_SERVICE_ACCOUNT_USERNAME` | none: calls no service on its own, which the authentication upstream must |
//! | `service_account.password_file` | `IDP_SERVICE_ACCOUNT_PASSWORD` (the password itself) | none |
//!
//! Further issuers stand in `[[identity.issuer]]`, each with rules of its own:
//!
//! | key | what it says | default |
//! |---|---|---|
//! | `kind` | `user` or `service`: what its tokens stand for | required |
//! | `issuer` | `iss`, to the byte | required |
//! | `jwks_url` | where its keys are | `/.well-known/jwks.json` below the issuer |
//! | `clients` | whose tokens are accepted | none: `audiences` decides alone |
//! | `audiences` | of which `aud` must hold one | none: not looked at |
//! | `token_use` | the values that are accepted; `[]` where it writes none | `access`, of services `id` too |
//! | `client_claim` | the claim that names the client | `client_id` |
//! | `services` | of a service issuer: the `custom:service_id`s that its tokens may carry, and no other issuer's | required |

mod client;
mod issuer;
mod read;
mod secret_hash;

use url::Url;

pub use self::client::AwsCredentials;
pub use self::secret_hash::secret_hash;
use crate::Secret;
use crate::token;

/// What a process knows about the identity pools.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    /// The pools' region; default `us-west-2`.
    pub region: String,
    /// Where the pools' protocol is spoken, without a path; none means Amazon's endpoint of the
    /// region.
    pub endpoint: Option<Url>,
    /// The pool of job-seeker users.
    pub actor: Pool,
    /// The pool of service accounts. Never the same pool: a token's kind is decided by its issuer.
    pub service: Pool,
    /// Further issuers whose tokens are accepted; default none.
    pub issuers: Vec<token::Issuer>,
    /// The account under which this process calls other services; none for a process that calls
    /// none on its own.
    pub service_account: Option<ServiceAccount>,
}

/// One pool and our client in it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Such as `us-west-2_a1B2c3D4e`.
    pub pool_id: String,
    /// The client that tokens must be for.
    pub client_id: String,
    /// The client's secret, where it has one; then every call needs a [`secret_hash`].
    pub client_secret: Option<Secret>,
    /// The `iss` of this pool's tokens, to the byte.
    pub issuer: String,
    /// Where this pool's public keys are.
    pub jwks_url: Url,
}

/// The name and password under which a process obtains its service token.
#[derive(Clone, Debug)]
pub struct ServiceAccount {
    /// User name in the service pool.
    pub username: String,
    /// Its password.
    pub password: Secret,
}

// === impl IdentityConfig ===

impl IdentityConfig {
    /// Whose tokens are accepted, for the verifier: users from the actor pool, services from the
    /// service pool, and what the further issuers stand for.
    #[must_use]
    pub fn issuers(&self) -> Vec<token::Issuer> {
        let taken = self
            .issuers
            .iter()
            .filter_map(|issuer| match &issuer.rules.services {
                token::ServiceNames::Only(names) => Some(names.clone()),
                token::ServiceNames::AllBut(_) => None,
            });
        let services = token::ServiceNames::AllBut(taken.flatten().collect());
        let issuer = |pool: &Pool, kind| token::Issuer {
            issuer: pool.issuer.clone(),
            jwks_url: pool.jwks_url.clone(),
            kind,
            client_ids: vec![pool.client_id.clone()],
            rules: token::IssuerRules {
                services: services.clone(),
                ..token::IssuerRules::default()
            },
            claims: Vec::new(),
        };
        let pools = [
            issuer(&self.actor, token::IssuerKind::User),
            issuer(&self.service, token::IssuerKind::Service),
        ];
        pools
            .into_iter()
            .chain(self.issuers.iter().cloned())
            .collect()
    }
}

// === impl Pool ===

impl Pool {
    /// The `SECRET_HASH` for a call about `username`; none if this client has no secret.
    #[must_use]
    pub fn secret_hash(&self, username: &str) -> Option<String> {
        let secret = self.client_secret.as_ref()?;
        Some(secret_hash(username, &self.client_id, secret.expose()))
    }
}

#[cfg(test)]
mod tests;
