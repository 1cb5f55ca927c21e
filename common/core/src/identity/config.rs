//! Parsing of [`IdentityConfig`] from the configuration file and the environment.

use url::Url;

use super::{IdentityConfig, Pool, ServiceAccount, TrustConfig, issuer};
use crate::Secret;
use crate::config::Env;
use crate::decode::{Field, Object, defaults};
use crate::settings;
use crate::token::{Issuer, TokenLimits};

settings! {
    /// Issuer of a pool.
    #[derive(Default)]
    struct FilePool(table) {
        /// Expected `iss`; one of Amazon's two stands for both.
        issuer: Option<String> = None ("both issuers of the pool id")
            => |field| issuer(field, table.has("jwks_url")),
        /// Address of the pool's JWKS.
        jwks_url: Option<Url> = None ("below the issuer") => |field| field.url(),
    }
}

settings! {
    /// Issuers besides the pools, which are set by
    /// [variables](../manual/deploy.md#secrets-and-environment-variables).
    struct FileIdentity(table) {
        limits: TokenLimits = (TokenLimits::read(table)),
        /// Issuer of the pool of the users.
        actor: Option<FilePool> = None ("") => |field| field.object(FilePool::read),
        /// Issuer of the pool of the service accounts.
        service: Option<FilePool> = None ("") => |field| field.object(FilePool::read),
        /// Further issuers; the same in all processes.
        issuers as issuer: Vec<Issuer> = [] => |field| field.array(|item| item.object(issuer::read)),
    }
}

const USERNAME_VARIABLE: &str = "IDP_SERVICE_ACCOUNT_USERNAME";
const PASSWORD_VARIABLE: &str = "IDP_SERVICE_ACCOUNT_PASSWORD";
const ENDPOINT_VARIABLE: &str = "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER";

// === impl IdentityConfig ===

impl IdentityConfig {
    /// Reads the table `[identity]` of `root` and the environment. Returns `None` if a setting is
    /// missing or wrong; every mistake is recorded with its key and variable.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let resolver = SettingsResolver::new(root, env, true);
        let (trust, service_account) = resolver.read()?;
        Some(Self {
            region: resolver.region,
            endpoint: resolver.endpoint,
            actor: trust.actor?,
            service: trust.service?,
            issuers: trust.issuers,
            token_limits: trust.token_limits,
            service_account,
        })
    }
}

// === impl TrustConfig ===

impl TrustConfig {
    /// Reads the settings as [`IdentityConfig::read`] does. A pool exists if the file has its table
    /// or the environment one of its ids; then it must be complete.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let (trust, _account) = SettingsResolver::new(root, env, false).read()?;
        Some(trust)
    }
}

/// Reads an issuer, which is compared with `iss` byte for byte. It must be a URL unless `jwks_url`
/// is set, because the default JWKS URL is below it.
fn issuer(field: Field<'_>, has_jwks_url: bool) -> Option<String> {
    let issuer = field.text(1..=2048)?;
    if has_jwks_url || jwks_url(&issuer).is_some() {
        return Some(issuer);
    }
    let detail = "must be an absolute http or https URL, or `jwks_url` must be set";
    field.reject("invalid_format", detail)
}

/// Returns the JWKS URL of a Cognito pool (the same as in its OpenID Connect Discovery document).
fn jwks_url(issuer: &str) -> Option<Url> {
    http_url(&format!("{issuer}/.well-known/jwks.json"))
}

fn http_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    matches!(url.scheme(), "http" | "https").then_some(url)
}

/// Returns the domain of the services in a region, by the partition that it is in (`partitions.json`
/// of Amazon's SDKs).
#[must_use]
pub fn partition_domain(region: &str) -> &'static str {
    let partitions = [
        ("cn-", "amazonaws.com.cn"),
        ("eusc-", "amazonaws.eu"),
        ("us-iso-", "c2s.ic.gov"),
        ("us-isob-", "sc2s.sgov.gov"),
        ("us-isof-", "csp.hci.ic.gov"),
        ("eu-isoe-", "cloud.adc-e.uk"),
    ];
    let mut partitions = partitions.iter();
    let found = partitions.find(|(prefix, _)| region.starts_with(prefix));
    found.map_or("amazonaws.com", |(_, domain)| domain)
}

/// Resolves each setting from the environment and the file.
struct SettingsResolver<'a> {
    root: &'a Object<'a>,
    env: &'a Env,
    region: String,
    endpoint: Option<Url>,
    needs_pools: bool,
}

// === impl SettingsResolver ===

impl<'a> SettingsResolver<'a> {
    fn new(root: &'a Object<'a>, env: &'a Env, needs_pools: bool) -> Self {
        let endpoint = env.get(ENDPOINT_VARIABLE);
        let url = endpoint.and_then(http_url);
        // It is recorded, and reading continues to find other mistakes.
        if endpoint.is_some() && url.is_none() {
            let detail = format!("{ENDPOINT_VARIABLE} must be an absolute http or https URL");
            root.fail("invalid_format", detail);
        }
        Self {
            root,
            env,
            region: env.get("CLOUD_REGION").unwrap_or("us-west-2").to_owned(),
            endpoint: url,
            needs_pools,
        }
    }

    fn read(&self) -> Option<(TrustConfig, Option<ServiceAccount>)> {
        let root = self.root;
        root.declare("identity", module_path!(), &[], "");
        let from_file = root.or_empty("identity", |field| field.object(FileIdentity::read));
        let from_file = from_file.unwrap_or_else(|| defaults(FileIdentity::read));
        let actor = self.pool("actor", from_file.actor);
        let service = self.pool("service", from_file.service);
        let account = self.account();
        let (actor, service, account) = (actor?, service?, account?);
        let pools = [&actor, &service].map(|pool| pool.as_ref().map(|pool| &pool.issuer));
        let aliases = [&actor, &service].map(|pool| pool.as_ref()?.issuer_alias.as_ref());
        if pools[0].is_some() && (pools[0] == pools[1] || pools[0] == aliases[1]) {
            let detail = "identity.actor and identity.service are the same pool; the pool of a token decides its kind";
            root.fail("same_pool", detail);
            return None;
        }
        let known = pools.into_iter().chain(aliases).flatten();
        if !issuer::check(root, known, &from_file.issuers) {
            return None;
        }
        let trust = TrustConfig {
            actor,
            service,
            issuers: from_file.issuers,
            token_limits: from_file.limits,
        };
        Some((trust, account))
    }

    /// Reads the pool of a table and of its variables, such as `IDP_ACTOR_POOL_ID`. Returns
    /// `Some(None)` for one that is not configured and not needed, and `None` if its settings are
    /// incomplete.
    fn pool(&self, table: &str, from_file: Option<FilePool>) -> Option<Option<Pool>> {
        let prefix = table.to_ascii_uppercase();
        let variables = ["POOL_ID", "CLIENT_ID", "CLIENT_SECRET"];
        let variables = variables.map(|name| format!("IDP_{prefix}_{name}"));
        let mut ids = variables[..2].iter();
        if !self.needs_pools && from_file.is_none() && !ids.any(|name| self.env.get(name).is_some())
        {
            return Some(None);
        }
        let from_file = from_file.unwrap_or_default();
        let (pool_id, client_id) = (self.required(&variables[0]), self.required(&variables[1]));
        let client_secret = self.env.optional_secret(self.root, &variables[2]);
        let (pool_id, client_id, client_secret) = (pool_id?, client_id?, client_secret?);
        let forms = self.issuers(&pool_id);
        let issuer = from_file.issuer.unwrap_or_else(|| forms[0].clone());
        let issuer_alias = match forms.contains(&issuer) {
            true => forms.into_iter().find(|form| *form != issuer),
            false => None,
        };
        let jwks_url = match from_file.jwks_url {
            Some(url) => url,
            None => self.jwks_url(table, &issuer)?,
        };
        Some(Some(Pool {
            pool_id,
            client_id,
            client_secret,
            issuer,
            issuer_alias,
            jwks_url,
        }))
    }

    /// Returns `Some(None)` if no account is configured, and `None` if its settings are incomplete.
    fn account(&self) -> Option<Option<ServiceAccount>> {
        let username = self.text(USERNAME_VARIABLE);
        let password = self.env.optional_secret(self.root, PASSWORD_VARIABLE)?;
        let assumed = || self.env.assumed(PASSWORD_VARIABLE).map(Secret::from);
        match (username, password.or_else(assumed)) {
            (None, None) => Some(None),
            (Some(username), Some(password)) => Some(Some(ServiceAccount { username, password })),
            (Some(_), None) => self.missing(PASSWORD_VARIABLE),
            (None, Some(_)) => self.missing(USERNAME_VARIABLE),
        }
    }

    /// Returns the value of a variable, or the one that a check assumes.
    fn text(&self, variable: &str) -> Option<String> {
        let value = self.env.get(variable).or(self.env.assumed(variable));
        value.map(str::to_owned)
    }

    fn required(&self, variable: &str) -> Option<String> {
        self.text(variable).or_else(|| self.missing(variable))
    }

    fn missing<T>(&self, variable: &str) -> Option<T> {
        let detail = format!("the variable {variable} is not set");
        self.root.fail("missing_field", detail);
        None
    }

    /// Returns the values of `iss` that Cognito writes, the original and the updated one
    /// (`IssuerConfigurationType` in its API reference), or that of the endpoint.
    fn issuers(&self, pool_id: &str) -> Vec<String> {
        if let Some(endpoint) = &self.endpoint {
            let endpoint = endpoint.as_str().trim_end_matches('/');
            return vec![format!("{endpoint}/{pool_id}")];
        }
        let domain = partition_domain(&self.region);
        let form = |host| format!("https://{host}.{}.{domain}/{pool_id}", self.region);
        ["cognito-idp", "issuer-cognito-idp"].map(form).into()
    }

    fn jwks_url(&self, table: &str, issuer: &str) -> Option<Url> {
        let url = jwks_url(issuer);
        if url.is_none() {
            let detail = "the region and the pool id do not form a URL";
            let detail = format!("identity.{table}: {detail}: `{issuer}`");
            self.root.fail("invalid_format", detail);
        }
        url
    }
}
