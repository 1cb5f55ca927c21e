//! Provisioning: two pools with their app clients, the service accounts, and the administrator's
//! access key. The first start creates them; later starts recreate what is missing.

use std::collections::BTreeMap;
use std::path::Path;

use postern_core::Secret;
use postern_core::exit::Exit;
use postern_core::identity::ServiceAccount;
use serde::{Deserialize, Serialize};

use crate::data_folder::{read_optional, write_private};
use crate::pool::context::PoolContext;
use crate::pool::crypto::hash_password;
use crate::pool::error::ApiResult;
use crate::pool::model::{
    AdminCreateUserConfig, AppClient, Feature, SchemaAttribute, TokenRotation, UserPool,
};
use crate::pool::operations::{create_client, create_pool, new_user};
use crate::random;

/// Region in pool ids and signatures.
pub(crate) const REGION: &str = "us-west-2";

/// Name of the pool of users.
pub(crate) const ACTOR_POOL: &str = "actor";

const SERVICE_ACCOUNTS: [&str; 4] = ["auth", "notify", "actor", "document"];

const ACTOR_GROUPS: [&str; 3] = ["admin", "recruiters", "support"];

/// Attribute that identifies a user of the service pool as a service.
const SERVICE_ID_ATTRIBUTE: &str = "custom:service_id";

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
pub(super) struct StoredCredentials {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    accounts: BTreeMap<String, String>,
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
pub(super) async fn provision(
    context: &PoolContext,
    credentials: StoredCredentials,
) -> ApiResult<ProvisionedPools> {
    let actor = ensure_pool(context, actor_pool(), actor_client()).await?;
    let add_groups = |pool: &mut UserPool| {
        pool.groups.extend(ACTOR_GROUPS.map(str::to_owned));
        Ok(())
    };
    context.update_pool(&actor.pool_id, add_groups).await?;
    let service = ensure_pool(context, service_pool(), service_client()).await?;
    let accounts = credentials.accounts.into_iter();
    let accounts: Vec<_> = accounts
        .map(|(username, password)| ServiceAccount {
            username,
            password: password.into(),
        })
        .collect();
    ensure_accounts(context, &service.pool_id, &accounts).await?;
    Ok(ProvisionedPools {
        endpoint: context.endpoint.clone(),
        region: REGION.to_owned(),
        actor,
        service,
        accounts,
        access_key_id: credentials.access_key_id,
        secret_access_key: credentials.secret_access_key.into(),
    })
}

/// Users sign in with their e-mail address. The authentication service confirms them.
fn actor_pool() -> UserPool {
    UserPool {
        name: ACTOR_POOL.to_owned(),
        username_attributes: vec!["email".to_owned()],
        ..UserPool::default()
    }
}

/// Refresh tokens rotate, with a grace period of 30 seconds in which a lost response can be
/// requested again.
fn actor_client() -> AppClient {
    AppClient {
        explicit_auth_flows: flows(["USER_PASSWORD_AUTH", "CUSTOM_AUTH"]),
        refresh_token_rotation: TokenRotation {
            feature: Feature::Enabled,
            retry_grace_period_seconds: 30,
        },
        ..AppClient::default()
    }
}

/// Service accounts are created by an administrator only.
fn service_pool() -> UserPool {
    UserPool {
        name: "service".to_owned(),
        admin_create_user_config: AdminCreateUserConfig {
            allow_admin_create_user_only: true,
        },
        schema: vec![SchemaAttribute {
            name: SERVICE_ID_ATTRIBUTE.to_owned(),
        }],
        ..UserPool::default()
    }
}

/// The ID token shows the service id, which no client can write.
fn service_client() -> AppClient {
    AppClient {
        explicit_auth_flows: flows(["USER_PASSWORD_AUTH", "REFRESH_TOKEN_AUTH"]),
        read_attributes: Some(vec![SERVICE_ID_ATTRIBUTE.to_owned()]),
        write_attributes: Some(vec!["name".to_owned()]),
        ..AppClient::default()
    }
}

fn flows(names: [&str; 2]) -> Vec<String> {
    names.map(|name| format!("ALLOW_{name}")).to_vec()
}

/// Returns the pool of this name and its client, creating those that do not exist.
async fn ensure_pool(
    context: &PoolContext,
    settings: UserPool,
    client_settings: AppClient,
) -> ApiResult<PoolAccess> {
    let pool = match context.store.pools.find(|pool| pool.name == settings.name) {
        Some(pool) => pool,
        None => create_pool(context, settings).await?,
    };
    let is_own =
        |client: &AppClient| client.user_pool_id == pool.id && client.client_name == pool.name;
    let client = match context.store.clients.find(is_own) {
        Some(client) => client,
        None => {
            let client = AppClient {
                user_pool_id: pool.id.clone(),
                client_name: pool.name.clone(),
                prevent_user_existence_errors: Feature::Enabled,
                ..client_settings
            };
            create_client(context, true, client).await?
        }
    };
    Ok(PoolAccess {
        client_id: client.client_id,
        client_secret: client.client_secret.unwrap_or_default().into(),
        issuer: context.issuer(&pool.id),
        pool_id: pool.id,
    })
}

/// Creates the accounts that are missing, and gives all the passwords of the credentials file.
async fn ensure_accounts(
    context: &PoolContext,
    pool_id: &str,
    accounts: &[ServiceAccount],
) -> ApiResult {
    let pool = context.pool(pool_id)?;
    for ServiceAccount { username, password } in accounts {
        let mut user = match context.find_user(pool_id, username) {
            Ok(user) => user,
            Err(_) => new_user(context, &pool, username)?,
        };
        user.set_password(hash_password(password).await?);
        let attribute = (SERVICE_ID_ATTRIBUTE.to_owned(), username.clone());
        user.attributes.extend([attribute]);
        context.store.users.put(&user.id(), user).await?;
    }
    Ok(())
}

/// Reads the credentials file, adds what is missing, and writes it if anything was added. The file
/// is written before the store, so that a password in the store is always recoverable.
pub(super) fn load_credentials(folder: &Path) -> Result<StoredCredentials, Exit> {
    let path = folder.join("identity-pool.json");
    let failed =
        |error: serde_json::Error| Exit::unavailable(format!("{}: {error}", path.display()));
    let mut credentials: StoredCredentials = match read_optional(&path)? {
        Some(text) => serde_json::from_slice(&text).map_err(failed)?,
        None => StoredCredentials::default(),
    };
    let mut is_changed = credentials.access_key_id.is_empty();
    if is_changed {
        // AWS's format: `AKIA` and sixteen capital letters or digits.
        credentials.access_key_id = format!("AKIA{}", random::alphanumeric(16).to_uppercase());
        credentials.secret_access_key = random::alphanumeric(40);
    }
    for name in SERVICE_ACCOUNTS {
        credentials
            .accounts
            .entry(name.to_owned())
            .or_insert_with(|| {
                is_changed = true;
                // 43 characters of base64url carry 256 bits; the suffix satisfies any password policy.
                format!("{}-aA1", random::token())
            });
    }
    if is_changed {
        write_private(
            &path,
            &serde_json::to_vec_pretty(&credentials).map_err(failed)?,
        )?;
    }
    Ok(credentials)
}
