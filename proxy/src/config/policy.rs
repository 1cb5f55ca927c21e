//! Authorization policies of routes.

use std::sync::Arc;

use postern_core::decode::{Field, Object, Value};
use postern_core::settings;
use postern_core::token::{Issuer, IssuerKind};
use serde_json::Value as Json;

use crate::config::{Config, PathPattern, Route, short_texts};

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
}

settings! {
    /// Users.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct UserRule(table, path: Option<&PathPattern>) {
        /// Scopes, all of which the token must have.
        pub scopes: Vec<String> = [] => short_texts,
        /// Groups, one of which the user must be in.
        ///
        /// Empty for any user, or with `owner` for no other user.
        pub groups: Vec<String> = [] => short_texts,
        /// Path parameter that must be the user's subject, unless the user is in one of `groups`.
        pub owner: Option<OwnerRule> = None => |field| read_owner(field.typed("name"), path?),
        /// Claims that the token must have. The value is that of the claim, or one that it contains; of
        /// a list, each. A name may be a path: `"realm_access.roles"`.
        pub claims: Vec<(String, Json)> = { Some(Vec::new()) } ("none")
            => |field| field.object(read_required),
    }
}

/// A path parameter with the subject of the user to whom an object belongs.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerRule {
    /// The name of the parameter.
    pub param: String,
    /// The position of its segment in the path.
    pub segment: usize,
    /// The issuers whose users own nothing: all but the first one of users, because their subjects
    /// may be equal.
    pub foreign: Arc<[String]>,
}

settings! {
    /// Services by name.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ServiceRule(table) {
        /// Service names.
        pub allow: Option<Vec<String>> = None ("any") => short_texts,
        /// Scopes, all of which the token must have.
        pub scopes: Vec<String> = [] => short_texts,
    }
}

impl OwnerRule {
    /// Returns the encoded subject of the owner in a path of the route.
    pub(crate) fn of<'p>(&self, path: &'p str) -> &'p str {
        path.split('/').nth(self.segment + 1).unwrap_or_default()
    }
}

impl RoutePolicy {
    /// Returns whether requests without a token may use the route.
    #[must_use]
    pub fn is_public(&self) -> bool {
        matches!(self, Self::Public)
    }

    fn users(&self) -> Option<&UserRule> {
        match self {
            Self::Public => None,
            Self::Protected(protected) => protected.users.as_ref(),
        }
    }

    /// Returns the rule for owners, if there is one.
    pub(crate) fn owner_rule(&self) -> Option<&OwnerRule> {
        self.users()?.owner.as_ref()
    }

    /// Returns the encoded subject of the owner whom the policy finds in a path.
    pub(crate) fn owner<'p>(&self, path: &'p str) -> Option<&'p str> {
        Some(self.owner_rule()?.of(path))
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &str> {
        self.users()
            .into_iter()
            .flat_map(|rule| &rule.claims)
            .map(|(name, _)| name.as_str())
    }
}

/// Reads `"public"`, or `{ users = …, services = … }` with at least one of the two. `path` is that of the route, if it is valid.
pub(super) fn read(field: Field<'_>, path: Option<&PathPattern>) -> Option<RoutePolicy> {
    if field.is("public") {
        return Some(RoutePolicy::Public);
    }
    let choices = "must be \"public\" or a table with users or services";
    table_or(field, choices, |policy| {
        let users = policy.optional("users", |field| read_users(field, path));
        let services = policy.optional("services", read_services);
        if !policy.has("users") && !policy.has("services") {
            policy.fail(
                "missing_field",
                "must let in users or services, or be \"public\"",
            );
        }
        Some(RoutePolicy::Protected(CallerRules { users, services }))
    })
}

/// Reads a table; `choices` says which other values are possible.
pub(super) fn table_or<T>(
    field: Field<'_>,
    choices: &str,
    read: impl FnOnce(&Object<'_>) -> Option<T>,
) -> Option<T> {
    match matches!(field.value(), Value::Object(_)) {
        true => field.object(read),
        false => field.fail("invalid_choice", choices),
    }
}

/// Reads `"any"`, or a table of requirements.
fn read_users(field: Field<'_>, path: Option<&PathPattern>) -> Option<UserRule> {
    if field.is("any") {
        return Some(UserRule::default());
    }
    let choices = "must be \"any\" or a table with scopes, groups, owner or claims";
    table_or(field, choices, |rule| UserRule::read(rule, path))
}

/// Sets the issuers whose users own nothing.
pub(super) fn restrict_owners(routes: &mut [Route], issuers: Vec<Issuer>) {
    let of_users = issuers.into_iter().filter(|it| it.kind == IssuerKind::User);
    let foreign: Arc<[String]> = of_users.skip(1).map(|it| it.issuer).collect();
    for route in routes {
        if let RoutePolicy::Protected(rules) = &mut route.policy
            && let Some(owner) = rules.users.as_mut().and_then(|rule| rule.owner.as_mut())
        {
            owner.foreign = Arc::clone(&foreign);
        }
    }
}

/// Reads the name of a parameter of the path.
fn read_owner(field: Field<'_>, path: &PathPattern) -> Option<OwnerRule> {
    let param = field.text(1..=64)?;
    let Some(segment) = path.param(&param) else {
        return field.fail("unknown_parameter", format!("the path has no {{{param}}}"));
    };
    Some(OwnerRule {
        param,
        segment,
        foreign: Arc::new([]),
    })
}

/// Reads `{ tier = 2, roles = ["reader", "editor"] }`. Each value of a list is required.
fn read_required(section: &Object<'_>) -> Option<Vec<(String, Json)>> {
    let mut required = Vec::new();
    for (name, value) in read_claims(section)? {
        match value.as_array() {
            Some(all) if !all.is_empty() => {
                required.extend(all.iter().map(|value| (name.clone(), value.clone())));
            }
            Some(_) | None => required.push((name, value)),
        }
    }
    Some(required)
}

/// Reads claims. The table `{ realm_access = { roles = … } }` is the path `realm_access.roles`.
pub(super) fn read_claims(section: &Object<'_>) -> Option<Vec<(String, Json)>> {
    let mut claims = Vec::new();
    let named = section.entries(|name, field| Some((name.to_owned(), field.node().to_json())));
    for (name, value) in named {
        add_claims(name, value, &mut claims);
    }
    Some(claims)
}

fn add_claims(path: String, value: Json, claims: &mut Vec<(String, Json)>) {
    match value.as_object() {
        Some(members) if !members.is_empty() => {
            for (name, value) in members {
                add_claims(format!("{path}.{name}"), value.clone(), claims);
            }
        }
        Some(_) | None => claims.push((path, value)),
    }
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
    let choices = "must be \"any\", a list of names or a table with allow or scopes";
    table_or(field, choices, ServiceRule::read)
}

/// Records the first route whose policy nobody can satisfy, because nothing that is configured
/// identifies such a caller. The gateway would be ready and refuse everyone.
pub(crate) fn check_callers(root: &Object<'_>, config: &Config) {
    if !root.is_good() {
        return;
    }
    let issuers = config.identity.issuers();
    let has_issuer = |kind| issuers.iter().any(|issuer| issuer.kind == kind);
    let users = has_issuer(IssuerKind::User);
    let tls = config
        .listen
        .iter()
        .filter_map(|listen| listen.tls.as_ref());
    let mut certificates = tls.flat_map(|tls| &tls.certificates);
    let has_certificates = certificates.any(|it| {
        let client_auth = it.client_auth.as_ref();
        client_auth.is_some_and(|client_auth| !client_auth.principals.is_empty())
    });
    let services = has_issuer(IssuerKind::Service) || config.api_keys.is_some() || has_certificates;
    let mut unsatisfiable = config.routes.iter().filter(|route| {
        matches!(&route.policy, RoutePolicy::Protected(rules)
            if !(users && (rules.users.is_some() || route.settings.report_only)
                || services && (rules.services.is_some() || route.settings.report_only)))
    });
    let Some(first) = unsatisfiable.next() else {
        return;
    };
    let detail = format!(
        "nothing that is configured identifies such a caller ({} further routes are alike): set \
         IDP_ACTOR_POOL_ID, IDP_ACTOR_CLIENT_ID, IDP_SERVICE_POOL_ID and IDP_SERVICE_CLIENT_ID, or \
         [[identity.issuer]]; for services also api_keys or client_certificates",
        unsatisfiable.count()
    );
    root.fail_at(&format!("{}.policy", first.place), "missing_issuer", detail);
}
