//! The identity pools alone, for tests of one part that needs nothing but real tokens.

use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;

use aws_sdk_cognitoidentityprovider::Client;
use postern_common::Clock;
use postern_common::config::{Env, parse};
use postern_common::identity::{AwsCredentials, IdentityConfig};
use postern_identity_pool::{App, Config, HashingSettings, Listeners, ProvisionedPools};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::surface::{PASSWORD, Surface};

/// A running identity pool with a folder of its own.
#[derive(Debug)]
pub struct Pools {
    provisioned: ProvisionedPools,
    surface: Surface,
    shutdown: CancellationToken,
    _folder: TempDir,
}

// === impl Pools ===

impl Pools {
    /// Starts it on a free port of the loopback, with hashes that cost little.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let public = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has a free port");
        let address = public.local_addr().expect("a bound socket has an address");
        let base = format!("http://{address}")
            .parse()
            .expect("an address makes a URL");
        let database = format!("sqlite://{}", folder.path().join("identity.db").display());
        let mut config = Config::new(database, folder.path(), base);
        config.hashing = HashingSettings {
            memory_kib: 8 << 10,
            passes: 1,
            ..HashingSettings::default()
        };
        let app = Box::pin(App::build(config, Clock::system()))
            .await
            .expect("the identity pool starts");
        let provisioned = app.provisioned().clone();
        let shutdown = CancellationToken::new();
        tokio::spawn(app.run(
            Listeners {
                public,
                admin: None,
            },
            shutdown.clone(),
        ));
        let env: BTreeMap<String, String> = provisioned
            .variables("auth")
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let surface = Surface::new("http://127.0.0.1:9", env);
        surface.until_keys().await;
        Self {
            provisioned,
            surface,
            shutdown,
            _folder: folder,
        }
    }

    /// The variables of the interface, for a process that trusts these pools.
    #[must_use]
    pub fn env(&self) -> Env {
        self.surface.environment().clone().into_iter().collect()
    }

    /// The same, one by one.
    #[must_use]
    pub fn variables(&self) -> &BTreeMap<String, String> {
        self.surface.environment()
    }

    /// A fresh token of a service account.
    ///
    /// # Panics
    /// If there is no such account.
    pub async fn service_token(&self, account: &str) -> String {
        let account = self
            .provisioned
            .accounts
            .iter()
            .find(|known| known.name == account)
            .expect("an account");
        self.surface
            .service_token(&account.name, account.password.expose())
            .await
    }

    /// The subject and a fresh access token of a new user, who is a member of these groups.
    pub async fn user(&self, groups: &[&str]) -> (String, String) {
        new_user(&self.surface, groups).await
    }
}

/// The administrator's client of the pools, and what it needs to know about them.
///
/// # Panics
/// If the installation has no administrator's key.
pub async fn administrator(surface: &Surface) -> (Client, IdentityConfig) {
    let env: Env = surface.environment().clone().into_iter().collect();
    let identity =
        parse("test", "", |root| IdentityConfig::read(root, &env)).expect("the variables are good");
    let keys = AwsCredentials::Static {
        access_key_id: surface.env("AWS_ACCESS_KEY_ID").to_owned(),
        secret_access_key: surface.env("AWS_SECRET_ACCESS_KEY").into(),
        session_token: None,
    };
    (Box::pin(identity.client(Some(keys))).await, identity)
}

/// Makes a user as an administrator does, in groups, and signs it in: subject and access token.
///
/// # Panics
/// If the pool refuses.
pub async fn new_user(surface: &Surface, groups: &[&str]) -> (String, String) {
    let email = format!("{}@example.com", uuid::Uuid::new_v4().simple());
    let (admin, identity) = administrator(surface).await;
    let (pool, hash) = (&identity.actor.pool_id, identity.actor.secret_hash(&email));
    let sign_up = json!({
        "ClientId": identity.actor.client_id, "SecretHash": hash, "Username": email, "Password": PASSWORD,
        "UserAttributes": [{"Name": "email", "Value": email}],
    });
    let _ = surface.pool("SignUp", &sign_up).await;
    let confirm = admin
        .admin_confirm_sign_up()
        .user_pool_id(pool)
        .username(&email);
    Box::pin(confirm.send()).await.expect("the pool confirms");
    for group in groups {
        // It may be there already, from another user of this test.
        let _ = Box::pin(
            admin
                .create_group()
                .user_pool_id(pool)
                .group_name(*group)
                .send(),
        )
        .await;
        let add = admin
            .admin_add_user_to_group()
            .user_pool_id(pool)
            .username(&email)
            .group_name(*group);
        Box::pin(add.send()).await.expect("the pool has groups");
    }
    let parameters = json!({"USERNAME": email, "PASSWORD": PASSWORD, "SECRET_HASH": hash});
    let sign_in = json!({"AuthFlow": "USER_PASSWORD_AUTH", "ClientId": identity.actor.client_id,
        "AuthParameters": parameters});
    let token =
        surface.pool("InitiateAuth", &sign_in).await["AuthenticationResult"]["AccessToken"].clone();
    let token = token.as_str().expect("an access token").to_owned();
    (subject(&token), token)
}

/// The `sub` of a token, unverified.
///
/// # Panics
/// If it is not a JWT.
#[must_use]
pub fn subject(token: &str) -> String {
    use base64::Engine as _;
    let payload = token.split('.').nth(1).expect("a JWT has three parts");
    let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(payload)
        .expect("a JWT is base64url");
    let payload: Value = serde_json::from_slice(&payload).expect("a JWT holds JSON");
    payload["sub"].as_str().expect("a subject").to_owned()
}

impl Drop for Pools {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
