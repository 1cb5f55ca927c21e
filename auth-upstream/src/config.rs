//! The configuration: `conf/auth.toml` and environment variables.
//!
//! Enters: the decoded file and the environment. Leaves: a [`Config`], or all errors at once.
//! Depends on `crypto` for keys and on the settings types of `pool` and `protection`.

mod social;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use postern_core::Secret;
use postern_core::config::{AdminListener, Env, read_admin, read_listen};
use postern_core::decode::{Field, Object};
use postern_core::identity::{IdentityConfig, SOCIAL_PROOF_KEY, SocialProofKey};
use postern_service::http::TrustedProxies;
use postern_service::log::Log;
use postern_service::trace::TracingConfig;
use postern_store::database::{DEFAULT_CONNECTIONS, DatabaseOptions};
use url::Url;

pub use self::social::{
    ClientAuthentication, SocialConfig, SocialProviderConfig, SocialProviderSettings, TokenDelivery,
};
use crate::crypto::{KeyRing, SealingKey};
use crate::pool::client::AwsCredentials;
use crate::protection::AttemptLimits;

/// The settings of the authentication upstream.
#[derive(Debug)]
pub struct Config {
    /// The address for requests of the gateway (`[[listen]]`). Default `127.0.0.1:8501`.
    pub listen: SocketAddr,
    /// The listener for `/livez`, `/readyz` and `/metrics`. Default `127.0.0.1:8510`.
    pub admin: AdminListener,
    /// Log format and filter. Default JSON at `info`.
    pub log: Log,
    /// Export of OpenTelemetry spans (`[tracing]`). Default none.
    pub tracing: Option<TracingConfig>,
    /// The database: `postgres://…` or `sqlite://…`. Default `sqlite://var/auth.db`.
    /// `AUTH_DATABASE` has precedence over the file.
    pub database: String,
    /// Maximum PostgreSQL connections. Default 10.
    pub(crate) database_connections: u32,
    /// The shared cache: `redis://…`, `rediss://…`, a Cluster or Sentinel URL, or `memory:` for a
    /// single process. Default `memory:`. `AUTH_CACHE` has precedence over the file.
    pub cache: String,
    /// The base URL of the actor service, which stores profiles. Default `http://127.0.0.1:8504`.
    pub actor_service: Url,
    /// The base URL of the notification service, which delivers codes and notices. Default
    /// `http://127.0.0.1:8502`.
    pub notification_service: Url,
    /// Whether this service makes the codes for confirmation and reset (`codes`), which needs AWS
    /// credentials. Default yes with them.
    pub own_codes: bool,
    /// Whether the owner of an account is told of a reset, a sign-in from a new network and a new
    /// social link. Default yes.
    pub notices: bool,
    /// The identity pools.
    pub identity: IdentityConfig,
    /// Credentials for administrative calls to the actor pool: `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, or `aws_credentials = "chain"` for the
    /// default provider chain of AWS. Without credentials, features that need them are disabled.
    pub aws: Option<AwsCredentials>,
    /// The confirmation of addresses at registration. Default [`ConfirmationMode::Admin`] with AWS
    /// credentials, else [`ConfirmationMode::Pool`].
    pub confirmation: ConfirmationMode,
    /// Keys that seal refresh tokens and challenge sessions: `AUTH_SEALING_KEY`, newest first,
    /// separated by commas. Without it, a key is generated at the first start and stored in the
    /// database.
    pub(crate) sealing_keys: Option<KeyRing>,
    /// The key of the proofs with which social users are signed in, shared with the pool's triggers:
    /// `SOCIAL_PROOF_KEY`. Without it, an exchange returns the user without tokens.
    pub(crate) social_proof_key: Option<SocialProofKey>,
    /// Attempt limits (`[abuse]`).
    pub attempt_limits: AttemptLimits,
    /// The time for which audit events are stored (`[audit] retention`). Default 90 days.
    pub audit_retention: Duration,
    /// The proxies whose `X-Forwarded-For` is accepted. Default loopback addresses. Required if
    /// `listen` is not a loopback address.
    pub trusted_proxies: TrustedProxies,
    /// Timeout of one call to the actor pool: 8 s. Not a key of the file.
    pub(crate) pool_deadline: Duration,
    /// Social sign-in; `None` if there is no provider.
    pub social: Option<SocialConfig>,
}

/// The confirmation of addresses at registration (`confirm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmationMode {
    /// This service confirms the user with AdminConfirmSignUp. The address is not verified.
    Admin,
    /// The pool confirms users, with a PreSignUp trigger.
    Pool,
    /// The user confirms with a code that is sent to the address.
    Code,
}

const DEFAULT_LISTEN_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8501));
const DEFAULT_ADMIN_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8510));

// === impl Config ===

impl Config {
    /// Returns the options of the database.
    pub(crate) fn database_options(&self) -> DatabaseOptions {
        DatabaseOptions {
            max_connections: self.database_connections,
            // Less than the time of the callers, so that the pool knows which statement is late.
            statement_timeout: Duration::from_millis(1800),
            ..DatabaseOptions::new("postern-auth")
        }
    }

    /// Reads the configuration from the root table of `conf/auth.toml` and the environment.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let log = Log::read(root, env);
        let aws = read_aws(root, env);
        let confirmation = read_confirmation(root, aws.is_some());
        let social = SocialConfig::read(root, env);
        let store_url = |name, variable, default: &str| {
            let written = root.optional(name, url_text);
            let set = env.optional_secret(root, variable).flatten();
            set.map(|url| url.expose().to_owned())
                .or(written)
                .unwrap_or_else(|| default.to_owned())
        };
        let database = store_url("database", "AUTH_DATABASE", "sqlite://var/auth.db");
        let database_connections = root.or("database_connections", DEFAULT_CONNECTIONS, |field| {
            field.integer(3..=1000)
        });
        let cache = store_url("cache", "AUTH_CACHE", "memory:");
        let actor_service = root.or("actor_service", local_url(8504), |field| field.url());
        let notification_service =
            root.or("notification_service", local_url(8502), |field| field.url());
        let own_codes = read_own_codes(root, aws.is_some());
        let sealing_keys = read_sealing_keys(root, env);
        let identity = IdentityConfig::read(root, env);
        if identity
            .as_ref()
            .is_some_and(|identity| identity.service_account.is_none())
        {
            let detail = "IDP_SERVICE_ACCOUNT_USERNAME and IDP_SERVICE_ACCOUNT_PASSWORD are required to save profiles";
            root.fail("missing_field", detail);
        }
        let listen = read_listen(root, DEFAULT_LISTEN_ADDRESS);
        let admin = read_admin(root, Some(DEFAULT_ADMIN_ADDRESS), env);
        Some(Self {
            listen,
            admin: admin?,
            log,
            tracing: TracingConfig::read_optional(root, env),
            database,
            database_connections,
            cache,
            actor_service,
            notification_service,
            own_codes,
            notices: root.or("notices", true, |field| field.boolean()),
            attempt_limits: root
                .section("abuse", read_attempt_limits)
                .unwrap_or_default(),
            audit_retention: root
                .section("audit", |audit| {
                    Some(audit.or("retention", DEFAULT_AUDIT_RETENTION, read_audit_retention))
                })
                .unwrap_or(DEFAULT_AUDIT_RETENTION),
            trusted_proxies: TrustedProxies::read(root, listen),
            pool_deadline: POOL_DEADLINE,
            identity: identity?,
            aws,
            confirmation,
            sealing_keys,
            social_proof_key: read_social_proof_key(root, env),
            social: social?,
        })
    }
}

fn local_url(port: u16) -> Url {
    Url::parse(&format!("http://127.0.0.1:{port}")).expect("an address and a port are a URL")
}

/// Timeout of a call to the pool. All calls of a registration must end before the lock of its address
/// expires. A pool that hangs is detected earlier.
const POOL_DEADLINE: Duration = Duration::from_secs(8);

/// Default time for which audit events are stored.
const DEFAULT_AUDIT_RETENTION: Duration = Duration::from_secs(90 * 86_400);

fn read_audit_retention(field: Field<'_>) -> Option<Duration> {
    let retention = field.duration()?;
    if !(Duration::from_secs(3600)..=Duration::from_secs(3650 * 86_400)).contains(&retention) {
        return field.fail("out_of_range", "must be 1h to 3650d");
    }
    Some(retention)
}

fn url_text(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=2048)?;
    if text.contains(':') {
        Some(text)
    } else {
        field.fail("invalid_format", "must be a URL")
    }
}

fn read_attempt_limits(table: &Object<'_>) -> Option<AttemptLimits> {
    let default = AttemptLimits::default();
    let count =
        |name, default| table.or(name, default, |field| field.integer(1..=1_000_000_000_u64));
    Some(AttemptLimits {
        per_account: count("account", default.per_account),
        per_address: count("address", default.per_address),
        per_network: count("network", default.per_network),
        total_per_minute: count("all", default.total_per_minute),
        window: default.window,
        sign_ins: count("sign_ins", default.sign_ins),
    })
}

fn read_aws(root: &Object<'_>, env: &Env) -> Option<AwsCredentials> {
    let choices = [("environment", false), ("chain", true)];
    let uses_chain = root.or("aws_credentials", false, |field| {
        match field.one_of(&choices)? {
            true if !cfg!(feature = "aws-credential-chain") => field.fail(
                "invalid_choice",
                "this program is built without the feature aws-credential-chain; use postern-auth",
            ),
            uses_chain => Some(uses_chain),
        }
    });
    #[cfg(feature = "aws-credential-chain")]
    if uses_chain {
        return Some(AwsCredentials::DefaultChain);
    }
    if uses_chain {
        return None;
    }
    let id = env.get("AWS_ACCESS_KEY_ID");
    let secret = env.optional_secret(root, "AWS_SECRET_ACCESS_KEY")?;
    if id.is_some() != secret.is_some() {
        root.fail(
            "missing_field",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set together",
        );
    }
    Some(AwsCredentials::Static {
        access_key_id: id?.to_owned(),
        secret_access_key: secret?,
        session_token: env.optional_secret(root, "AWS_SESSION_TOKEN")?,
    })
}

fn read_confirmation(root: &Object<'_>, has_credentials: bool) -> ConfirmationMode {
    use ConfirmationMode::{Admin, Code, Pool};
    let default = if has_credentials { Admin } else { Pool };
    let choices = [("admin", Admin), ("pool", Pool), ("code", Code)];
    let is_possible = |choice| has_credentials || choice != Admin;
    read_choice(root, "confirm", default, &choices, is_possible)
}

fn read_own_codes(root: &Object<'_>, has_credentials: bool) -> bool {
    let is_possible = |is_own: bool| has_credentials || !is_own;
    let choices = [("own", true), ("pool", false)];
    read_choice(root, "codes", has_credentials, &choices, is_possible)
}

/// Reads a choice, some of which need credentials.
fn read_choice<T: Copy>(
    root: &Object<'_>,
    name: &'static str,
    default: T,
    choices: &[(&'static str, T)],
    is_possible: impl Fn(T) -> bool,
) -> T {
    root.or(name, default, |field| match field.one_of(choices)? {
        choice if is_possible(choice) => Some(choice),
        _ => field.reject("missing_credentials", CREDENTIALS_REQUIRED),
    })
}

const CREDENTIALS_REQUIRED: &str = "needs AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or aws_credentials = \"chain\"";

fn read_sealing_keys(root: &Object<'_>, env: &Env) -> Option<KeyRing> {
    let keys = env.optional_secret(root, "AUTH_SEALING_KEY")??;
    read_key_ring(root, "AUTH_SEALING_KEY", &keys)
}

fn read_social_proof_key(root: &Object<'_>, env: &Env) -> Option<SocialProofKey> {
    let key = env.optional_secret(root, SOCIAL_PROOF_KEY)??;
    let key = SocialProofKey::parse(key.expose());
    let fail = |error| root.fail("invalid_key", format!("{SOCIAL_PROOF_KEY} {error}"));
    key.map_err(fail).ok()
}

/// Reads keys in Base64, newest first, separated by commas.
fn read_key_ring(root: &Object<'_>, variable: &str, secret: &Secret) -> Option<KeyRing> {
    let mut keys = Vec::new();
    for part in secret.expose().split(',') {
        match SealingKey::parse(part) {
            Ok(key) => keys.push(key),
            Err(error) => root.fail("invalid_key", format!("{variable} {error}")),
        }
    }
    let mut keys = keys.into_iter();
    let newest = keys.next()?;
    Some(KeyRing::new(newest, keys.collect()))
}

#[cfg(test)]
mod tests;
