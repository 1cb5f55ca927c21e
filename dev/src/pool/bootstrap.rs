//! Provisioning: two pools with their app clients, the service accounts, and the administrator's
//! access key. The first start creates them; later starts recreate what is missing.

use std::collections::BTreeMap;
use std::path::Path;

use postern_core::Secret;
use postern_core::exit::Exit;
use postern_core::identity::ServiceAccount;
use serde::{Deserialize, Serialize};

use crate::data_folder::{read_optional, write_private};
use crate::pool::config::{
    ACTOR_GROUPS, Config, REGION, SERVICE_ACCOUNTS, SERVICE_ID_ATTRIBUTE, actor_client, actor_pool,
    service_client, service_pool,
};
use crate::pool::context::PoolContext;
use crate::pool::crypto::{hash_password, random};
use crate::pool::error::ApiResult;
use crate::pool::model::{AppClient, ClientSettings, PoolSettings, UserPool};
use crate::pool::operations::{create_client, create_pool, new_user};

/// Ids and secrets with which other processes use the pools.
#[derive(Clone, Debug)]
pub struct ProvisionedPools {
    /// Base URL of the API: `AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER`.
    pub endpoint: String,
    /// Region name: `CLOUD_REGION`.
    pub region: String,
    /// Pool of users.
    pub actor: PoolAccess,
    /// Pool of service accounts.
    pub service: PoolAccess,
    /// Service accounts. Their username is the value of `custom:service_id`.
    pub accounts: Vec<ServiceAccount>,
    /// Id of the administrator's access key, for SigV4.
    pub access_key_id: String,
    /// Secret of the administrator's access key.
    pub secret_access_key: Secret,
}

/// A pool with the app client through which it is used.
#[derive(Clone, Debug)]
pub struct PoolAccess {
    /// Pool id.
    pub pool_id: String,
    /// App client id.
    pub client_id: String,
    /// App client secret.
    pub client_secret: Secret,
    /// Issuer (`iss`) of the pool's tokens.
    pub issuer: String,
}

/// The content of `identity-pool.json`.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredCredentials {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    accounts: BTreeMap<String, String>,
    /// Names of the accounts that were added to the file now.
    #[serde(skip)]
    new_accounts: Vec<String>,
}

// === impl ProvisionedPools ===

impl ProvisionedPools {
    /// Returns the environment variables for the service that signs in as `account`, and those that
    /// AWS's own tools read. Without an account, or for an unknown one, the account's username and
    /// password are omitted.
    #[must_use]
    pub fn variables(&self, account: Option<&str>) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        let mut set = |name, value: &str| variables.push((name, value.to_owned()));
        set("IDP_ACTOR_POOL_ID", &self.actor.pool_id);
        set("IDP_ACTOR_CLIENT_ID", &self.actor.client_id);
        set("IDP_ACTOR_CLIENT_SECRET", self.actor.client_secret.expose());
        set("IDP_SERVICE_POOL_ID", &self.service.pool_id);
        set("IDP_SERVICE_CLIENT_ID", &self.service.client_id);
        set(
            "IDP_SERVICE_CLIENT_SECRET",
            self.service.client_secret.expose(),
        );
        // The last is read by the AWS CLI and boto3 instead of `AWS_REGION`.
        for name in ["CLOUD_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"] {
            set(name, &self.region);
        }
        set("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", &self.endpoint);
        set("AWS_ACCESS_KEY_ID", &self.access_key_id);
        set("AWS_SECRET_ACCESS_KEY", self.secret_access_key.expose());
        let mut accounts = self.accounts.iter();
        if let Some(found) = accounts.find(|it| account == Some(it.username.as_str())) {
            set("IDP_SERVICE_ACCOUNT_USERNAME", &found.username);
            set("IDP_SERVICE_ACCOUNT_PASSWORD", found.password.expose());
        }
        variables
    }
}

/// Creates the pools, clients, and accounts that are missing, and returns all of them.
pub(crate) async fn run(context: &PoolContext, config: &Config) -> Result<ProvisionedPools, Exit> {
    let credentials = load_credentials(&config.data_dir)?;
    Box::pin(provision(context, config, &credentials))
        .await
        .map_err(|error| {
            Exit::unavailable(format!(
                "identity pool: provisioning failed: {}",
                error.message()
            ))
        })
}

async fn provision(
    context: &PoolContext,
    config: &Config,
    credentials: &StoredCredentials,
) -> ApiResult<ProvisionedPools> {
    let actor = ensure_pool(context, "actor", actor_pool(), actor_client()).await?;
    let add_groups = |pool: &mut UserPool| {
        pool.groups.extend(ACTOR_GROUPS.map(str::to_owned));
        Ok(())
    };
    context.update_pool(&actor.pool_id, add_groups).await?;
    let set_lifetime = |client: &mut Option<AppClient>| {
        if let Some(client) = client {
            client.settings.access_token_s = config.access_token_lifetime.as_secs();
        }
        Ok(())
    };
    let clients = &context.store.clients;
    clients.update(&actor.client_id, set_lifetime).await?;
    let service = ensure_pool(context, "service", service_pool(), service_client()).await?;
    ensure_accounts(context, &service.pool_id, credentials).await?;
    let accounts = credentials.accounts.iter();
    Ok(ProvisionedPools {
        endpoint: context
            .issuer_base
            .as_str()
            .trim_end_matches('/')
            .to_owned(),
        region: REGION.to_owned(),
        actor,
        service,
        accounts: accounts
            .map(|(name, password)| ServiceAccount {
                username: name.clone(),
                password: password.as_str().into(),
            })
            .collect(),
        access_key_id: credentials.access_key_id.clone(),
        secret_access_key: credentials.secret_access_key.as_str().into(),
    })
}

/// Returns the pool and client of this name, creating those that do not exist.
async fn ensure_pool(
    context: &PoolContext,
    name: &str,
    pool_settings: PoolSettings,
    client_settings: ClientSettings,
) -> ApiResult<PoolAccess> {
    let pool = match context.store.pools.find(|pool| pool.name == name) {
        Some(pool) => pool,
        None => create_pool(context, name.to_owned(), pool_settings).await?,
    };
    let is_own = |client: &AppClient| client.pool_id == pool.id && client.name == name;
    let client = match context.store.clients.find(is_own) {
        Some(client) => client,
        None => create_client(context, &pool, name.to_owned(), true, client_settings).await?,
    };
    Ok(PoolAccess {
        client_id: client.id,
        client_secret: client.secret.unwrap_or_default().into(),
        issuer: context.issuer(&pool.id),
        pool_id: pool.id,
    })
}

/// Creates the accounts that are missing, and sets the password of those for which the credentials
/// file has a new one.
async fn ensure_accounts(
    context: &PoolContext,
    pool_id: &str,
    credentials: &StoredCredentials,
) -> ApiResult {
    let pool = context.pool(pool_id)?;
    for (name, password) in &credentials.accounts {
        let existing = context.find_user(pool_id, name).ok();
        if existing.is_some() && !credentials.new_accounts.contains(name) {
            continue;
        }
        let mut user = existing.map_or_else(|| new_user(context, &pool, name), Ok)?;
        user.set_password(hash_password(&password.as_str().into()).await?);
        let attribute = (SERVICE_ID_ATTRIBUTE.to_owned(), name.clone());
        user.attributes.extend([attribute]);
        context.store.users.put(&user.id(), user).await?;
    }
    Ok(())
}

/// Reads the credentials file, adds what is missing, and writes it if anything was added. The file
/// is written before the store, so that a password in the store is always recoverable.
fn load_credentials(folder: &Path) -> Result<StoredCredentials, Exit> {
    let path = folder.join("identity-pool.json");
    let failed = |reason: String| Exit::unavailable(format!("{}: {reason}", path.display()));
    let mut credentials: StoredCredentials = match read_optional(&path)? {
        Some(text) => serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?,
        None => StoredCredentials::default(),
    };
    if add_missing(&mut credentials).map_err(|error| failed(error.to_string()))? {
        let text = serde_json::to_vec_pretty(&credentials);
        write_private(&path, &text.map_err(|error| failed(error.to_string()))?)?;
    }
    Ok(credentials)
}

fn add_missing(credentials: &mut StoredCredentials) -> ApiResult<bool> {
    let mut changed = false;
    if credentials.access_key_id.is_empty() {
        // AWS's format: `AKIA` and sixteen capital letters or digits.
        credentials.access_key_id = format!("AKIA{}", random::alphanumeric(16)?.to_uppercase());
        credentials.secret_access_key = random::alphanumeric(40)?;
        changed = true;
    }
    for name in SERVICE_ACCOUNTS {
        if !credentials.accounts.contains_key(name) {
            // 43 characters of base64url carry 256 bits; the suffix satisfies any password policy.
            credentials
                .accounts
                .insert(name.to_owned(), format!("{}-aA1", random::token()?));
            credentials.new_accounts.push(name.to_owned());
            changed = true;
        }
    }
    Ok(changed)
}
