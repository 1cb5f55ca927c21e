//! Verified identities.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// The verified identity of a request. Users and services are different types, so that a policy
/// cannot confuse them.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A person.
    User(Arc<User>),
    /// A service account.
    Service(Arc<Service>),
}

/// A person, identified by a token of the actor pool.
#[derive(Clone)]
pub struct User {
    /// The issuer (`iss`).
    pub issuer: Arc<str>,
    /// The subject (`sub`). The identity is issuer and subject.
    pub subject: Arc<str>,
    /// The name in the pool (`username`), or the subject if the token has none.
    pub username: Arc<str>,
    /// The client id that the token was issued to.
    pub client_id: Arc<str>,
    /// The granted scopes (`scope` and `scp`).
    pub scopes: Arc<[String]>,
    /// The groups in the pool ([`super::IssuerRules::groups_claim`]).
    pub groups: Arc<[String]>,
    /// `exp`, in Unix seconds.
    pub expires_at: i64,
    /// The claims that policies use: those of [`super::Issuer::claims`] that the token has.
    pub claims: Claims,
}

/// A service, identified by a token of the service pool.
#[derive(Clone)]
pub struct Service {
    /// The issuer (`iss`).
    pub issuer: Arc<str>,
    /// The subject (`sub`).
    pub subject: Arc<str>,
    /// The service name that allow lists contain ([`super::IssuerRules::service_claim`]). A name
    /// belongs to one issuer.
    pub service_id: Arc<str>,
    /// The granted scopes (`scope` and `scp`).
    pub scopes: Arc<[String]>,
    /// `exp`, in Unix seconds.
    pub expires_at: i64,
}

/// Claims of a verified token, as a list: there are few of them, and up to 100,000 identities are
/// cached.
#[derive(Clone, Default)]
pub struct Claims(Box<[(Arc<str>, Value)]>);

/// Maximum bytes in memory per byte of JSON text; reached by a list of digits, 32 bytes per two.
const VALUE_BYTES_PER_CHARACTER: usize = 16;

// === impl Caller ===

impl Caller {
    /// Returns the subject.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::User(user) => &user.subject,
            Self::Service(service) => &service.subject,
        }
    }

    /// Returns the issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        match self {
            Self::User(user) => &user.issuer,
            Self::Service(service) => &service.issuer,
        }
    }

    /// Returns the scopes.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        match self {
            Self::User(user) => &user.scopes,
            Self::Service(service) => &service.scopes,
        }
    }

    /// Returns `exp` in Unix seconds.
    #[must_use]
    pub fn expires_at(&self) -> i64 {
        match self {
            Self::User(user) => user.expires_at,
            Self::Service(service) => service.expires_at,
        }
    }

    /// Returns the user, or `None` for a service.
    #[must_use]
    pub fn user(&self) -> Option<&Arc<User>> {
        match self {
            Self::User(user) => Some(user),
            Self::Service(_) => None,
        }
    }

    /// Returns the service, or `None` for a user.
    #[must_use]
    pub fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Service(service) => Some(service),
            Self::User(_) => None,
        }
    }

    /// Returns the groups of a user whose token the actor pool has issued; otherwise none. Another
    /// issuer could put its users into any group.
    #[must_use]
    pub fn actor_groups(&self, actor_issuer: &str) -> &[String] {
        match self {
            Self::User(user) if *user.issuer == *actor_issuer => &user.groups,
            Self::User(_) | Self::Service(_) => &[],
        }
    }

    /// Returns the maximum bytes of the strings and claims that are not shared with other
    /// identities.
    pub(super) fn text_bytes(&self) -> usize {
        let bytes = |item: &String| size_of::<String>() + item.len();
        let list = |items: &[String]| items.iter().map(bytes).sum::<usize>();
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
        write!(f, "User({} {})", self.issuer, self.subject)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({} {})", self.issuer, self.service_id)
    }
}

// === impl Claims ===

impl Claims {
    /// Returns a claim, if the token has it and policies use it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let claim = self.0.iter().find(|(known, _)| **known == *name);
        claim.map(|(_, value)| value)
    }

    fn bytes(&self) -> usize {
        let lengths = self.0.iter().map(|(_, value)| value.to_string().len());
        lengths.sum::<usize>() * VALUE_BYTES_PER_CHARACTER
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
