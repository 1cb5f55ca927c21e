//! The first start: two pools with their clients, service accounts, and the administrator's access
//! key. Every later start finds them, and puts back what is missing.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use postern_common::Secret;
use postern_common::exit::Exit;
use serde::{Deserialize, Serialize};

use crate::config::{Config, SERVICE_ID};
use crate::fault::Fault;
use crate::operation::{make_client, make_pool, new_user};
use crate::pool::{Client, ClientSettings, Pool, PoolSettings};
use crate::random;
use crate::server::Server;
use crate::user::Status;
use crate::wire::AccessKey;

/// What another process needs to use the pools.
#[derive(Clone, Debug)]
pub struct Provisioned {
    /// The address of the API: `AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER`.
    pub endpoint: String,
    /// The region, `CLOUD_REGION`.
    pub region: String,
    /// The pool of users.
    pub actor: Access,
    /// The pool of service accounts.
    pub service: Access,
    /// The service accounts, by name.
    pub accounts: Vec<Account>,
    /// The id of the administrator's access key, for SigV4.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: Secret,
}

/// A pool and the client through which it is used.
#[derive(Clone, Debug)]
pub struct Access {
    /// The pool's id.
    pub pool_id: String,
    /// The client's id.
    pub client_id: String,
    /// The client's secret.
    pub client_secret: Secret,
    /// The `iss` of the pool's tokens.
    pub issuer: String,
}

/// A service account.
#[derive(Clone, Debug)]
pub struct Account {
    /// The name: username and `custom:service_id`.
    pub name: String,
    /// The password.
    pub password: Secret,
}

/// `identity-pool.json`.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    accounts: BTreeMap<String, String>,
}

// === impl Provisioned ===

impl Provisioned {
    /// The variables of the interface for the service that signs in as `account`, and those that
    /// AWS's own tools read. Without such an account the last two of the interface are left out.
    #[must_use]
    pub fn variables(&self, account: &str) -> Vec<(&'static str, String)> {
        let secret = |secret: &Secret| secret.expose().to_owned();
        let mut variables = vec![
            ("IDP_ACTOR_POOL_ID", self.actor.pool_id.clone()),
            ("IDP_ACTOR_CLIENT_ID", self.actor.client_id.clone()),
            ("IDP_ACTOR_CLIENT_SECRET", secret(&self.actor.client_secret)),
            ("IDP_SERVICE_POOL_ID", self.service.pool_id.clone()),
            ("IDP_SERVICE_CLIENT_ID", self.service.client_id.clone()),
            (
                "IDP_SERVICE_CLIENT_SECRET",
                secret(&self.service.client_secret),
            ),
            ("CLOUD_REGION", self.region.clone()),
            ("AWS_REGION", self.region.clone()),
            // What the aws command line and boto3 read instead.
            ("AWS_DEFAULT_REGION", self.region.clone()),
            (
                "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER",
                self.endpoint.clone(),
            ),
            ("AWS_ACCESS_KEY_ID", self.access_key_id.clone()),
            ("AWS_SECRET_ACCESS_KEY", secret(&self.secret_access_key)),
        ];
        if let Some(account) = self.accounts.iter().find(|known| known.name == account) {
            variables.push(("IDP_SERVICE_ACCOUNT_USERNAME", account.name.clone()));
            variables.push(("IDP_SERVICE_ACCOUNT_PASSWORD", secret(&account.password)));
        }
        variables
    }
}

/// Makes what is missing and tells what is there.
pub(crate) async fn run(server: &Server, config: &Config) -> Result<Provisioned, Exit> {
    let credentials = load(&config.data_dir, &config.service_accounts)?;
    Box::pin(provision(server, config, &credentials))
        .await
        .map_err(|fault| {
            Exit::unavailable(format!(
                "identity pool: the first start failed: {}",
                fault.message()
            ))
        })
}

async fn provision(
    server: &Server,
    config: &Config,
    credentials: &Credentials,
) -> Result<Provisioned, Fault> {
    let actor = ensure(server, "actor", &config.actor_pool, &config.actor_client).await?;
    let service = ensure(
        server,
        "service",
        &config.service_pool,
        &config.service_client,
    )
    .await?;
    ensure_accounts(server, &service.pool_id, &credentials.accounts).await?;
    let accounts = credentials.accounts.iter();
    Ok(Provisioned {
        endpoint: server.issuer_base.as_str().trim_end_matches('/').to_owned(),
        region: server.region.clone(),
        actor,
        service,
        accounts: accounts
            .map(|(name, password)| Account {
                name: name.clone(),
                password: password.as_str().into(),
            })
            .collect(),
        access_key_id: credentials.access_key_id.clone(),
        secret_access_key: credentials.secret_access_key.as_str().into(),
    })
}

/// The pool and client that the settings name; made where they are not there.
async fn ensure(
    server: &Server,
    name: &str,
    pool_settings: &PoolSettings,
    client_settings: &ClientSettings,
) -> Result<Access, Fault> {
    let (pool_key, client_key) = (format!("{name}_pool"), format!("{name}_client"));
    let known = server
        .store
        .setting(&pool_key)
        .await?
        .and_then(|id| server.directory.pool(&id).ok());
    let pool: Arc<Pool> = match known {
        Some(pool) => pool,
        None => {
            let pool = make_pool(server, name.to_owned(), pool_settings.clone()).await?;
            server.store.set_setting(&pool_key, &pool.id).await?;
            Arc::new(pool)
        }
    };
    let known = server.store.setting(&client_key).await?;
    let known = known.and_then(|id| server.directory.client_of(&pool.id, &id).ok());
    let client: Arc<Client> = match known {
        Some(client) => client,
        None => {
            let client = make_client(
                server,
                &pool,
                name.to_owned(),
                true,
                client_settings.clone(),
            )
            .await?;
            server.store.set_setting(&client_key, &client.id).await?;
            Arc::new(client)
        }
    };
    let client_secret = client.secret.clone().unwrap_or_default();
    Ok(Access {
        pool_id: pool.id.clone(),
        client_id: client.id.clone(),
        client_secret,
        issuer: server.issuer(&pool.id),
    })
}

/// Gives each account the password of the credentials' file. A fingerprint in the store tells
/// whether it has it, so that a start hashes nothing when nothing has changed.
async fn ensure_accounts(
    server: &Server,
    pool_id: &str,
    accounts: &BTreeMap<String, String>,
) -> Result<(), Fault> {
    let pool = server.directory.pool(pool_id)?;
    for (name, password) in accounts {
        let key = format!("account_{name}");
        let fingerprint = random::digest(&[pool_id, name, password]);
        let known = server.store.user(pool_id, name).await?;
        let has_password = server.store.setting(&key).await?.as_ref() == Some(&fingerprint);
        if known.is_some() && has_password {
            continue;
        }
        let is_new = known.is_none();
        let mut user = known.map_or_else(|| new_user(server, &pool, name), Ok)?;
        user.password = Some(server.hasher.hash_random(&password.as_str().into())?);
        user.status = Status::Confirmed;
        if is_new {
            user.attributes
                .0
                .insert(SERVICE_ID.to_owned(), name.clone());
            server.store.add_user(&user).await?;
        } else {
            server.store.set_password(&user, server.clock.now()).await?;
        }
        server.store.set_setting(&key, &fingerprint).await?;
    }
    Ok(())
}

/// The key that signs administrative calls.
pub(crate) fn access_key(provisioned: &Provisioned) -> AccessKey {
    AccessKey {
        id: provisioned.access_key_id.clone(),
        secret: provisioned.secret_access_key.clone(),
    }
}

/// Reads the credentials' file, completes it, and writes it when something was added. It is written
/// before the store is, so that a password that the store has is never lost.
fn load(folder: &Path, accounts: &[String]) -> Result<Credentials, Exit> {
    let path = folder.join("identity-pool.json");
    let failed = |doing: &str, cause: &dyn std::fmt::Display| {
        Exit::unavailable(format!("{}: cannot {doing}: {cause}", path.display()))
    };
    let mut credentials: Credentials = match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| failed("read", &error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Credentials::default(),
        Err(error) => return Err(failed("read", &error)),
    };
    if complete(&mut credentials, accounts).map_err(|fault| failed("make secrets for", &fault))? {
        let mut folders = std::fs::DirBuilder::new();
        folders
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| failed("create", &error))?;
        write(&path, &credentials).map_err(|error| failed("write", &error))?;
    }
    Ok(credentials)
}

fn complete(credentials: &mut Credentials, accounts: &[String]) -> Result<bool, Fault> {
    let mut changed = false;
    if credentials.access_key_id.is_empty() {
        // The form of AWS's ids: `AKIA` and sixteen capitals or digits.
        credentials.access_key_id = format!("AKIA{}", random::lowercase(16)?.to_uppercase());
        credentials.secret_access_key = random::alphanumeric(40)?;
        changed = true;
    }
    for name in accounts {
        if !credentials.accounts.contains_key(name) {
            // 43 characters of base64url are 256 bits; the end satisfies any policy.
            credentials
                .accounts
                .insert(name.clone(), format!("{}-aA1", random::token()?));
            changed = true;
        }
    }
    Ok(changed)
}

/// All or nothing: a new file beside it, then a rename.
fn write(path: &Path, credentials: &Credentials) -> std::io::Result<()> {
    let text = serde_json::to_vec_pretty(credentials)?;
    let fresh = path.with_extension("json.new");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)
}
