//! The trusted issuers and the rules for their tokens.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use url::Url;

use super::strict_json::{JsonValue, StrictObject};
use super::{Caller, Claims, Service, TokenError, User};

/// A trusted issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// `iss`, compared byte for byte.
    pub issuer: String,
    /// URL of its JWKS: HTTPS, or HTTP on a loopback address.
    pub jwks_url: Url,
    /// The kind of caller that its tokens identify.
    pub kind: IssuerKind,
    /// Accepted client ids. If empty, only `rules.audiences` is checked.
    pub client_ids: Vec<String>,
    /// Further rules for its tokens.
    pub rules: IssuerRules,
    /// Claims that policies use, as names or paths such as `realm_access.roles`. Identities hold
    /// only these claims.
    pub claims: Vec<String>,
}

/// Rules for the tokens of one issuer. The default is the format of the actor and service pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssuerRules {
    /// Another `iss` of its tokens, which identify the same callers as those with the first one.
    pub alias: Option<String>,
    /// Accepted `token_use` values. `None`: `access` for users, `id` and `access` for services.
    /// Empty: the issuer writes no `token_use`, and it is not checked.
    pub token_uses: Option<Vec<String>>,
    /// `aud` must contain one of these (RFC 9068 section 4). If empty, `aud` is checked only for
    /// the client of an ID token.
    pub audiences: Vec<String>,
    /// The claim that contains the client id, such as `azp`. Default `client_id`.
    pub client_claim: Option<String>,
    /// The claim that contains the groups of a user, as a name or path. Default `cognito:groups`.
    pub groups_claim: Option<String>,
    /// The claim that contains the service name, as a name or path. Default `custom:service_id`.
    pub service_claim: Option<String>,
    /// Service names that its tokens may contain. A name belongs to one issuer.
    pub services: ServiceNames,
}

/// A set of service names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceNames {
    /// The listed names.
    Only(Vec<String>),
    /// All names except the listed ones, which belong to other issuers.
    AllBut(Vec<String>),
}

/// The kind of caller that an issuer's tokens identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuerKind {
    /// People: access tokens without `custom:service_id`.
    User,
    /// Services: ID or access tokens with `custom:service_id`.
    Service,
}

/// The rules of one issuer, with strings that its identities share.
#[derive(Debug)]
pub(super) struct IssuerTrust {
    pub(super) issuer: Arc<str>,
    kind: IssuerKind,
    clients: Vec<Arc<str>>,
    /// With the `token_uses` of pools if they are not set.
    rules: IssuerRules,
    claims: Vec<Arc<str>>,
    lists: InternedLists,
}

/// Interned lists of scopes and groups: a pool has few distinct ones, and identities share them.
#[derive(Debug, Default)]
struct InternedLists(Mutex<HashSet<Arc<[String]>, ahash::RandomState>>);

const MAX_INTERNED_LISTS: usize = 256;

/// The validity period of a token, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenTimes {
    /// `exp`: the token is invalid from then on.
    pub(super) expires_at: i64,
    /// The later of `nbf` and `iat`.
    pub(super) valid_from: i64,
}

const SERVICE_ID_CLAIM: &str = "custom:service_id";

const CLIENT_ID_CLAIM: &str = "client_id";

const GROUPS_CLAIM: &str = "cognito:groups";

/// The claims with scopes: that of RFC 8693 section 4.2, and that of Entra ID and Okta.
const SCOPE_CLAIMS: [&str; 2] = ["scope", "scp"];

// === impl TokenTimes ===

impl TokenTimes {
    /// Reads `exp`, `nbf` and `iat`. Fractions of a second do not count: the clock has none either.
    pub(super) fn read(claims: &StrictObject<'_>) -> Result<Self, TokenError> {
        let expires_at = instant(claims, "exp")?.ok_or(TokenError::ClaimMissing("exp"))?;
        let not_before = instant(claims, "nbf")?.unwrap_or(i64::MIN);
        let issued_at = instant(claims, "iat")?.unwrap_or(i64::MIN);
        Ok(Self {
            expires_at,
            valid_from: not_before.max(issued_at),
        })
    }

    /// Checks the times. The leeway is for clocks that are ahead of this one and applies to `nbf`
    /// and `iat` only; a token is invalid at `exp`, also in the cache.
    pub(super) fn check(self, now_s: i64, leeway_s: i64) -> Result<(), TokenError> {
        if now_s >= self.expires_at {
            return Err(TokenError::Expired);
        }
        if self.valid_from > now_s.saturating_add(leeway_s) {
            return Err(TokenError::NotYetValid);
        }
        Ok(())
    }
}

fn instant(claims: &StrictObject<'_>, name: &'static str) -> Result<Option<i64>, TokenError> {
    let seconds = |value: &JsonValue<'_>| value.as_seconds().ok_or(TokenError::ClaimType(name));
    claims.get(name).map(seconds).transpose()
}

/// Checks the types of registered claims that are not used otherwise (RFC 7519 sections 4.1.3 and
/// 4.1.7). Other verifiers reject wrong types, and all must agree on whether a token is valid.
pub(super) fn check_types(claims: &StrictObject<'_>) -> Result<(), TokenError> {
    let is_audience = match claims.get("aud") {
        Some(JsonValue::List(all)) => all.iter().all(JsonValue::is_text),
        Some(value) => value.is_text(),
        None => true,
    };
    if !is_audience {
        return Err(TokenError::ClaimType("aud"));
    }
    if !claims.get("jti").is_none_or(JsonValue::is_text) {
        return Err(TokenError::ClaimType("jti"));
    }
    Ok(())
}

/// Returns a claim that must be present and non-empty text.
pub(super) fn text<'a>(
    claims: &'a StrictObject<'_>,
    name: &'static str,
) -> Result<&'a str, TokenError> {
    text_as(claims, name, name)
}

/// Returns a claim as [`text`] does, whose name in errors is `shown`.
fn text_as<'a>(
    claims: &'a StrictObject<'_>,
    name: &str,
    shown: &'static str,
) -> Result<&'a str, TokenError> {
    match claims.get(name) {
        Some(JsonValue::Text(text)) if text.is_empty() => Err(TokenError::ClaimMissing(shown)),
        // PostgreSQL refuses such text.
        Some(JsonValue::Text(text)) if text.contains('\0') => Err(TokenError::ClaimType(shown)),
        Some(JsonValue::Text(text)) => Ok(text),
        Some(_) => Err(TokenError::ClaimType(shown)),
        None => Err(TokenError::ClaimMissing(shown)),
    }
}

// === impl ServiceNames ===

impl ServiceNames {
    /// Returns the listed names, if no others are accepted.
    pub(crate) fn only(&self) -> Option<&Vec<String>> {
        match self {
            Self::Only(names) => Some(names),
            Self::AllBut(_) => None,
        }
    }

    fn contains(&self, name: &str) -> bool {
        let listed = |names: &[String]| names.iter().any(|known| known == name);
        match self {
            Self::Only(names) => listed(names),
            Self::AllBut(names) => !listed(names),
        }
    }
}

impl Default for ServiceNames {
    fn default() -> Self {
        Self::AllBut(Vec::new())
    }
}

// === impl InternedLists ===

impl InternedLists {
    fn intern(&self, list: Vec<String>) -> Arc<[String]> {
        let mut known = self.0.lock();
        if let Some(intern) = known.get(list.as_slice()) {
            return Arc::clone(intern);
        }
        let list: Arc<[String]> = list.into();
        if known.len() < MAX_INTERNED_LISTS {
            known.insert(Arc::clone(&list));
        }
        list
    }
}

// === impl IssuerTrust ===

impl IssuerTrust {
    pub(super) fn new(issuer: &Issuer) -> Self {
        let of_pools: &[&str] = match issuer.kind {
            IssuerKind::User => &["access"],
            IssuerKind::Service => &["id", "access"],
        };
        let of_pools = || of_pools.iter().map(|name| (*name).to_owned()).collect();
        let mut rules = issuer.rules.clone();
        rules.token_uses.get_or_insert_with(of_pools);
        let shared = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        Self {
            issuer: issuer.issuer.as_str().into(),
            kind: issuer.kind,
            clients: shared(&issuer.client_ids),
            rules,
            claims: shared(&issuer.claims),
            lists: InternedLists::default(),
        }
    }

    /// Decides between user, service and rejection, after the issuer has been selected. The order
    /// of the checks decides which error is returned.
    pub(super) fn decide(
        &self,
        claims: &StrictObject<'_>,
        times: TokenTimes,
    ) -> Result<Caller, TokenError> {
        let token_use = match self.token_uses() {
            [] => None,
            [..] => Some(text(claims, "token_use")?),
        };
        let subject: Arc<str> = text(claims, "sub")?.into();
        match self.kind {
            IssuerKind::User => {
                // An ID token is rejected for its use before its client is checked, because ID
                // tokens of users are never accepted.
                if token_use == Some("id") {
                    self.check_use(token_use)?;
                }
                let client_id = self.client(claims, token_use)?;
                self.check_use(token_use)?;
                if claims.contains(SERVICE_ID_CLAIM) {
                    return Err(TokenError::Kind);
                }
                let username = username(claims, &subject)?;
                Ok(Caller::User(Arc::new(User {
                    issuer: Arc::clone(&self.issuer),
                    subject,
                    username,
                    client_id,
                    scopes: self.lists.intern(scopes(claims)?),
                    groups: self.lists.intern(self.groups(claims)?),
                    expires_at: times.expires_at,
                    claims: self.policy_claims(claims),
                })))
            }
            // A token without a service name is never a service's token, whatever its use.
            IssuerKind::Service => {
                self.client(claims, token_use)?;
                let service_id = self.service_id(claims)?;
                self.check_use(token_use)?;
                if !self.rules.services.contains(service_id) {
                    return Err(TokenError::ServiceName);
                }
                Ok(Caller::Service(Arc::new(Service {
                    issuer: Arc::clone(&self.issuer),
                    subject,
                    service_id: service_id.into(),
                    scopes: self.lists.intern(scopes(claims)?),
                    expires_at: times.expires_at,
                })))
            }
        }
    }

    fn groups(&self, claims: &StrictObject<'_>) -> Result<Vec<String>, TokenError> {
        let name = self.rules.groups_claim.as_deref();
        let groups = claims.find(name.unwrap_or(GROUPS_CLAIM));
        let groups = groups.map_or(Ok(Vec::new()), |value| texts(value, "groups"))?;
        Ok(groups.into_iter().map(str::to_owned).collect())
    }

    fn service_id<'a>(&self, claims: &'a StrictObject<'_>) -> Result<&'a str, TokenError> {
        let name = self.rules.service_claim.as_deref();
        claims
            .find(name.unwrap_or(SERVICE_ID_CLAIM))
            .and_then(JsonValue::as_text)
            .filter(|id| !id.trim().is_empty())
            .ok_or(TokenError::Kind)
    }

    fn policy_claims(&self, claims: &StrictObject<'_>) -> Claims {
        let policy_claims =
            |name: &Arc<str>| Some((Arc::clone(name), claims.find(name)?.to_value()));
        self.claims.iter().filter_map(policy_claims).collect()
    }

    fn check_use(&self, token_use: Option<&str>) -> Result<(), TokenError> {
        let is_listed = |token_use| self.token_uses().iter().any(|name| name == token_use);
        let is_accepted = token_use.is_none_or(is_listed);
        is_accepted.then_some(()).ok_or(TokenError::TokenUse)
    }

    /// Returns the accepted values of `token_use`; empty if it is not checked.
    fn token_uses(&self) -> &[String] {
        self.rules.token_uses.as_deref().unwrap_or_default()
    }

    /// Returns the client of the token: the audience of an ID token, otherwise the client claim.
    fn client(
        &self,
        claims: &StrictObject<'_>,
        token_use: Option<&str>,
    ) -> Result<Arc<str>, TokenError> {
        let audiences = &self.rules.audiences;
        if !audiences.is_empty() && !audiences.iter().any(|ours| is_audience(claims, ours)) {
            return Err(TokenError::Client);
        }
        let claim = self.rules.client_claim.as_deref();
        let claim = claim.unwrap_or(CLIENT_ID_CLAIM);
        let has_claim = claims.contains(claim);
        let named = || text_as(claims, claim, "client");
        if self.clients.is_empty() {
            let name = if has_claim { named()? } else { "" };
            return Ok(name.into());
        }
        let name = match token_use {
            Some("id") => audience(claims)?,
            Some("access") | None => named()?,
            Some(_) if has_claim => named()?,
            Some(_) => audience(claims)?,
        };
        let client = self.clients.iter().find(|client| ***client == *name);
        client.cloned().ok_or(TokenError::Client)
    }
}

/// Returns whether `aud` is or contains `ours`.
pub(super) fn is_audience(claims: &StrictObject<'_>, ours: &str) -> bool {
    match claims.get("aud") {
        Some(JsonValue::Text(one)) => one == ours,
        Some(JsonValue::List(all)) => all.iter().any(|one| one.as_text() == Some(ours)),
        Some(_) | None => false,
    }
}

/// Returns `aud` of a pool's ID token: one audience, as text or a list of one (RFC 7519 section
/// 4.1.3).
fn audience<'a>(claims: &'a StrictObject<'_>) -> Result<&'a str, TokenError> {
    match claims.get("aud") {
        Some(JsonValue::List(all)) => match all.as_slice() {
            [JsonValue::Text(one)] => Ok(one),
            [] => Err(TokenError::ClaimMissing("aud")),
            _ => Err(TokenError::Client),
        },
        _ => text(claims, "aud"),
    }
}

fn username(claims: &StrictObject<'_>, subject: &Arc<str>) -> Result<Arc<str>, TokenError> {
    match claims.get("username") {
        Some(JsonValue::Text(name)) if name.is_empty() => Ok((**name).into()),
        Some(_) => Ok(text(claims, "username")?.into()),
        None => Ok(Arc::clone(subject)),
    }
}

/// Returns the scopes of both claims: the words of text, or of the items of a list.
fn scopes(claims: &StrictObject<'_>) -> Result<Vec<String>, TokenError> {
    let found = SCOPE_CLAIMS.iter().filter_map(|name| claims.get(name));
    let found: Vec<Vec<&str>> = found
        .map(|value| texts(value, "scope"))
        .collect::<Result<_, _>>()?;
    let words = found
        .into_iter()
        .flatten()
        .flat_map(str::split_ascii_whitespace);
    Ok(words.map(str::to_owned).collect())
}

/// Returns text, or the items of a list of texts. Some providers write a list of one as text.
fn texts<'a>(value: &'a JsonValue<'_>, shown: &'static str) -> Result<Vec<&'a str>, TokenError> {
    let item = |value: &'a JsonValue<'_>| value.as_text().ok_or(TokenError::ClaimType(shown));
    if let JsonValue::List(all) = value {
        return all.iter().map(item).collect();
    }
    Ok(vec![item(value)?])
}
