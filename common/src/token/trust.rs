use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use url::Url;

use super::strict::{Json, Object};
use super::{Caller, Claims, Refusal, Service, User};

/// A pool whose tokens are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// `iss`, compared byte for byte.
    pub issuer: String,
    /// Where its keys are; HTTPS, or HTTP on a loopback address.
    pub jwks_url: Url,
    /// What its tokens stand for.
    pub kind: IssuerKind,
    /// The clients whose tokens are accepted; none means that `rules.audiences` decides alone.
    pub client_ids: Vec<String>,
    /// What else its tokens must say.
    pub rules: IssuerRules,
    /// The claims of users that policies look at: identities hold these and no other.
    pub claims: Vec<String>,
}

/// What the tokens of one issuer must say besides. The default is what the pools of the interface
/// write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssuerRules {
    /// The `token_use`s that are accepted. `None`: `access` of users, `id` and `access` of
    /// services. An empty list: the issuer writes none, and none is looked at.
    pub token_uses: Option<Vec<String>>,
    /// Of which `aud` must hold one (RFC 9068 section 4); none means that it is looked at only for
    /// the client of an ID token.
    pub audiences: Vec<String>,
    /// The claim that names the client, where it is not `client_id`, such as `azp`.
    pub client_claim: Option<String>,
    /// The service names that its tokens may carry: a name belongs to one issuer.
    pub services: ServiceNames,
}

/// Names of services (`custom:service_id`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceNames {
    /// These.
    Only(Vec<String>),
    /// All but these, which belong to other issuers.
    AllBut(Vec<String>),
}

/// What the tokens of a pool stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuerKind {
    /// People: access tokens without `custom:service_id`.
    User,
    /// Services: ID or access tokens with `custom:service_id`.
    Service,
}

/// One row of trust, with its strings shared by every identity made from it.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) issuer: Arc<str>,
    kind: IssuerKind,
    clients: Vec<Arc<str>>,
    /// `None` where none is looked at.
    token_uses: Option<Vec<String>>,
    audiences: Vec<String>,
    client_claim: String,
    services: ServiceNames,
    claims: Vec<Arc<str>>,
    lists: Lists,
}

/// Scopes and groups, of which a pool has few: every identity with the same ones shares them.
#[derive(Debug, Default)]
struct Lists(Mutex<HashSet<Arc<[String]>, ahash::RandomState>>);

/// More lists than this are not shared.
const MAX_LISTS: usize = 256;

/// The instants that a token is valid between, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// `exp`: not valid from here on.
    pub(super) expires_at: i64,
    /// The later of `nbf` and `iat`.
    pub(super) valid_from: i64,
}

const SERVICE_ID: &str = "custom:service_id";

const CLIENT_ID: &str = "client_id";

// === impl Times ===

impl Times {
    /// Reads `exp`, `nbf` and `iat`: integers all (stricter than NumericDate of RFC 7519 section
    /// 2).
    pub(super) fn read(claims: &Object<'_>) -> Result<Self, Refusal> {
        let expires_at = instant(claims, "exp")?.ok_or(Refusal::ClaimMissing)?;
        let not_before = instant(claims, "nbf")?.unwrap_or(i64::MIN);
        let issued_at = instant(claims, "iat")?.unwrap_or(i64::MIN);
        Ok(Self {
            expires_at,
            valid_from: not_before.max(issued_at),
        })
    }

    /// Holds the times against the clock. The leeway is for clocks that run ahead of ours, so it is
    /// for the beginning only: at `exp` it is over, cached or not.
    pub(super) fn check(self, now_s: i64, leeway_s: i64) -> Result<(), Refusal> {
        if now_s >= self.expires_at {
            return Err(Refusal::Expired);
        }
        if self.valid_from > now_s.saturating_add(leeway_s) {
            return Err(Refusal::NotYetValid);
        }
        Ok(())
    }
}

fn instant(claims: &Object<'_>, name: &str) -> Result<Option<i64>, Refusal> {
    claims
        .get(name)
        .map(|value| value.as_integer().ok_or(Refusal::ClaimType))
        .transpose()
}

/// Registered claims that are not looked at have their types all the same (RFC 7519 sections 4.1.3
/// and 4.1.7): other readers refuse what has not, and a token means the same to all or nothing.
pub(super) fn check_types(claims: &Object<'_>) -> Result<(), Refusal> {
    let audience = |value: &Json<'_>| match value {
        Json::List(all) => all.iter().all(Json::is_text),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Object(_) => {
            value.is_text()
        }
    };
    let sound =
        claims.get("aud").is_none_or(audience) && claims.get("jti").is_none_or(Json::is_text);
    if sound {
        Ok(())
    } else {
        Err(Refusal::ClaimType)
    }
}

/// A claim that must be there and be text.
pub(super) fn text<'a>(claims: &'a Object<'_>, name: &str) -> Result<&'a str, Refusal> {
    match claims.get(name) {
        Some(Json::Text(text)) if text.is_empty() => Err(Refusal::ClaimMissing),
        Some(Json::Text(text)) => Ok(text),
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_)) => {
            Err(Refusal::ClaimType)
        }
        None => Err(Refusal::ClaimMissing),
    }
}

// === impl ServiceNames ===

impl ServiceNames {
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

// === impl Lists ===

impl Lists {
    fn shared(&self, list: Vec<String>) -> Arc<[String]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = known.get(list.as_slice()) {
            return Arc::clone(shared);
        }
        let list: Arc<[String]> = list.into();
        if known.len() < MAX_LISTS {
            known.insert(Arc::clone(&list));
        }
        list
    }
}

// === impl Trust ===

impl Trust {
    pub(super) fn new(issuer: &Issuer) -> Self {
        let Issuer {
            issuer,
            kind,
            client_ids,
            rules,
            claims,
            jwks_url: _,
        } = issuer;
        let of_pools: &[&str] = match kind {
            IssuerKind::User => &["access"],
            IssuerKind::Service => &["id", "access"],
        };
        let token_uses = match &rules.token_uses {
            None => Some(of_pools.iter().map(|name| (*name).to_owned()).collect()),
            Some(uses) => Some(uses.clone()).filter(|uses| !uses.is_empty()),
        };
        Self {
            issuer: issuer.as_str().into(),
            kind: *kind,
            clients: client_ids
                .iter()
                .map(|client| client.as_str().into())
                .collect(),
            token_uses,
            audiences: rules.audiences.clone(),
            client_claim: rules
                .client_claim
                .clone()
                .unwrap_or_else(|| CLIENT_ID.to_owned()),
            services: rules.services.clone(),
            claims: claims.iter().map(|name| name.as_str().into()).collect(),
            lists: Lists::default(),
        }
    }

    /// The truth table of the contract, from `token_use` on; the issuer has selected this row
    /// already.
    pub(super) fn decide(&self, claims: &Object<'_>, times: Times) -> Result<Caller, Refusal> {
        let token_use = self
            .token_uses
            .as_ref()
            .map(|_| text(claims, "token_use"))
            .transpose()?;
        let subject: Arc<str> = text(claims, "sub")?.into();
        match self.kind {
            IssuerKind::User => {
                // An ID token tells whose it is to its client alone; whose client that is does not
                // matter.
                if token_use == Some("id") {
                    self.check_use(token_use)?;
                }
                let client_id = self.client(claims, token_use)?;
                self.check_use(token_use)?;
                if claims.has(SERVICE_ID) {
                    return Err(Refusal::Kind);
                }
                let username = username(claims, &subject)?;
                Ok(Caller::User(Arc::new(User {
                    issuer: Arc::clone(&self.issuer),
                    subject,
                    username,
                    client_id,
                    scopes: self.lists.shared(scopes(claims)?),
                    groups: self.lists.shared(groups(claims)?),
                    expires_at: times.expires_at,
                    claims: self.kept(claims),
                })))
            }
            // Whatever its use: what does not name a service is no service's token.
            IssuerKind::Service => {
                self.client(claims, token_use)?;
                let service_id = service_id(claims)?;
                self.check_use(token_use)?;
                if !self.services.contains(service_id) {
                    return Err(Refusal::ServiceName);
                }
                Ok(Caller::Service(Arc::new(Service {
                    issuer: Arc::clone(&self.issuer),
                    subject,
                    service_id: service_id.into(),
                    scopes: self.lists.shared(scopes(claims)?),
                    expires_at: times.expires_at,
                })))
            }
        }
    }

    fn kept(&self, claims: &Object<'_>) -> Claims {
        let kept = |name: &Arc<str>| Some((Arc::clone(name), claims.get(name)?.to_value()));
        self.claims.iter().filter_map(kept).collect()
    }

    fn check_use(&self, token_use: Option<&str>) -> Result<(), Refusal> {
        let accepted = match (&self.token_uses, token_use) {
            (Some(accepted), Some(token_use)) => accepted.iter().any(|name| name == token_use),
            (None, _) | (_, None) => true,
        };
        if accepted {
            Ok(())
        } else {
            Err(Refusal::TokenUse)
        }
    }

    /// The client that the token is for: the audience of an ID token, a claim of any other.
    fn client(&self, claims: &Object<'_>, token_use: Option<&str>) -> Result<Arc<str>, Refusal> {
        if !self.audiences.is_empty()
            && !self.audiences.iter().any(|ours| is_audience(claims, ours))
        {
            return Err(Refusal::Client);
        }
        let has_claim = claims.has(&self.client_claim);
        if self.clients.is_empty() {
            return Ok(if has_claim {
                text(claims, &self.client_claim)?.into()
            } else {
                "".into()
            });
        }
        let name = match token_use {
            Some("id") => audience(claims)?,
            Some("access") | None => text(claims, &self.client_claim)?,
            Some(_) if has_claim => text(claims, &self.client_claim)?,
            Some(_) => audience(claims)?,
        };
        self.clients
            .iter()
            .find(|client| ***client == *name)
            .cloned()
            .ok_or(Refusal::Client)
    }
}

/// Whether `aud` is or holds this one.
fn is_audience(claims: &Object<'_>, ours: &str) -> bool {
    match claims.get("aud") {
        Some(Json::Text(one)) => one == ours,
        Some(Json::List(all)) => all.iter().any(|one| one.as_text() == Some(ours)),
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) | None => false,
    }
}

/// `aud` of a pool's ID token: one audience, bare or as a list of one (RFC 7519 section 4.1.3).
fn audience<'a>(claims: &'a Object<'_>) -> Result<&'a str, Refusal> {
    match claims.get("aud") {
        Some(Json::List(all)) => match all.as_slice() {
            [Json::Text(one)] => Ok(one),
            [] => Err(Refusal::ClaimMissing),
            _ => Err(Refusal::Client),
        },
        _ => text(claims, "aud"),
    }
}

fn service_id<'a>(claims: &'a Object<'_>) -> Result<&'a str, Refusal> {
    claims
        .get(SERVICE_ID)
        .and_then(Json::as_text)
        .filter(|id| !id.trim().is_empty())
        .ok_or(Refusal::Kind)
}

fn username(claims: &Object<'_>, subject: &Arc<str>) -> Result<Arc<str>, Refusal> {
    match claims.get("username") {
        Some(Json::Text(name)) if **name != **subject => Ok((**name).into()),
        Some(Json::Text(_)) | None => Ok(Arc::clone(subject)),
        Some(_) => Err(Refusal::ClaimType),
    }
}

fn scopes(claims: &Object<'_>) -> Result<Vec<String>, Refusal> {
    match claims.get("scope") {
        Some(Json::Text(all)) => Ok(all.split_ascii_whitespace().map(str::to_owned).collect()),
        Some(_) => Err(Refusal::ClaimType),
        None => Ok(Vec::new()),
    }
}

fn groups(claims: &Object<'_>) -> Result<Vec<String>, Refusal> {
    match claims.get("cognito:groups") {
        Some(Json::List(all)) => all
            .iter()
            .map(|group| group.as_text().map(str::to_owned).ok_or(Refusal::ClaimType))
            .collect(),
        Some(_) => Err(Refusal::ClaimType),
        None => Ok(Vec::new()),
    }
}
