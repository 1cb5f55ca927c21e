//! Additional issuers: `[[identity.issuer]]`.

use std::collections::HashSet;

use url::Url;

use crate::decode::{Field, Object};
use crate::settings;
use crate::token::{Issuer, IssuerKind, IssuerRules, ServiceNames};

settings! {
    /// Reads one entry.
    pub(super) fn read(entry) -> Issuer {
        /// What its tokens identify.
        kind => |field| {
            field.one_of(&[("user", IssuerKind::User), ("service", IssuerKind::Service)])
        },
        /// Expected `iss`, byte for byte.
        issuer => issuer_name,
        /// Address of its JWKS.
        jwks_url = { default_jwks_url(entry, issuer.as_deref()) } ("below the issuer")
            => |field| field.url(),
        /// Accepted `client_id` values; `clients` or `audiences` is required.
        clients = [] => names,
        /// Accepted values of `token_use`; empty for issuers without that claim, which need
        /// `audiences`.
        token_use = None ("`access` for users, `id` and `access` for services") => names,
        /// Accepted `aud` values.
        audiences = [] => |field| {
            read_audiences(entry, field, clients.as_deref(), token_use.as_ref()?.as_deref())
        },
        /// Claim that contains the client id.
        client_claim = None ("`client_id`") => name,
        /// Claim with the groups of a user; also a path such as `realm_access.roles`.
        groups_claim = None ("`cognito:groups`") => name,
        /// Claim with the name of a service, such as `azp`.
        service_claim = None ("`custom:service_id`") => name,
        /// Service names of its tokens; required for the kind `service`.
        services = [] => |field| read_services(entry, field, kind),
    } => Issuer {
        issuer,
        jwks_url,
        kind,
        client_ids: clients,
        rules: IssuerRules {
            alias: None,
            token_uses: token_use,
            audiences,
            client_claim,
            groups_claim,
            service_claim,
            services: ServiceNames::Only(services),
        },
        claims: Vec::new(),
    }
}

fn default_jwks_url(entry: &Object<'_>, issuer: Option<&str>) -> Option<Url> {
    let issuer = issuer?.trim_end_matches('/');
    let url = Url::parse(&format!("{issuer}/.well-known/jwks.json"));
    if url.is_err() {
        let detail = "jwks_url is required: the issuer is not a URL";
        entry.fail("missing_field", detail);
    }
    url.ok()
}

fn read_audiences(
    entry: &Object<'_>,
    field: Field<'_>,
    clients: Option<&[String]>,
    token_use: Option<&[String]>,
) -> Option<Vec<String>> {
    let audiences = names(field)?;
    if clients.is_none_or(<[_]>::is_empty) && audiences.is_empty() {
        entry.fail(
            "missing_field",
            "clients or audiences is required; otherwise every token of the issuer would be accepted",
        );
    }
    // Without `token_use`, only `aud` distinguishes an access token from an ID token (RFC 9068
    // section 4).
    if token_use.is_some_and(<[_]>::is_empty) && audiences.is_empty() {
        entry.fail(
            "missing_field",
            "audiences is required if token_use is empty",
        );
    }
    Some(audiences)
}

/// Reads the issuer. `X-Postern-Issuer` carries it, which requires visible ASCII; `|` separates
/// issuer and subject in stored identities.
fn issuer_name(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=2048)?;
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'|';
    if text.bytes().all(is_allowed) {
        return Some(text);
    }
    field.fail("invalid_format", "must be visible ASCII without |")
}

/// Reads the service names that the issuer may assert. They are required because a service's name
/// decides its permissions.
fn read_services(
    entry: &Object<'_>,
    field: Field<'_>,
    kind: Option<IssuerKind>,
) -> Option<Vec<String>> {
    let services = names(field)?;
    match kind {
        Some(IssuerKind::Service) if services.is_empty() => {
            let detail = "services is required: the service names that its tokens may contain";
            entry.fail("missing_field", detail);
        }
        Some(IssuerKind::Service) if entry.has("groups_claim") => {
            entry.fail("conflicting_fields", "groups_claim requires kind = 'user'");
        }
        Some(IssuerKind::User) if !services.is_empty() || entry.has("service_claim") => {
            let detail = "services and service_claim require kind = 'service'";
            entry.fail("conflicting_fields", detail);
        }
        Some(IssuerKind::Service | IssuerKind::User) | None => {}
    }
    Some(services)
}

fn names(field: Field<'_>) -> Option<Vec<String>> {
    field.array(name)
}

fn name(field: Field<'_>) -> Option<String> {
    field.text(1..=256)
}

/// Checks that no issuer and no service name is configured twice: the issuer of a token decides
/// what the token is.
pub(super) fn check<'a>(
    root: &Object<'_>,
    pools: impl Iterator<Item = &'a String>,
    issuers: &'a [Issuer],
) -> bool {
    let mut known: HashSet<&String> = pools.collect();
    let mut issuer_names = issuers.iter().map(|issuer| &issuer.issuer);
    if let Some(issuer) = issuer_names.find(|name| !known.insert(*name)) {
        let detail = format!("identity.issuer: {issuer} is configured twice");
        root.fail("same_issuer", detail);
        return false;
    }
    let mut known = HashSet::new();
    let services = issuers
        .iter()
        .filter_map(|issuer| issuer.rules.services.only());
    if let Some(name) = services.flatten().find(|name| !known.insert(*name)) {
        let detail = format!("identity.issuer: the service {name} is configured twice");
        root.fail("same_service", detail);
        return false;
    }
    true
}
