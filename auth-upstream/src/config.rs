//! What the authentication upstream reads from `conf/auth.toml` and the environment.

mod social;

use std::net::SocketAddr;
use std::time::Duration;

use postern_common::config::Env;
use postern_common::decode::{Field, Object};
use postern_common::http::TrustedProxies;
use postern_common::identity::{AwsCredentials, IdentityConfig};
use postern_common::log::Log;
use url::Url;

pub use self::social::{Delivery, SocialConfig};
use crate::abuse::AbuseLimits;
use crate::pool::Flow;
use crate::seal::{Key, KeyRing};

/// The settings of one authentication upstream.
#[derive(Debug)]
pub struct Config {
    /// Where clients' requests arrive. Default `127.0.0.1:8501`: the gateway is in front.
    pub listen: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are. Default `127.0.0.1:8510`.
    pub admin: SocketAddr,
    /// `admin_hosts`: names by which operators may call it, besides loopback names and, where it
    /// does not listen on a loopback address, IP addresses; default none. Any other `Host` is
    /// refused.
    pub admin_hosts: Vec<String>,
    /// Log lines. Default JSON at `info`.
    pub log: Log,
    /// `postgres://…` or `sqlite://…`. Default `sqlite://var/auth.db`. `AUTH_DATABASE` wins over
    /// the file.
    pub database: String,
    /// `redis://…`, `rediss://…`, a Cluster or Sentinel URL, or `memory:` for a single process.
    /// Default `memory:`. `AUTH_CACHE` wins over the file.
    pub cache: String,
    /// Base URL of the actor service, which keeps the profiles. Default `http://127.0.0.1:8504`.
    pub actor_service: Url,
    /// The identity pools.
    pub identity: IdentityConfig,
    /// What signs administrative calls to the actor pool: `AWS_ACCESS_KEY_ID` and
    /// `AWS_SECRET_ACCESS_KEY` (`AWS_SESSION_TOKEN`), or `aws_credentials = "chain"` for Amazon's
    /// usual order. None: what needs them is off.
    pub aws: Option<AwsCredentials>,
    /// How an address is confirmed at registration. Default [`Confirm::Admin`] where credentials
    /// are there, else [`Confirm::Pool`].
    pub confirm: Confirm,
    /// Which sign-in flow the pool's client allows. Default `user_password`.
    pub(crate) flow: Flow,
    /// What becomes of refresh tokens.
    pub refresh: Refresh,
    /// Seals refresh tokens and challenge sessions: `AUTH_SEALING_KEY`, the newest first, older
    /// ones behind commas. None: one is made at the first start and kept in the database.
    pub(crate) sealing: Option<KeyRing>,
    /// Limits on guessing.
    pub abuse: AbuseLimits,
    /// Whose `X-Forwarded-For` is believed. Default the machine's own addresses: a gateway beside
    /// us. Required where `listen` is no loopback address.
    pub trusted_proxies: TrustedProxies,
    /// How long one call to the actor pool may take: one that is busy, for one that hangs is found
    /// out sooner. Default 8 s.
    pub pool_deadline: Duration,
    /// Social sign-in; none where `SOCIAL_OAUTH2_CLIENT_ID` is not set.
    pub social: Option<SocialConfig>,
}

/// How an address is confirmed at registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// We confirm the user with AdminConfirmSignUp. The address is not proven.
    Admin,
    /// The pool confirms users by itself (a PreSignUp trigger).
    Pool,
    /// The person confirms with a code that the pool sends to the address.
    Code,
}

/// What becomes of refresh tokens.
#[derive(Clone, Copy, Debug)]
pub struct Refresh {
    /// How long a used token still gets the same new tokens, for clients that lost the answer.
    /// Default 30 s.
    pub grace: Duration,
    /// How long a family of tokens is remembered after its last use; the pool's refresh token
    /// validity. Default 30 days, which is Cognito's default.
    pub lifetime: Duration,
    /// How many refreshes a family of tokens has in ten minutes. Default 60.
    pub quota: u32,
}

// === impl Config ===

impl Config {
    /// Reads the root of `conf/auth.toml`.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let log = Log::read(root);
        let aws = read_aws(root, env);
        let confirm = read_confirm(root, aws.is_some());
        let flow = read_flow(root, aws.is_some());
        let social = SocialConfig::read(root, env);
        let place = |name, variable, default: &str| {
            let written = root.optional(name, url_text);
            env.get(variable)
                .map(str::to_owned)
                .or(written)
                .unwrap_or_else(|| default.to_owned())
        };
        let database = place("database", "AUTH_DATABASE", "sqlite://var/auth.db");
        let cache = place("cache", "AUTH_CACHE", "memory:");
        let actor_service = root.optional("actor_service", |field| field.url());
        let sealing = read_sealing(root, env);
        let identity = IdentityConfig::read(root, env);
        if identity
            .as_ref()
            .is_some_and(|identity| identity.service_account.is_none())
        {
            let set = "set it, or the variables IDP_SERVICE_ACCOUNT_USERNAME and IDP_SERVICE_ACCOUNT_PASSWORD";
            let detail =
                format!("identity.service_account is required, for it saves the profiles: {set}");
            root.fail("missing_field", detail);
        }
        let listen = root.or(
            "listen",
            SocketAddr::from(([127, 0, 0, 1], 8501)),
            |field| field.socket_addr(),
        );
        Some(Self {
            listen,
            admin: root.or("admin", SocketAddr::from(([127, 0, 0, 1], 8510)), |field| {
                field.socket_addr()
            }),
            admin_hosts: root.or("admin_hosts", Vec::new(), |field| {
                field.array(|item| item.text(1..=253))
            }),
            log,
            database,
            cache,
            actor_service: actor_service.unwrap_or_else(default_actor_service),
            refresh: root.section("refresh", read_refresh).unwrap_or_default(),
            abuse: root.section("abuse", read_abuse).unwrap_or_default(),
            trusted_proxies: TrustedProxies::read(root, listen),
            pool_deadline: root.or("pool_deadline", POOL_DEADLINE, read_pool_deadline),
            identity: identity?,
            aws,
            confirm,
            flow,
            sealing,
            social: social?,
        })
    }
}

fn default_actor_service() -> Url {
    Url::parse("http://127.0.0.1:8504").expect("a constant that is a URL")
}

/// The longest, too: the calls of a registration together are shorter than the lock of its address.
const POOL_DEADLINE: Duration = Duration::from_secs(8);

fn read_pool_deadline(field: Field<'_>) -> Option<Duration> {
    let wanted = field.duration()?;
    if wanted > POOL_DEADLINE {
        return field.fail(
            "out_of_range",
            "must be at most 8s: a registration makes several calls under one lock",
        );
    }
    Some(wanted)
}

fn url_text(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=2048)?;
    if text.contains(':') {
        Some(text)
    } else {
        field.fail("invalid_format", "must be a URL")
    }
}

fn read_refresh(table: &Object<'_>) -> Option<Refresh> {
    let default = Refresh::default();
    Some(Refresh {
        grace: table.or("grace", default.grace, |field| field.duration()),
        lifetime: table.or("lifetime", default.lifetime, |field| field.duration()),
        quota: table.or("quota", default.quota, |field| {
            field.integer(1..=1_000_000_u32)
        }),
    })
}

fn read_abuse(table: &Object<'_>) -> Option<AbuseLimits> {
    let default = AbuseLimits::default();
    let count =
        |name, default| table.or(name, default, |field| field.integer(1..=1_000_000_000_u64));
    Some(AbuseLimits {
        account: count("account", default.account),
        address: count("address", default.address),
        network: count("network", default.network),
        all: count("all", default.all),
        window: table.or("window", default.window, |field| field.duration()),
        sign_ins: count("sign_ins", default.sign_ins),
    })
}

fn read_aws(root: &Object<'_>, env: &Env) -> Option<AwsCredentials> {
    let choices = [("environment", false), ("chain", true)];
    if root.or("aws_credentials", false, |field| field.one_of(&choices)) {
        return Some(AwsCredentials::DefaultChain);
    }
    let (id, secret) = (
        env.get("AWS_ACCESS_KEY_ID"),
        env.secret("AWS_SECRET_ACCESS_KEY"),
    );
    if id.is_some() != secret.is_some() {
        root.fail(
            "missing_field",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set together",
        );
    }
    Some(AwsCredentials::Static {
        access_key_id: id?.to_owned(),
        secret_access_key: secret?,
        session_token: env.secret("AWS_SESSION_TOKEN"),
    })
}

fn read_confirm(root: &Object<'_>, has_credentials: bool) -> Confirm {
    let default = if has_credentials {
        Confirm::Admin
    } else {
        Confirm::Pool
    };
    let choices = [
        ("admin", Confirm::Admin),
        ("pool", Confirm::Pool),
        ("code", Confirm::Code),
    ];
    root.or("confirm", default, |field| {
        match field.one_of(&choices)? {
            Confirm::Admin if !has_credentials => {
                field.reject("missing_credentials", NEEDS_CREDENTIALS)
            }
            choice @ (Confirm::Admin | Confirm::Pool | Confirm::Code) => Some(choice),
        }
    })
}

fn read_flow(root: &Object<'_>, has_credentials: bool) -> Flow {
    let choices = [
        ("user_password", Flow::UserPassword),
        ("admin_user_password", Flow::AdminUserPassword),
    ];
    root.or("flow", Flow::UserPassword, |field| {
        match field.one_of(&choices)? {
            Flow::AdminUserPassword if !has_credentials => {
                field.reject("missing_credentials", NEEDS_CREDENTIALS)
            }
            choice @ (Flow::AdminUserPassword | Flow::UserPassword) => Some(choice),
        }
    })
}

const NEEDS_CREDENTIALS: &str = "needs AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or aws_credentials = \"chain\"";

fn read_sealing(root: &Object<'_>, env: &Env) -> Option<KeyRing> {
    read_ring(root, "AUTH_SEALING_KEY", env.get("AUTH_SEALING_KEY")?)
}

/// Keys in Base64 behind commas, the newest first.
fn read_ring(root: &Object<'_>, variable: &str, text: &str) -> Option<KeyRing> {
    let mut keys = Vec::new();
    for part in text.split(',') {
        match Key::parse(part) {
            Ok(key) => keys.push(key),
            Err(error) => root.fail("invalid_key", format!("{variable} {error}")),
        }
    }
    let mut keys = keys.into_iter();
    let first = keys.next()?;
    Some(KeyRing::new(first, keys.collect()))
}

// === defaults ===

impl Default for Refresh {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(30),
            lifetime: Duration::from_secs(30 * 86_400),
            quota: 60,
        }
    }
}

#[cfg(test)]
mod tests;
