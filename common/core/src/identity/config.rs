//! Parsing of [`IdentityConfig`] from the configuration file and the environment.

use std::path::Path;

use url::Url;

use super::{IdentityConfig, Pool, ServiceAccount, TrustConfig, issuer};
use crate::Secret;
use crate::config::Env;
use crate::decode::{Field, Object};
use crate::files::read_regular_text;
use crate::token::{Issuer, TokenLimits};

/// A value from the file. `is_present` prevents a mistyped value from being reported as missing as
/// well.
#[derive(Default)]
struct FileValue<T> {
    value: Option<T>,
    is_present: bool,
}

#[derive(Default)]
struct FilePool {
    is_present: bool,
    pool_id: FileValue<String>,
    client_id: FileValue<String>,
    client_secret: Option<Secret>,
    issuer: Option<String>,
    jwks_url: Option<Url>,
}

#[derive(Default)]
struct FileIdentity {
    region: Option<String>,
    endpoint: Option<Url>,
    actor: FilePool,
    service: FilePool,
    issuers: Vec<Issuer>,
    limits: TokenLimits,
    username: FileValue<String>,
    password: Option<Secret>,
}

/// The settings of a process.
struct ResolvedIdentity {
    region: String,
    endpoint: Option<Url>,
    trust: TrustConfig,
    service_account: Option<ServiceAccount>,
}

/// Key and variable names of one pool's settings.
struct PoolKeyNames {
    table: &'static str,
    pool_id: &'static str,
    client_id: &'static str,
    client_secret: &'static str,
}

/// Maximum bytes of a file with a secret.
const MAX_SECRET_FILE_BYTES: usize = 64 << 10;

const ACTOR_KEYS: PoolKeyNames = PoolKeyNames {
    table: "actor",
    pool_id: "IDP_ACTOR_POOL_ID",
    client_id: "IDP_ACTOR_CLIENT_ID",
    client_secret: "IDP_ACTOR_CLIENT_SECRET",
};
const SERVICE_KEYS: PoolKeyNames = PoolKeyNames {
    table: "service",
    pool_id: "IDP_SERVICE_POOL_ID",
    client_id: "IDP_SERVICE_CLIENT_ID",
    client_secret: "IDP_SERVICE_CLIENT_SECRET",
};
const USERNAME_VARIABLE: &str = "IDP_SERVICE_ACCOUNT_USERNAME";
const PASSWORD_VARIABLE: &str = "IDP_SERVICE_ACCOUNT_PASSWORD";
const ENDPOINT_VARIABLE: &str = "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER";

// === impl IdentityConfig ===

impl IdentityConfig {
    /// Reads the table `[identity]` of `root` and the environment. Returns `None` if a setting is
    /// missing or wrong; every mistake is recorded with its key and variable.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let read = ResolvedIdentity::read(root, env, true)?;
        Some(Self {
            region: read.region,
            endpoint: read.endpoint,
            actor: read.trust.actor?,
            service: read.trust.service?,
            issuers: read.trust.issuers,
            token_limits: read.trust.token_limits,
            service_account: read.service_account,
        })
    }
}

// === impl TrustConfig ===

impl TrustConfig {
    /// Reads the settings as [`IdentityConfig::read`] does. A pool exists if the file has its table
    /// or the environment one of its ids; then it must be complete.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        Some(ResolvedIdentity::read(root, env, false)?.trust)
    }
}

// === impl ResolvedIdentity ===

impl ResolvedIdentity {
    fn read(root: &Object<'_>, env: &Env, needs_pools: bool) -> Option<Self> {
        let from_file = root
            .section("identity", |table| Some(read_table(table, env)))
            .unwrap_or_default();
        let region = env
            .get("CLOUD_REGION")
            .map(str::to_owned)
            .or(from_file.region)
            .unwrap_or("us-west-2".to_owned());
        let endpoint = match env.get(ENDPOINT_VARIABLE) {
            // An invalid URL is recorded, and reading continues to find other mistakes.
            Some(text) => endpoint_from_env(root, text),
            None => from_file.endpoint,
        };
        let resolver = SettingsResolver {
            root,
            env,
            region: &region,
            endpoint: endpoint.as_ref(),
            needs_pools,
        };
        let actor = resolver.pool(&ACTOR_KEYS, from_file.actor);
        let service = resolver.pool(&SERVICE_KEYS, from_file.service);
        let account = resolver.account(from_file.username, from_file.password);
        let (actor, service, service_account) = (actor?, service?, account?);
        let pools = [&actor, &service].map(|pool| pool.as_ref().map(|pool| &pool.issuer));
        let aliases = [&actor, &service].map(|pool| pool.as_ref()?.issuer_alias.as_ref());
        if pools[0].is_some() && (pools[0] == pools[1] || pools[0] == aliases[1]) {
            root.fail(
                "same_pool",
                "identity.actor and identity.service are the same pool; the pool of a token decides its kind",
            );
            return None;
        }
        if !issuer::check(
            root,
            pools.into_iter().chain(aliases).flatten(),
            &from_file.issuers,
        ) {
            return None;
        }
        Some(Self {
            region,
            endpoint,
            trust: TrustConfig {
                actor,
                service,
                issuers: from_file.issuers,
                token_limits: from_file.limits,
            },
            service_account,
        })
    }
}

fn endpoint_from_env(root: &Object<'_>, text: &str) -> Option<Url> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.is_none() {
        root.fail(
            "invalid_format",
            format!("{ENDPOINT_VARIABLE} must be an absolute http or https URL"),
        );
    }
    url
}

fn read_table(table: &Object<'_>, env: &Env) -> FileIdentity {
    let pool = |names: &'static PoolKeyNames| {
        table
            .section(names.table, |pool| Some(read_pool(pool, names, env)))
            .unwrap_or_default()
    };
    let (actor, service) = (pool(&ACTOR_KEYS), pool(&SERVICE_KEYS));
    let account = table.section("service_account", |account| {
        let password = secret_file(account, "password", "password_file", PASSWORD_VARIABLE, env);
        Some((from_file(account, "username"), password))
    });
    let (username, password) = account.unwrap_or_default();
    FileIdentity {
        region: table.optional("region", text),
        endpoint: table.optional("endpoint", |field| field.url()),
        actor,
        service,
        issuers: table.list("issuer", issuer::read),
        limits: read_limits(table),
        username,
        password,
    }
}

fn read_limits(table: &Object<'_>) -> TokenLimits {
    let default = TokenLimits::default();
    TokenLimits {
        bytes: table.or("token_bytes", default.bytes, |field| {
            let bytes = usize::try_from(field.bytes()?).ok();
            bytes
                .filter(|bytes| TokenLimits::BYTES.contains(bytes))
                .or_else(|| field.fail("out_of_range", "must be 1KiB to 64KiB"))
        }),
        leeway: table.or("leeway", default.leeway, |field| {
            match field.duration()? {
                leeway if leeway <= TokenLimits::MAX_LEEWAY => Some(leeway),
                _ => field.fail("out_of_range", "must be at most 5m"),
            }
        }),
    }
}

fn read_pool(table: &Object<'_>, names: &PoolKeyNames, env: &Env) -> FilePool {
    FilePool {
        is_present: true,
        pool_id: from_file(table, "pool_id"),
        client_id: from_file(table, "client_id"),
        client_secret: secret_file(
            table,
            "client_secret",
            "client_secret_file",
            names.client_secret,
            env,
        ),
        issuer: table.optional("issuer", |field| issuer(field, table.has("jwks_url"))),
        jwks_url: table.optional("jwks_url", |field| field.url()),
    }
}

fn text(field: Field<'_>) -> Option<String> {
    field.text(1..=2048)
}

/// Reads an issuer, which is compared with `iss` byte for byte. It must be a URL unless `jwks_url`
/// is set, because the default JWKS URL is below it.
fn issuer(field: Field<'_>, has_jwks_url: bool) -> Option<String> {
    let issuer = text(field)?;
    if has_jwks_url || jwks_url(&issuer).is_some() {
        return Some(issuer);
    }
    field.reject(
        "invalid_format",
        "must be an absolute http or https URL, or `jwks_url` must be set",
    )
}

/// Returns the JWKS URL of a Cognito pool (the same as in its OpenID Connect Discovery document).
fn jwks_url(issuer: &str) -> Option<Url> {
    let url = Url::parse(&format!("{issuer}/.well-known/jwks.json")).ok()?;
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
    let found = partitions
        .iter()
        .find(|(prefix, _)| region.starts_with(prefix));
    found.map_or("amazonaws.com", |(_, domain)| domain)
}

fn from_file(table: &Object<'_>, name: &'static str) -> FileValue<String> {
    FileValue {
        value: table.optional(name, text),
        is_present: table.has(name),
    }
}

/// Reads a secret from the file that a `…_file` key names. If the variable is set, the file is not
/// opened.
fn secret_file(
    table: &Object<'_>,
    secret: &'static str,
    file: &'static str,
    variable: &str,
    env: &Env,
) -> Option<Secret> {
    let advice = format!("must not be in this file: set {variable}, or `{file}`");
    table.refuse(secret, "secret_in_file", &advice);
    table.optional(file, |field| {
        let path = field.text(1..=4096)?;
        if env.get(variable).is_some() {
            return None;
        }
        match read_regular_text(Path::new(&path), MAX_SECRET_FILE_BYTES) {
            Ok(text) if !text.trim().is_empty() => {
                Some(Secret::from(text.trim_end_matches(['\r', '\n'])))
            }
            Ok(_) => field.reject("empty_file", format!("{path} is empty")),
            Err(error) => field.reject("unreadable_file", format!("cannot read {path}: {error}")),
        }
    })
}

/// Resolves each setting from the environment, the file and the defaults.
struct SettingsResolver<'a> {
    root: &'a Object<'a>,
    env: &'a Env,
    region: &'a str,
    endpoint: Option<&'a Url>,
    needs_pools: bool,
}

// === impl SettingsResolver ===

impl SettingsResolver<'_> {
    /// Returns `Some(None)` for a pool that is not configured and not needed, and `None` if its
    /// settings are incomplete.
    fn pool(&self, names: &PoolKeyNames, from_file: FilePool) -> Option<Option<Pool>> {
        let mut ids = [names.pool_id, names.client_id].into_iter();
        if !self.needs_pools
            && !from_file.is_present
            && !ids.any(|name| self.env.get(name).is_some())
        {
            return Some(None);
        }
        let pool_id = self.required(names.table, "pool_id", names.pool_id, from_file.pool_id);
        let client_id = self.required(
            names.table,
            "client_id",
            names.client_id,
            from_file.client_id,
        );
        let (pool_id, client_id) = (pool_id?, client_id?);
        let forms = self.issuers(&pool_id);
        let issuer = from_file.issuer.unwrap_or_else(|| forms[0].clone());
        let issuer_alias = match forms.contains(&issuer) {
            true => forms.into_iter().find(|form| *form != issuer),
            false => None,
        };
        let jwks_url = match from_file.jwks_url {
            Some(url) => url,
            None => self.jwks_url(names.table, &issuer)?,
        };
        let client_secret = self
            .env
            .secret(names.client_secret)
            .or(from_file.client_secret);
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
    fn account(
        &self,
        username: FileValue<String>,
        password: Option<Secret>,
    ) -> Option<Option<ServiceAccount>> {
        let assumed = |variable| self.env.assumed(variable);
        let username = self
            .env
            .get(USERNAME_VARIABLE)
            .map(str::to_owned)
            .or(username.value)
            .or_else(|| assumed(USERNAME_VARIABLE).map(str::to_owned));
        let password = self.env.secret(PASSWORD_VARIABLE).or(password);
        let password = password.or_else(|| assumed(PASSWORD_VARIABLE).map(Secret::from));
        match (username, password) {
            (None, None) => Some(None),
            (Some(username), Some(password)) => Some(Some(ServiceAccount { username, password })),
            (Some(_), None) => self.missing(
                "service_account",
                "password_file",
                PASSWORD_VARIABLE,
                " with the user name",
            ),
            (None, Some(_)) => self.missing(
                "service_account",
                "username",
                USERNAME_VARIABLE,
                " with the password",
            ),
        }
    }

    fn required(
        &self,
        table: &str,
        key: &str,
        variable: &str,
        from_file: FileValue<String>,
    ) -> Option<String> {
        let value = self
            .env
            .get(variable)
            .map(str::to_owned)
            .or(from_file.value);
        if value.is_none() && !from_file.is_present {
            let assumed = self.env.assumed(variable).map(str::to_owned);
            return assumed.or_else(|| self.missing(table, key, variable, ""));
        }
        value
    }

    fn missing<T>(&self, table: &str, key: &str, variable: &str, why: &str) -> Option<T> {
        let detail =
            format!("identity.{table}.{key} is required{why}: set it, or the variable {variable}");
        self.root.fail("missing_field", detail);
        None
    }

    /// Returns the values of `iss` that Cognito writes, the original and the updated one
    /// (`IssuerConfigurationType` in its API reference), or that of the endpoint.
    fn issuers(&self, pool_id: &str) -> Vec<String> {
        if let Some(endpoint) = self.endpoint {
            let endpoint = endpoint.as_str().trim_end_matches('/');
            return vec![format!("{endpoint}/{pool_id}")];
        }
        let domain = partition_domain(self.region);
        let form = |host| format!("https://{host}.{}.{domain}/{pool_id}", self.region);
        ["cognito-idp", "issuer-cognito-idp"].map(form).into()
    }

    fn jwks_url(&self, table: &str, issuer: &str) -> Option<Url> {
        let url = jwks_url(issuer);
        if url.is_none() {
            let detail = format!(
                "identity.{table}: the region and the pool id do not form a URL: `{issuer}`"
            );
            self.root.fail("invalid_format", detail);
        }
        url
    }
}
