//! What an operator decides about the server. Whoever embeds it fills this in; there is no file of
//! its own.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::delivery::CodeDelivery;
use crate::hasher::Hashing;
use crate::pool::{ClientSettings, PoolSettings};

/// The configuration of the server. [`Config::new`] has the defaults; fields are then set one by
/// one.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where pools, users and keys are kept: `sqlite://…` or `postgres://…`.
    pub database: String,
    /// The folder of `identity-pool.json`, which holds the administrator's access key and the
    /// passwords of the service accounts. The file has mode 0600.
    pub data_dir: PathBuf,
    /// What clients reach the server at; a pool's issuer is this and the pool's id.
    pub issuer_base: Url,
    /// The region that pool ids and signatures name. Default `us-west-2`.
    pub region: String,
    /// The cost of password hashes, and how many are made at once.
    pub hashing: Hashing,
    /// How long a signing key signs. Default 90 days; the next key is published all that time
    /// before.
    pub key_period: Duration,
    /// How long clients may cache keys and discovery. Default 5 minutes.
    pub key_max_age: Duration,
    /// How one-time codes reach users. Default [`CodeDelivery::Log`].
    pub code_delivery: CodeDelivery,
    /// Names of the service accounts that the first start makes. Default `auth`, `notify`, `actor`,
    /// `document`.
    pub service_accounts: Vec<String>,
    /// The pool of users, as the first start makes it.
    pub actor_pool: PoolSettings,
    /// Its app client, as the first start makes it.
    pub actor_client: ClientSettings,
    /// The pool of service accounts, as the first start makes it.
    pub service_pool: PoolSettings,
    /// Its app client, as the first start makes it.
    pub service_client: ClientSettings,
}

/// The attribute that makes a user of the service pool a service.
pub(crate) const SERVICE_ID: &str = "custom:service_id";

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new(
        database: impl Into<String>,
        data_dir: impl Into<PathBuf>,
        issuer_base: Url,
    ) -> Self {
        Self {
            database: database.into(),
            data_dir: data_dir.into(),
            issuer_base,
            region: "us-west-2".to_owned(),
            hashing: Hashing::default(),
            key_period: Duration::from_secs(90 * 86_400),
            key_max_age: Duration::from_secs(300),
            code_delivery: CodeDelivery::Log,
            service_accounts: ["auth", "notify", "actor", "document"]
                .map(str::to_owned)
                .to_vec(),
            actor_pool: actor_pool(),
            actor_client: actor_client(),
            service_pool: service_pool(),
            service_client: service_client(),
        }
    }
}

/// Users sign in with their address; the service that registers them confirms them.
fn actor_pool() -> PoolSettings {
    PoolSettings {
        email_usernames: true,
        recover_unverified: true,
        ..PoolSettings::default()
    }
}

/// Refresh tokens rotate, with half a minute in which a lost answer can be asked for again.
fn actor_client() -> ClientSettings {
    ClientSettings {
        rotation_grace_s: Some(30),
        ..ClientSettings::default()
    }
    .with_flows(&["ALLOW_USER_PASSWORD_AUTH", "ALLOW_ADMIN_USER_PASSWORD_AUTH"])
}

/// Nobody signs up as a service.
fn service_pool() -> PoolSettings {
    PoolSettings {
        admin_create_only: true,
        custom_attributes: vec![SERVICE_ID.to_owned()],
        ..PoolSettings::default()
    }
}

/// The ID token shows which service it is, and no client can write that.
fn service_client() -> ClientSettings {
    ClientSettings {
        read_attributes: Some(vec![SERVICE_ID.to_owned()]),
        write_attributes: Some(vec!["name".to_owned()]),
        ..ClientSettings::default()
    }
    .with_flows(&["ALLOW_USER_PASSWORD_AUTH", "ALLOW_REFRESH_TOKEN_AUTH"])
}
