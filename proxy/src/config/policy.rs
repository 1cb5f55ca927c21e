//! Authorization policies of routes.

use postern_common::decode::{Field, Object, Value};

use crate::config::short_texts;

/// The authorization policy of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum RoutePolicy {
    /// No token is required, and a token is not verified.
    Public,
    /// A valid token of an allowed caller is required.
    Protected(CallerRules),
}

/// The callers that may use a route; at least one kind is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallerRules {
    /// The rule for users; `None` rejects all users.
    pub users: Option<UserRule>,
    /// The rule for services; `None` rejects all services.
    pub services: Option<ServiceRule>,
    /// Report-only mode: a caller with a valid token is never rejected, and the decision is logged.
    pub report_only: bool,
}

/// The requirements for users.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserRule {
    /// Required scopes, all of which the token must contain.
    pub scopes: Vec<String>,
    /// Groups, at least one of which the user must be a member of; empty for any user.
    pub groups: Vec<String>,
    /// Required claims with their values.
    pub claims: Vec<(String, serde_json::Value)>,
}

/// The requirements for services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRule {
    /// Names of the allowed services; `None` for any.
    pub allow: Option<Vec<String>>,
    /// Required scopes, all of which the token must contain.
    pub scopes: Vec<String>,
}

// === impl RoutePolicy ===

impl RoutePolicy {
    /// Returns whether requests without a token may use the route.
    #[must_use]
    pub fn is_public(&self) -> bool {
        matches!(self, Self::Public)
    }

    /// Returns the names of the claims that the policy evaluates.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &str> {
        let users = match self {
            Self::Public => None,
            Self::Protected(protected) => protected.users.as_ref(),
        };
        users
            .into_iter()
            .flat_map(|rule| &rule.claims)
            .map(|(name, _)| name.as_str())
    }

    /// Returns whether decisions of [`RoutePolicy::decide`] are logged without rejecting the
    /// request.
    #[must_use]
    pub fn is_report_only(&self) -> bool {
        matches!(
            self,
            Self::Protected(CallerRules {
                report_only: true,
                ..
            })
        )
    }
}

/// Reads `"public"`, or `{ users = …, services = …, report_only = … }` with at least one of the first
/// two.
pub(super) fn read(field: Field<'_>) -> Option<RoutePolicy> {
    if field.is("public") {
        return Some(RoutePolicy::Public);
    }
    if !matches!(field.value(), Value::Object(_)) {
        return field.fail(
            "invalid_choice",
            "must be \"public\" or a table with users or services",
        );
    }
    field.object(|policy| {
        let users = policy.optional("users", read_users);
        let services = policy.optional("services", read_services);
        let report_only = policy.or("report_only", false, |field| field.boolean());
        if !policy.has("users") && !policy.has("services") {
            policy.fail(
                "missing_field",
                "must let in users or services, or be \"public\"",
            );
        }
        Some(RoutePolicy::Protected(CallerRules {
            users,
            services,
            report_only,
        }))
    })
}

/// Reads `"any"`, or a table of requirements.
fn read_users(field: Field<'_>) -> Option<UserRule> {
    if field.is("any") {
        return Some(UserRule::default());
    }
    if !matches!(field.value(), Value::Object(_)) {
        return field.fail(
            "invalid_choice",
            "must be \"any\" or a table with scopes, groups or claims",
        );
    }
    field.object(|rule| {
        Some(UserRule {
            scopes: rule.or("scopes", Vec::new(), short_texts),
            groups: rule.or("groups", Vec::new(), short_texts),
            claims: rule.section("claims", read_claims).unwrap_or_default(),
        })
    })
}

pub(super) fn read_claims(section: &Object<'_>) -> Option<Vec<(String, serde_json::Value)>> {
    Some(section.entries(|name, field| Some((name.to_owned(), field.node().to_json()))))
}

/// Reads `"any"`, a list of names, or a table with `allow` and `scopes`.
fn read_services(field: Field<'_>) -> Option<ServiceRule> {
    if field.is("any") {
        return Some(ServiceRule::default());
    }
    if matches!(field.value(), Value::Array(_)) {
        return Some(ServiceRule {
            allow: Some(short_texts(field)?),
            scopes: Vec::new(),
        });
    }
    if !matches!(field.value(), Value::Object(_)) {
        return field.fail(
            "invalid_choice",
            "must be \"any\", a list of names or a table with allow or scopes",
        );
    }
    field.object(|rule| {
        Some(ServiceRule {
            allow: rule.optional("allow", short_texts),
            scopes: rule.or("scopes", Vec::new(), short_texts),
        })
    })
}
