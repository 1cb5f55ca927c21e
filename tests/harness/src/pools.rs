//! The identity pools alone, for tests that need real tokens only.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::config::Credentials;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_auth::{AwsCredentials, pool_client};
use postern_core::Clock;
use postern_core::config::{Env, parse};
use postern_core::identity::IdentityConfig;
use postern_dev::pool::{App, Config, ProvisionedPools};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::public_api::{PASSWORD, PublicApi};

/// A running identity pool with a temporary folder.
#[derive(Debug)]
pub struct Pools {
    provisioned: ProvisionedPools,
    surface: PublicApi,
    shutdown: CancellationToken,
    _folder: TempDir,
}

impl Pools {
    /// Starts the pool on a free loopback port, with cheap password hashes.
    pub async fn start() -> Self {
        Self::at(Clock::system()).await
    }

    /// As [`Pools::start`], with the time of a clock in its tokens.
    pub async fn at(clock: Clock) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let public = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = public.local_addr().expect("the address of a bound socket");
        let base = format!("http://{address}").parse().expect("a valid URL");
        let database = postern_dev::database::open(&folder.path().join("identity.db")).await;
        let config = Config::new(database.expect("a new file"), folder.path(), base);
        let app = Box::pin(App::build(config, clock))
            .await
            .expect("the identity pool starts");
        let provisioned = app.provisioned().clone();
        let shutdown = CancellationToken::new();
        tokio::spawn(app.run(public, shutdown.clone()));
        let env = provisioned.variables(Some("auth")).into_iter();
        let env = env.map(|(name, value)| (name.to_owned(), value));
        let surface = PublicApi::new("http://127.0.0.1:9", env.collect());
        surface.until_keys().await;
        Self {
            provisioned,
            surface,
            shutdown,
            _folder: folder,
        }
    }

    /// Returns the identity variables, for a process that trusts these pools.
    pub fn env(&self) -> Env {
        self.surface.environment().clone().into_iter().collect()
    }

    /// Returns the identity variables as a map.
    pub fn variables(&self) -> &BTreeMap<String, String> {
        self.surface.environment()
    }

    /// Returns a new token of a service account.
    pub async fn service_token(&self, account: &str) -> String {
        let mut accounts = self.provisioned.accounts.iter();
        let known = accounts.find(|known| known.username == account);
        let password = known.expect("an account").password.expose();
        self.surface.service_token(account, password).await
    }

    /// Creates a user in the given groups and returns the subject and a new access token.
    pub async fn user(&self, groups: &[&str]) -> (String, String) {
        new_user(&self.surface, groups).await
    }
}

/// Returns an administrator's client of the pools, and their settings.
pub async fn administrator(surface: &PublicApi) -> (Client, IdentityConfig) {
    let env: Env = surface.environment().clone().into_iter().collect();
    let identity = parse("test", "", |root| IdentityConfig::read(root, &env))
        .expect("valid identity variables");
    let secret = surface.env("AWS_SECRET_ACCESS_KEY");
    let keys = Credentials::new(
        surface.env("AWS_ACCESS_KEY_ID"),
        secret,
        None,
        None,
        "tests",
    );
    let keys = Some(AwsCredentials::Static(keys));
    let client = pool_client(&identity, keys, Duration::from_secs(10));
    (Box::pin(client).await, identity)
}

/// Creates a user as an administrator does, who must set a new password at the first sign-in.
pub async fn create_user_with_temporary_password(surface: &PublicApi, email: &str, password: &str) {
    let (admin, identity) = administrator(surface).await;
    let create = admin.admin_create_user();
    let create = create.user_pool_id(&identity.actor.pool_id).username(email);
    let create = create
        .temporary_password(password)
        .message_action("SUPPRESS".into());
    let created = Box::pin(create.send()).await;
    created.expect("the pool creates a user");
}

/// Creates a user as an administrator does, adds it to groups, and signs it in. Returns subject and
/// access token.
pub async fn new_user(surface: &PublicApi, groups: &[&str]) -> (String, String) {
    let email = format!("{}@example.com", uuid::Uuid::new_v4().simple());
    new_user_with_email(surface, &email, groups).await
}

/// As [`new_user`], with an e-mail address. The password is [`PASSWORD`].
pub async fn new_user_with_email(
    surface: &PublicApi,
    email: &str,
    groups: &[&str],
) -> (String, String) {
    let (admin, identity) = administrator(surface).await;
    let (pool, hash) = (&identity.actor.pool_id, identity.actor.secret_hash(email));
    let sign_up = json!({
        "ClientId": identity.actor.client_id, "SecretHash": hash, "Username": email, "Password": PASSWORD,
        "UserAttributes": [{"Name": "email", "Value": email}],
    });
    let _ = surface.pool("SignUp", &sign_up).await;
    let confirm = admin.admin_confirm_sign_up().user_pool_id(pool);
    let confirm = confirm.username(email);
    Box::pin(confirm.send()).await.expect("the pool confirms");
    for group in groups {
        // Another user of this test may have created the group.
        let create = admin.create_group().user_pool_id(pool).group_name(*group);
        let _ = Box::pin(create.send()).await;
        let add = admin.admin_add_user_to_group().user_pool_id(pool);
        let add = add.username(email).group_name(*group);
        Box::pin(add.send()).await.expect("the pool has groups");
    }
    let parameters = json!({"USERNAME": email, "PASSWORD": PASSWORD, "SECRET_HASH": hash});
    let sign_in = json!({"AuthFlow": "USER_PASSWORD_AUTH", "ClientId": identity.actor.client_id,
        "AuthParameters": parameters});
    let signed_in = surface.pool("InitiateAuth", &sign_in).await;
    let token = &signed_in["AuthenticationResult"]["AccessToken"];
    let token = token.as_str().expect("an access token").to_owned();
    (subject(&token), token)
}

/// Returns the `sub` of a token without verification.
pub fn subject(token: &str) -> String {
    let payload = token.split('.').nth(1).expect("a JWT has three parts");
    let payload = URL_SAFE_NO_PAD.decode(payload).expect("a JWT is base64url");
    let payload: Value = serde_json::from_slice(&payload).expect("a JWT holds JSON");
    payload["sub"].as_str().expect("a subject").to_owned()
}

impl Drop for Pools {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
