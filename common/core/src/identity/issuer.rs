//! Additional issuers: `[[identity.issuer]]`.

use url::Url;

use crate::decode::{Field, Object};
use crate::token::{Issuer, IssuerKind, IssuerRules, ServiceNames};

/// Reads one entry.
pub(super) fn read(field: Field<'_>) -> Option<Issuer> {
    field.object(|entry| {
        let kinds = [("user", IssuerKind::User), ("service", IssuerKind::Service)];
        let kind = entry.required("kind", |field| field.one_of(&kinds));
        let issuer = entry.required("issuer", issuer_name);
        let jwks_url = entry.optional("jwks_url", |field| field.url());
        let client_ids = entry.or("clients", Vec::new(), names);
        let rules = IssuerRules {
            alias: None,
            token_uses: entry.optional("token_use", names),
            audiences: entry.or("audiences", Vec::new(), names),
            client_claim: entry.optional("client_claim", name),
            groups_claim: entry.optional("groups_claim", name),
            service_claim: entry.optional("service_claim", name),
            services: read_services(entry, kind),
        };
        if client_ids.is_empty() && rules.audiences.is_empty() {
            entry.fail(
                "missing_field",
                "clients or audiences is required; otherwise every token of the issuer would be accepted",
            );
        }
        // Without `token_use`, only `aud` distinguishes an access token from an ID token (RFC 9068
        // section 4).
        if rules.token_uses.as_ref().is_some_and(Vec::is_empty) && rules.audiences.is_empty() {
            entry.fail("missing_field", "audiences is required if token_use is empty");
        }
        let issuer = issuer?;
        let jwks_url = match jwks_url {
            Some(url) => Some(url),
            None => Url::parse(&format!(
                "{}/.well-known/jwks.json",
                issuer.trim_end_matches('/')
            ))
            .ok(),
        };
        if jwks_url.is_none() {
            entry.fail("missing_field", "jwks_url is required: the issuer is not a URL");
        }
        Some(Issuer {
            issuer,
            jwks_url: jwks_url?,
            kind: kind?,
            client_ids,
            rules,
            claims: Vec::new(),
        })
    })
}

/// Reads the issuer. `X-Postern-Issuer` carries it, which requires visible ASCII; `|` separates
/// issuer and subject in stored identities.
fn issuer_name(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=2048)?;
    if text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'|')
    {
        return Some(text);
    }
    field.fail("invalid_format", "must be visible ASCII without |")
}

/// Reads the service names that the issuer may assert. They are required because a service's name
/// decides its permissions.
fn read_services(entry: &Object<'_>, kind: Option<IssuerKind>) -> ServiceNames {
    let services = entry.or("services", Vec::new(), names);
    match kind {
        Some(IssuerKind::Service) if services.is_empty() => {
            entry.fail(
                "missing_field",
                "services is required: the service names that its tokens may contain",
            );
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
    ServiceNames::Only(services)
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
    let mut known: Vec<&String> = pools.collect();
    for issuer in issuers {
        if known.contains(&&issuer.issuer) {
            root.fail(
                "same_issuer",
                format!("identity.issuer: {} is configured twice", issuer.issuer),
            );
            return false;
        }
        known.push(&issuer.issuer);
    }
    let mut services = Vec::new();
    for issuer in issuers {
        let ServiceNames::Only(names) = &issuer.rules.services else {
            continue;
        };
        for name in names {
            if services.contains(&name) {
                root.fail(
                    "same_service",
                    format!("identity.issuer: the service {name} is configured twice"),
                );
                return false;
            }
            services.push(name);
        }
    }
    true
}
