use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::config::timeout::TimeoutConfig;
use aws_sdk_cognitoidentityprovider::config::{
    Builder, Credentials, IdentityCache, Region, StalledStreamProtectionConfig,
};
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cognitoidentityprovider::operation::get_user::GetUserOutput;
use aws_sdk_cognitoidentityprovider::operation::initiate_auth::InitiateAuthOutput;
use aws_sdk_cognitoidentityprovider::operation::respond_to_auth_challenge::RespondToAuthChallengeOutput;
use aws_sdk_cognitoidentityprovider::types::{AuthFlowType, AuthenticationResultType};
use postern_core::Clock;
use postern_core::config::{self, Env};
use postern_core::identity::{IdentityConfig, Pool, SocialProofKey};
use postern_store::database::testing::{self, TestDatabase};
use tokio::net::TcpListener;

use crate::pool::{App, Config, ProvisionedPools};

pub(super) const EMAIL: &str = "ada@example.com";
pub(super) const PASSWORD: &str = "Correct-Horse-9";

/// A key of CUSTOM_AUTH.
pub(super) const SAMPLE_PROOF_KEY: &str = "mhHiQ3S1Btco+VqLzB3uP2CVocIDFHf4idpLLL1uD5E=";

/// A running server with a manual clock, and clients of it.
pub(super) struct RunningServer {
    pub(super) provisioned: ProvisionedPools,
    pub(super) identity: IdentityConfig,
    pub(super) url: String,
    pub(super) clock: Clock,
    pub(super) anonymous: Client,
    pub(super) admin: Client,
    _database: TestDatabase,
    _folder: tempfile::TempDir,
}

/// Starts a server with a manual clock.
pub(super) async fn start() -> RunningServer {
    start_server(Clock::manual(Clock::system().now())).await
}

/// Starts a server with the system clock, for clients that sign with it.
pub(super) async fn start_with_system_clock() -> RunningServer {
    start_server(Clock::system()).await
}

async fn start_server(clock: Clock) -> RunningServer {
    postern_service::log::init(
        "postern-identity-pool",
        postern_service::log::Format::Text,
        "off,postern_dev=error",
    );
    let database = testing::sqlite().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let mut config = Config::new(&database.url, path, url.parse().expect("URL"));
    let key = SocialProofKey::parse(SAMPLE_PROOF_KEY).expect("a key");
    config.social_proof_key = Some(Arc::new(key));
    let app = App::build(config, clock.clone()).await;
    let app = app.expect("the server starts");
    let provisioned = app.provisioned().clone();
    let env: Env = provisioned.variables(Some("auth")).into_iter().collect();
    let identity = config::parse("env", "", |root| IdentityConfig::read(root, &env))
        .expect("complete variables");
    let anonymous = client(&identity);
    tokio::spawn(app.run(listener, CancellationToken::new()));
    RunningServer {
        url: provisioned.endpoint.clone(),
        admin: administrator(&anonymous, &provisioned),
        anonymous,
        provisioned,
        identity,
        clock,
        _database: database,
        _folder: folder,
    }
}

/// Returns a client that signs its calls.
fn administrator(anonymous: &Client, provisioned: &ProvisionedPools) -> Client {
    let secret = provisioned.secret_access_key.expose();
    let keys = Credentials::new(&provisioned.access_key_id, secret, None, None, "tests");
    let config = anonymous.config().to_builder();
    Client::from_conf(config.credentials_provider(keys).build())
}

impl RunningServer {
    pub(super) fn actor(&self) -> &Pool {
        &self.identity.actor
    }

    pub(super) fn service(&self) -> &Pool {
        &self.identity.service
    }

    /// Registers and confirms a user. Returns its `sub`.
    pub(super) async fn register(&self, email: &str, password: &str) -> String {
        let pool = self.actor();
        let sign_up = self
            .anonymous
            .sign_up()
            .client_id(&pool.client_id)
            .username(email)
            .password(password);
        let sign_up = sign_up
            .set_secret_hash(pool.secret_hash(email))
            .send()
            .await
            .expect("signed up");
        assert!(!sign_up.user_confirmed());
        let confirm = self
            .admin
            .admin_confirm_sign_up()
            .user_pool_id(&pool.pool_id)
            .username(email);
        confirm.send().await.expect("confirmed");
        sign_up.user_sub().to_owned()
    }

    /// Calls USER_PASSWORD_AUTH, with the secret hash over `typed`.
    pub(super) async fn initiate(
        &self,
        pool: &Pool,
        typed: &str,
        password: &str,
    ) -> Result<InitiateAuthOutput, String> {
        let call = self.anonymous.initiate_auth().client_id(&pool.client_id);
        let call = call.auth_flow(AuthFlowType::UserPasswordAuth);
        let call = call
            .auth_parameters("USERNAME", typed)
            .auth_parameters("PASSWORD", password);
        let call = match pool.secret_hash(typed) {
            Some(hash) => call.auth_parameters("SECRET_HASH", hash),
            None => call,
        };
        call.send().await.map_err(error_text)
    }

    /// Signs the user in and returns its tokens.
    pub(super) async fn sign_in(
        &self,
        email: &str,
        password: &str,
    ) -> Result<AuthenticationResultType, String> {
        let output = self.initiate(self.actor(), email, password).await?;
        Ok(output.authentication_result.expect("tokens"))
    }

    /// Creates a user as an administrator, without an invitation. Returns its `sub`.
    pub(super) async fn create_user(&self, email: &str, password: Option<&str>) -> String {
        let call = self.admin.admin_create_user().username(email);
        let call = call.user_pool_id(&self.actor().pool_id);
        let call = call.message_action("SUPPRESS".into());
        let call = call.set_temporary_password(password.map(str::to_owned));
        let user = call.send().await.expect("created").user.expect("user");
        user.username.expect("username")
    }

    /// Disables or enables a user.
    pub(super) async fn set_enabled(&self, email: &str, enabled: bool) {
        let pool = &self.actor().pool_id;
        if enabled {
            let call = self.admin.admin_enable_user().user_pool_id(pool);
            call.username(email).send().await.expect("enabled");
        } else {
            let call = self.admin.admin_disable_user().user_pool_id(pool);
            call.username(email).send().await.expect("disabled");
        }
    }

    /// Sets a password as an administrator.
    pub(super) async fn set_password(&self, email: &str, password: &str) {
        let call = self.admin.admin_set_user_password().username(email);
        let call = call.user_pool_id(&self.actor().pool_id).permanent(true);
        call.password(password).send().await.expect("set");
    }

    /// Responds to NEW_PASSWORD_REQUIRED of the actor pool, with the secret hash over `hash_over`.
    pub(super) async fn replace_password(
        &self,
        asked: &InitiateAuthOutput,
        name: &str,
        hash_over: &str,
        password: &str,
    ) -> Result<RespondToAuthChallengeOutput, String> {
        let (actor, call) = (self.actor(), self.anonymous.respond_to_auth_challenge());
        let call = call
            .client_id(&actor.client_id)
            .challenge_name("NEW_PASSWORD_REQUIRED".into());
        let call = call.set_session(asked.session().map(str::to_owned));
        let hash = actor.secret_hash(hash_over).expect("a secret");
        let call = call.challenge_responses("USERNAME", name);
        let call = call.challenge_responses("NEW_PASSWORD", password);
        let call = call.challenge_responses("SECRET_HASH", hash);
        call.send().await.map_err(error_text)
    }

    /// Calls GetUser with an access token.
    pub(super) async fn get_user(
        &self,
        tokens: &AuthenticationResultType,
    ) -> Result<GetUserOutput, String> {
        let access = tokens.access_token().expect("access token");
        let call = self.anonymous.get_user().access_token(access);
        call.send().await.map_err(error_text)
    }

    /// Sends an unsigned request to the API without the SDK.
    pub(super) async fn raw(&self, operation: &str, body: &'static str) -> reqwest::Response {
        reqwest::Client::new()
            .post(&self.url)
            .header("content-type", "application/x-amz-json-1.1")
            .header(
                "x-amz-target",
                format!("AWSCognitoIdentityProviderService.{operation}"),
            )
            .body(body)
            .send()
            .await
            .expect("answer")
    }
}

/// Returns a client that signs nothing and has no time limits, for a busy machine.
fn client(identity: &IdentityConfig) -> Client {
    let endpoint = identity.endpoint.as_ref().expect("the local pool");
    let config = Builder::new()
        .region(Region::new(identity.region.clone()))
        .endpoint_url(endpoint.as_str())
        .identity_cache(IdentityCache::no_cache())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .timeout_config(TimeoutConfig::disabled());
    Client::from_conf(config.build())
}

/// Returns `Exception: message` from an SDK error.
#[expect(
    clippy::needless_pass_by_value,
    reason = "used as an argument of map_err"
)]
pub(super) fn error_text<E: ProvideErrorMetadata, R>(error: SdkError<E, R>) -> String {
    match error.code() {
        Some(code) => format!("{code}: {}", error.message().unwrap_or_default()),
        None => "no readable response".to_owned(),
    }
}

/// Returns the claims of a token without verification.
pub(super) fn claims(token: &str) -> serde_json::Value {
    use base64::Engine;
    let payload = token.split('.').nth(1).expect("three parts");
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(payload)
        .expect("base64url");
    serde_json::from_slice(&bytes).expect("JSON")
}
