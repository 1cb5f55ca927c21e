//! Configuration of the server. The embedding process fills it in; there is no configuration file.

use std::path::PathBuf;
use std::time::Duration;

use postern_core::identity::SocialProofKey;
use postern_store::database::Sqlite;
use url::Url;

/// The configuration of the server. [`Config::new`] returns the defaults; the fields are public.
#[derive(Debug)]
pub struct Config {
    /// The database of the development services.
    pub sqlite: Sqlite,
    /// Folder of `identity-pool.json` (mode 0600), which holds the administrator's access key and
    /// the passwords of the service accounts.
    pub data_dir: PathBuf,
    /// Base URL under which clients reach the server. A pool's issuer is this URL and the pool's
    /// id.
    pub issuer_base: Url,
    /// The key of CUSTOM_AUTH. Default none: the pool has no CUSTOM_AUTH.
    pub social_proof_key: Option<SocialProofKey>,
    /// Lifetime of the access tokens of users. Default 1 h. Applies at every start.
    pub access_token_lifetime: Duration,
}

impl Config {
    /// Returns the default configuration.
    #[must_use]
    pub fn new(sqlite: Sqlite, data_dir: impl Into<PathBuf>, issuer_base: Url) -> Self {
        Self {
            sqlite,
            data_dir: data_dir.into(),
            issuer_base,
            social_proof_key: None,
            access_token_lifetime: Duration::from_secs(3600),
        }
    }
}
