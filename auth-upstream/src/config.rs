//! The configuration: `conf/auth.toml` and environment variables.

mod social;

use std::net::SocketAddr;
use std::time::Duration;

use aws_sdk_cognitoidentityprovider::config::Credentials;
use postern_core::Secret;
use postern_core::config::{AdminListener, Env, read_admin, read_listen};
use postern_core::decode::{Field, Object};
use postern_core::identity::{IdentityConfig, SOCIAL_PROOF_KEY, SocialProofKey};
use postern_core::settings;
use postern_service::http::TrustedProxies;
use postern_service::log::Log;
use postern_service::trace::TracingConfig;
use postern_store::database::DatabaseOptions;
use url::Url;

pub use self::social::{
    ClientAuthentication, SocialConfig, SocialProviderConfig, SocialProviderSettings, TokenDelivery,
};
use crate::crypto::{KeyRing, SealingKey};
use crate::pool::client::AwsCredentials;
use crate::protection::AttemptLimits;

settings! {
    /// The settings of the authentication upstream.
    #[derive(Debug)]
    pub struct Config(root, env: &Env) {
        /// The address for requests of the gateway (`[[listen]]`).
        pub listen: SocketAddr = (Some(read_listen(root, "127.0.0.1:8501"))),
        /// The admin listener.
        pub admin: AdminListener = (read_admin(root, Some("127.0.0.1:8510"), env)),
        /// Log format and filter.
        pub log: Log = (Some(Log::read_section(root, env))),
        /// Export of OpenTelemetry spans.
        pub tracing: Option<TracingConfig> = (Some(TracingConfig::read_optional(root, env))),
        /// The identity pools. The service account is required.
        pub identity: IdentityConfig = (read_identity(root, env)),
        /// `postgres://…` or `sqlite://…`; variable `AUTH_DATABASE`.
        pub database: String = "sqlite://var/auth.db"
            => |field| Some(env.secret_or(root, "AUTH_DATABASE", url_text(field)?)),
        /// PostgreSQL connections of the process.
        pub(crate) database_connections: u32 = 10 => |field| field.integer(3..=1000),
        /// `redis://…`, `rediss://…`, a Cluster or Sentinel URL, or `memory:` for one process;
        /// variable `AUTH_CACHE`.
        pub cache: String = "memory:"
            => |field| Some(env.secret_or(root, "AUTH_CACHE", url_text(field)?)),
        /// Service that stores the profiles.
        pub actor_service: Url = "http://127.0.0.1:8504" => |field| field.url(),
        /// Service that delivers codes and notices.
        pub notification_service: Url = "http://127.0.0.1:8502" => |field| field.url(),
        /// Credentials for administrative calls to the actor pool.
        ///
        /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, or
        /// `aws_credentials = "chain"` for the default provider chain of AWS. Without credentials,
        /// features that need them are disabled.
        pub aws: Option<AwsCredentials> = (Some(read_aws(root, env))),
        /// Who makes and sends the codes for confirmation and reset: this service, which needs AWS
        /// credentials, or the pool.
        pub own_codes as codes: bool = { Some(aws.as_ref()?.is_some()) }
            ("`own` with AWS credentials, else `pool`")
            => |field| read_choice(field, &[("own", true), ("pool", false)], aws.as_ref()?, true),
        /// Mails about a reset, a sign-in from a new network, a new social link.
        pub notices: bool = true => |field| field.boolean(),
        /// How a new user is confirmed: by the service, the pool, or a code.
        pub confirmation as confirm: ConfirmationMode = { default_confirmation(aws.as_ref()?) }
            ("`admin` with AWS credentials, else `pool`")
            => |field| read_choice(field, &CONFIRMATIONS, aws.as_ref()?, ConfirmationMode::Admin),
        /// The proxies whose `X-Forwarded-For` is accepted.
        pub trusted_proxies: TrustedProxies = (Some(TrustedProxies::read(root, listen?))),
        /// Keys that seal refresh tokens and challenge sessions: `AUTH_SEALING_KEY`, newest first,
        /// separated by commas. Without it, a key is generated at the first start and stored in the
        /// database.
        pub(crate) sealing_keys: Option<KeyRing> = (Some(read_sealing_keys(root, env))),
        /// The key of the proofs with which social users are signed in, shared with the pool's
        /// triggers: `SOCIAL_PROOF_KEY`. Without it, an exchange returns the user without tokens.
        pub(crate) social_proof_key: Option<SocialProofKey> =
            (Some(read_social_proof_key(root, env))),
        /// Limits on failed attempts.
        pub attempt_limits as abuse: AttemptLimits = {} => |field| field.object(AttemptLimits::read),
        pub(crate) audit: AuditConfig = {} => |field| field.object(AuditConfig::read),
        /// Social sign-in; off without `SOCIAL_OAUTH2_CLIENT_ID` and `social.provider`.
        pub social: Option<SocialConfig> = {}
            => |field| field.object(|table| SocialConfig::read(root, table, env)),
        /// Timeout of one call to the actor pool: 8 s. Not a key of the file.
        pub(crate) pool_deadline: Duration = (Some(POOL_DEADLINE)),
    }
}

settings! {
    /// Stored audit events.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct AuditConfig(table) {
        /// Time for which they are stored.
        pub(crate) retention: Duration = "90d" => read_audit_retention,
    }
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

const CONFIRMATIONS: [(&str, ConfirmationMode); 3] = [
    ("admin", ConfirmationMode::Admin),
    ("pool", ConfirmationMode::Pool),
    ("code", ConfirmationMode::Code),
];

// === impl Config ===

impl Config {
    pub(crate) fn database_options(&self) -> DatabaseOptions {
        DatabaseOptions {
            max_connections: self.database_connections,
            // Less than the time of the callers, so that the pool knows which statement is late.
            statement_timeout: Duration::from_millis(1800),
            ..DatabaseOptions::new("postern-auth")
        }
    }
}

fn read_identity(root: &Object<'_>, env: &Env) -> Option<IdentityConfig> {
    let identity = IdentityConfig::read(root, env)?;
    if identity.service_account.is_none() {
        let detail = "IDP_SERVICE_ACCOUNT_USERNAME and IDP_SERVICE_ACCOUNT_PASSWORD are required to save profiles";
        root.fail("missing_field", detail);
    }
    Some(identity)
}

/// Timeout of a call to the pool. All calls of a registration must end before the lock of its address
/// expires. A pool that hangs is detected earlier.
const POOL_DEADLINE: Duration = Duration::from_secs(8);

fn read_audit_retention(field: Field<'_>) -> Option<Duration> {
    let retention = field.typed("duration, `1h` to `3650d`").duration()?;
    if !(Duration::from_secs(3600)..=Duration::from_secs(3650 * 86_400)).contains(&retention) {
        return field.fail("out_of_range", "must be 1h to 3650d");
    }
    Some(retention)
}

fn url_text(field: Field<'_>) -> Option<String> {
    let text = field.typed("URL").text(1..=2048)?;
    if text.contains(':') {
        Some(text)
    } else {
        field.fail("invalid_format", "must be a URL")
    }
}

settings! {
    fn uses_credential_chain(root) -> bool {
        /// Variables, or Amazon's default chain, which `postern` lacks.
        aws_credentials = "environment" => |field| {
            match field.one_of(&[("environment", false), ("chain", true)])? {
                true if !cfg!(feature = "aws-credential-chain") => field.fail(
                    "invalid_choice",
                    "this program is built without the feature aws-credential-chain; use postern-auth",
                ),
                uses_chain => Some(uses_chain),
            }
        },
    } => aws_credentials
}

fn read_aws(root: &Object<'_>, env: &Env) -> Option<AwsCredentials> {
    let uses_chain = uses_credential_chain(root)?;
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
    let token = env.optional_secret(root, "AWS_SESSION_TOKEN")?;
    let (token, secret) = (token.map(|token| token.expose().to_owned()), secret?);
    let keys = Credentials::new(id?, secret.expose(), token, None, "postern");
    Some(AwsCredentials::Static(keys))
}

fn default_confirmation(aws: &Option<AwsCredentials>) -> Option<ConfirmationMode> {
    match aws {
        Some(_) => Some(ConfirmationMode::Admin),
        None => Some(ConfirmationMode::Pool),
    }
}

/// Reads a choice, one of which needs credentials.
fn read_choice<T: Copy + PartialEq>(
    field: Field<'_>,
    choices: &[(&str, T)],
    aws: &Option<AwsCredentials>,
    needs_credentials: T,
) -> Option<T> {
    let choice = field.one_of(choices)?;
    if aws.is_none() && choice == needs_credentials {
        return field.reject("missing_credentials", CREDENTIALS_REQUIRED);
    }
    Some(choice)
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
