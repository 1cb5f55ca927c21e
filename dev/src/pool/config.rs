//! Configuration of the server. The embedding process fills it in; there is no configuration file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postern_core::identity::SocialProofKey;
use url::Url;

use crate::pool::model::{ClientSettings, PoolSettings};

/// The configuration of the server. [`Config::new`] returns the defaults; the fields are public.
#[derive(Clone, Debug)]
pub struct Config {
    /// Database URL: `sqlite://…`.
    pub database: String,
    /// Folder of `identity-pool.json` (mode 0600), which holds the administrator's access key and
    /// the passwords of the service accounts.
    pub data_dir: PathBuf,
    /// Base URL under which clients reach the server. A pool's issuer is this URL and the pool's
    /// id.
    pub issuer_base: Url,
    /// The key of CUSTOM_AUTH. Default none: the pool has no CUSTOM_AUTH.
    pub social_proof_key: Option<Arc<SocialProofKey>>,
    /// Lifetime of the access tokens of users. Default 1 h. Applies at every start.
    pub access_token_lifetime: Duration,
}

/// Region in pool ids and signatures.
pub(crate) const REGION: &str = "us-west-2";

/// Names of the service accounts.
pub(crate) const SERVICE_ACCOUNTS: [&str; 4] = ["auth", "notify", "actor", "document"];

/// Groups of the pool of users.
pub(crate) const ACTOR_GROUPS: [&str; 3] = ["admin", "recruiters", "support"];

/// Attribute that identifies a user of the service pool as a service.
pub(crate) const SERVICE_ID_ATTRIBUTE: &str = "custom:service_id";

impl Config {
    /// Returns the default configuration.
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
            social_proof_key: None,
            access_token_lifetime: Duration::from_secs(3600),
        }
    }
}

/// Users sign in with their e-mail address. The authentication service confirms them.
pub(crate) fn actor_pool() -> PoolSettings {
    PoolSettings {
        email_usernames: true,
        ..PoolSettings::default()
    }
}

/// Refresh tokens rotate, with a grace period of 30 seconds in which a lost response can be
/// requested again.
pub(crate) fn actor_client() -> ClientSettings {
    ClientSettings {
        rotation_grace_s: Some(30),
        ..ClientSettings::default()
    }
    .with_flows(&["ALLOW_USER_PASSWORD_AUTH", "ALLOW_CUSTOM_AUTH"])
}

/// Service accounts are created by an administrator only.
pub(crate) fn service_pool() -> PoolSettings {
    PoolSettings {
        admin_create_only: true,
        custom_attributes: vec![SERVICE_ID_ATTRIBUTE.to_owned()],
        ..PoolSettings::default()
    }
}

/// The ID token shows the service id, which no client can write.
pub(crate) fn service_client() -> ClientSettings {
    ClientSettings {
        read_attributes: Some(vec![SERVICE_ID_ATTRIBUTE.to_owned()]),
        write_attributes: Some(vec!["name".to_owned()]),
        ..ClientSettings::default()
    }
    .with_flows(&["ALLOW_USER_PASSWORD_AUTH", "ALLOW_REFRESH_TOKEN_AUTH"])
}
