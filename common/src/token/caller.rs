use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Who is calling. Users and services are different types on purpose: no policy can mistake one for
/// the other.
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
    /// The claims that policies look at: those of [`super::Issuer::claims`] that the token has.
    pub claims: Claims,
}

/// A service, as a verified token of the service pool tells.
#[derive(Clone)]
pub struct Service {
    /// The issuer (`iss`).
    pub issuer: Arc<str>,
    /// The subject (`sub`).
    pub subject: Arc<str>,
    /// The name that allow lists speak of (`custom:service_id`); it belongs to this issuer alone.
    pub service_id: Arc<str>,
    /// What the token grants (`scope`, split at spaces).
    pub scopes: Arc<[String]>,
    /// `exp`, in Unix seconds.
    pub expires_at: i64,
}

/// Claims of a verified token. A list and no map: they are few, and identities are remembered by
/// the hundred thousand.
#[derive(Clone, Default)]
pub struct Claims(Box<[(Arc<str>, Value)]>);

/// A value in memory takes at most this many times its text: a list of digits, 32 bytes for two.
const VALUE_BYTES_PER_CHARACTER: usize = 16;

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

    /// What the text of it takes at most, in bytes: as much of it as no other identity may share.
    pub(super) fn text_bytes(&self) -> usize {
        let list = |items: &[String]| {
            items
                .iter()
                .map(|item| size_of::<String>() + item.len())
                .sum::<usize>()
        };
        match self {
            Self::User(user) => {
                let names = user.subject.len() + user.username.len() + user.client_id.len();
                names + list(&user.scopes) + list(&user.groups) + user.claims.bytes()
            }
            Self::Service(service) => {
                service.subject.len() + service.service_id.len() + list(&service.scopes)
            }
        }
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
    /// The claim, if the token has it and policies look at it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(known, _)| **known == *name)
            .map(|(_, value)| value)
    }

    fn bytes(&self) -> usize {
        self.0
            .iter()
            .map(|(_, value)| value.to_string().len() * VALUE_BYTES_PER_CHARACTER)
            .sum()
    }
}

impl FromIterator<(Arc<str>, Value)> for Claims {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Value)>>(claims: I) -> Self {
        Self(claims.into_iter().collect())
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims(..)")
    }
}
