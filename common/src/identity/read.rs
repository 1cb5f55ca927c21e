//! File and environment become [`IdentityConfig`].

use std::path::Path;

use url::Url;

use super::{IdentityConfig, Pool, ServiceAccount, issuer};
use crate::Secret;
use crate::config::Env;
use crate::decode::{Field, Object};
use crate::token::Issuer;

/// What the file says; `stands` keeps a mistyped value from being told as missing, too.
#[derive(Default)]
struct Written<T> {
    value: Option<T>,
    stands: bool,
}

#[derive(Default)]
struct WrittenPool {
    pool_id: Written<String>,
    client_id: Written<String>,
    client_secret: Option<Secret>,
    issuer: Option<String>,
    jwks_url: Option<Url>,
}

#[derive(Default)]
struct WrittenIdentity {
    region: Option<String>,
    endpoint: Option<Url>,
    actor: WrittenPool,
    service: WrittenPool,
    issuers: Vec<Issuer>,
    username: Written<String>,
    password: Option<Secret>,
}

/// The names of one pool's settings.
struct Names {
    table: &'static str,
    pool_id: &'static str,
    client_id: &'static str,
    client_secret: &'static str,
}

const ACTOR: Names = Names {
    table: "actor",
    pool_id: "IDP_ACTOR_POOL_ID",
    client_id: "IDP_ACTOR_CLIENT_ID",
    client_secret: "IDP_ACTOR_CLIENT_SECRET",
};
const SERVICE: Names = Names {
    table: "service",
    pool_id: "IDP_SERVICE_POOL_ID",
    client_id: "IDP_SERVICE_CLIENT_ID",
    client_secret: "IDP_SERVICE_CLIENT_SECRET",
};
const USERNAME: &str = "IDP_SERVICE_ACCOUNT_USERNAME";
const PASSWORD: &str = "IDP_SERVICE_ACCOUNT_PASSWORD";
const ENDPOINT: &str = "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER";

// === impl IdentityConfig ===

impl IdentityConfig {
    /// Reads the table `[identity]` of `root` and the environment. `None` means that something is
    /// missing or wrong; every mistake is noted, each with its key and its variable.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let written = root
            .section("identity", |table| Some(read_table(table, env)))
            .unwrap_or_default();
        let region = env
            .get("CLOUD_REGION")
            .map(str::to_owned)
            .or(written.region)
            .unwrap_or("us-west-2".to_owned());
        let endpoint = match env.get(ENDPOINT) {
            // Noted where it is wrong; what else is wrong is told with it.
            Some(text) => endpoint_of_environment(root, text),
            None => written.endpoint,
        };
        let place = Place {
            root,
            env,
            region: &region,
            endpoint: endpoint.as_ref(),
        };
        let actor = place.pool(&ACTOR, written.actor);
        let service = place.pool(&SERVICE, written.service);
        let account = place.account(written.username, written.password);
        let (actor, service, service_account) = (actor?, service?, account?);
        if actor.issuer == service.issuer {
            root.fail(
                "same_pool",
                "identity.actor and identity.service are the same pool; a token's kind is decided by its pool",
            );
            return None;
        }
        let issuers = written.issuers;
        let config = Self {
            region,
            endpoint,
            actor,
            service,
            issuers,
            service_account,
        };
        issuer::check(root, &config).then_some(config)
    }
}

fn endpoint_of_environment(root: &Object<'_>, text: &str) -> Option<Url> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.is_none() {
        root.fail(
            "invalid_format",
            format!("{ENDPOINT} must be an absolute http or https URL"),
        );
    }
    url
}

fn read_table(table: &Object<'_>, env: &Env) -> WrittenIdentity {
    let pool = |names: &'static Names| {
        table
            .section(names.table, |pool| Some(read_pool(pool, names, env)))
            .unwrap_or_default()
    };
    let (actor, service) = (pool(&ACTOR), pool(&SERVICE));
    let account = table.section("service_account", |account| {
        let password = secret_file(account, "password", "password_file", PASSWORD, env);
        Some((written(account, "username"), password))
    });
    let (username, password) = account.unwrap_or_default();
    WrittenIdentity {
        region: table.optional("region", text),
        endpoint: table.optional("endpoint", |field| field.url()),
        actor,
        service,
        issuers: table.list("issuer", issuer::read),
        username,
        password,
    }
}

fn read_pool(table: &Object<'_>, names: &Names, env: &Env) -> WrittenPool {
    WrittenPool {
        pool_id: written(table, "pool_id"),
        client_id: written(table, "client_id"),
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

/// Compared with `iss` byte for byte. The keys are looked for below it unless they stand elsewhere.
fn issuer(field: Field<'_>, keys_are_elsewhere: bool) -> Option<String> {
    let issuer = text(field)?;
    if keys_are_elsewhere || jwks_url(&issuer).is_some() {
        return Some(issuer);
    }
    field.reject(
        "invalid_format",
        "must be an absolute http or https URL, or `jwks_url` must be set, too",
    )
}

/// Where a pool publishes its keys (OpenID Connect Discovery names the same place for Cognito).
fn jwks_url(issuer: &str) -> Option<Url> {
    let url = Url::parse(&format!("{issuer}/.well-known/jwks.json")).ok()?;
    matches!(url.scheme(), "http" | "https").then_some(url)
}

fn written(table: &Object<'_>, name: &'static str) -> Written<String> {
    Written {
        value: table.optional(name, text),
        stands: table.has(name),
    }
}

/// A secret in a file of its own. The variable wins, and then the file is not even opened.
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
        match std::fs::read_to_string(Path::new(&path)) {
            Ok(text) if !text.trim().is_empty() => {
                Some(Secret::from(text.trim_end_matches(['\r', '\n'])))
            }
            Ok(_) => field.reject("empty_file", format!("{path} is empty")),
            Err(error) => field.reject("unreadable_file", format!("cannot read {path}: {error}")),
        }
    })
}

/// Where settings come together.
struct Place<'a> {
    root: &'a Object<'a>,
    env: &'a Env,
    region: &'a str,
    endpoint: Option<&'a Url>,
}

// === impl Place ===

impl Place<'_> {
    fn pool(&self, names: &Names, written: WrittenPool) -> Option<Pool> {
        let pool_id = self.required(names.table, "pool_id", names.pool_id, written.pool_id);
        let client_id = self.required(names.table, "client_id", names.client_id, written.client_id);
        let (pool_id, client_id) = (pool_id?, client_id?);
        let issuer = written.issuer.unwrap_or_else(|| self.issuer(&pool_id));
        let jwks_url = match written.jwks_url {
            Some(url) => url,
            None => self.jwks_url(names.table, &issuer)?,
        };
        let client_secret = self
            .env
            .secret(names.client_secret)
            .or(written.client_secret);
        Some(Pool {
            pool_id,
            client_id,
            client_secret,
            issuer,
            jwks_url,
        })
    }

    /// `Some(None)`: no account is set, which is fine; `None`: half of one is.
    fn account(
        &self,
        username: Written<String>,
        password: Option<Secret>,
    ) -> Option<Option<ServiceAccount>> {
        let username = self.env.get(USERNAME).map(str::to_owned).or(username.value);
        let password = self.env.secret(PASSWORD).or(password);
        match (username, password) {
            (None, None) => Some(None),
            (Some(username), Some(password)) => Some(Some(ServiceAccount { username, password })),
            (Some(_), None) => self.missing(
                "service_account",
                "password_file",
                PASSWORD,
                " to go with the user name",
            ),
            (None, Some(_)) => self.missing(
                "service_account",
                "username",
                USERNAME,
                " to go with the password",
            ),
        }
    }

    fn required(
        &self,
        table: &str,
        key: &str,
        variable: &str,
        written: Written<String>,
    ) -> Option<String> {
        let value = self.env.get(variable).map(str::to_owned).or(written.value);
        if value.is_none() && !written.stands {
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

    /// The `iss` that Cognito writes ("Verifying JSON web tokens" in its developer guide).
    fn issuer(&self, pool_id: &str) -> String {
        if let Some(endpoint) = self.endpoint {
            return format!("{}/{pool_id}", endpoint.as_str().trim_end_matches('/'));
        }
        let domain = if self.region.starts_with("cn-") {
            "amazonaws.com.cn"
        } else {
            "amazonaws.com"
        };
        format!("https://cognito-idp.{}.{domain}/{pool_id}", self.region)
    }

    fn jwks_url(&self, table: &str, issuer: &str) -> Option<Url> {
        let url = jwks_url(issuer);
        if url.is_none() {
            let detail =
                format!("identity.{table}: the region and the pool make no URL: `{issuer}`");
            self.root.fail("invalid_format", detail);
        }
        url
    }
}
