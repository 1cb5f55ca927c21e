use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::strict;

/// Who is calling. Users and services are different types on purpose: no policy can mistake one for the other.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A person, from the actor pool.
    User(Arc<User>),
    /// A service, from the service pool.
    Service(Arc<Service>),
}

/// A person, as a verified token of the actor pool tells.
#[derive(Clone)]
pub struct User {
    /// The issuer (`iss`).
    pub issuer: Arc<str>,
    /// The subject (`sub`): with the issuer, the identity.
    pub subject: Arc<str>,
    /// The name in the pool (`username`); the subject where the token has none.
    pub username: Arc<str>,
    /// The client that the token was issued to.
    pub client_id: Arc<str>,
    /// What the token grants (`scope`, split at spaces).
    pub scopes: Arc<[String]>,
    /// The groups in the pool (`cognito:groups`).
    pub groups: Arc<[String]>,
    /// `exp`, in Unix seconds.
    pub expires_at: i64,
    /// Every claim.
    pub claims: Claims,
}

/// A service, as a verified token of the service pool tells.
#[derive(Clone)]
pub struct Service {
    /// The issuer (`iss`).
    pub issuer: Arc<str>,
    /// The subject (`sub`).
    pub subject: Arc<str>,
    /// The name that allow lists speak of (`custom:service_id`).
    pub service_id: Arc<str>,
    /// What the token grants (`scope`, split at spaces).
    pub scopes: Arc<[String]>,
    /// `exp`, in Unix seconds.
    pub expires_at: i64,
    /// Every claim.
    pub claims: Claims,
}

/// The claims of a verified token, kept in the token's own compact form: a cached token costs its bytes once.
/// Each look reads the payload anew (a few microseconds), so take [`Claims::to_map`] to read several.
#[derive(Clone)]
pub struct Claims {
    /// `payload.signature`, or the whole token where its header is kept nowhere else.
    text: Box<str>,
}

// === impl Caller ===

impl Caller {
    /// The subject, of either kind.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::User(user) => &user.subject,
            Self::Service(service) => &service.subject,
        }
    }

    /// The issuer, of either kind.
    #[must_use]
    pub fn issuer(&self) -> &str {
        match self {
            Self::User(user) => &user.issuer,
            Self::Service(service) => &service.issuer,
        }
    }

    /// The scopes, of either kind.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        match self {
            Self::User(user) => &user.scopes,
            Self::Service(service) => &service.scopes,
        }
    }

    /// The claims, of either kind.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        match self {
            Self::User(user) => &user.claims,
            Self::Service(service) => &service.claims,
        }
    }

    /// `exp` in Unix seconds, of either kind.
    #[must_use]
    pub fn expires_at(&self) -> i64 {
        match self {
            Self::User(user) => user.expires_at,
            Self::Service(service) => service.expires_at,
        }
    }

    /// The user, if it is one.
    #[must_use]
    pub fn user(&self) -> Option<&Arc<User>> {
        match self {
            Self::User(user) => Some(user),
            Self::Service(_) => None,
        }
    }

    /// The service, if it is one.
    #[must_use]
    pub fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Service(service) => Some(service),
            Self::User(_) => None,
        }
    }

    /// The token, or what follows its header: the cache compares it.
    pub(super) fn text(&self) -> &str {
        &self.claims().text
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("issuer", &self.issuer)
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("issuer", &self.issuer)
            .field("service_id", &self.service_id)
            .finish_non_exhaustive()
    }
}

// === impl Claims ===

impl Claims {
    pub(super) fn of_token(text: &str) -> Self {
        Self { text: text.into() }
    }

    /// Claims that came in no token, for tests and for identities made by hand.
    #[must_use]
    pub fn from_map(claims: &Map<String, Value>) -> Self {
        let payload = serde_json::to_vec(claims).unwrap_or_default();
        Self { text: format!("{}.", URL_SAFE_NO_PAD.encode(payload)).into() }
    }

    /// One claim.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value> {
        self.to_map().remove(name)
    }

    /// One claim that is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match self.get(name) {
            Some(Value::String(text)) => Some(text),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_))
            | None => None,
        }
    }

    /// Every claim.
    #[must_use]
    pub fn to_map(&self) -> Map<String, Value> {
        self.text
            .rsplit('.')
            .nth(1)
            .and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok())
            .and_then(|payload| strict::object(&payload).ok())
            .unwrap_or_default()
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims(..)")
    }
}
