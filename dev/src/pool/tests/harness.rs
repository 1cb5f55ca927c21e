use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::Clock;
use postern_core::identity::{SocialProofKey, secret_hash};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::database;
use crate::pool::{App, Config, PoolAccess, ProvisionedPools};

pub(super) const EMAIL: &str = "ada@example.com";
pub(super) const PASSWORD: &str = "Correct-Horse-9";

/// A key of CUSTOM_AUTH.
pub(super) const SAMPLE_PROOF_KEY: &str = "mhHiQ3S1Btco+VqLzB3uP2CVocIDFHf4idpLLL1uD5E=";

pub(super) struct RunningServer {
    pub(super) provisioned: ProvisionedPools,
    pub(super) url: String,
    pub(super) clock: Clock,
    _folder: tempfile::TempDir,
}

/// Starts a server with a manual clock.
pub(super) async fn start() -> RunningServer {
    start_server(Clock::manual(Clock::system().now())).await
}

pub(super) async fn start_server(clock: Clock) -> RunningServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let folder = tempfile::tempdir().expect("a folder");
    let database = database::open(&folder.path().join("development.db")).await;
    let (database, base) = (database.expect("a new file"), url.parse().expect("URL"));
    let mut config = Config::new(database, folder.path(), base);
    config.access_token_lifetime = Duration::from_secs(600);
    config.social_proof_key = SocialProofKey::parse(SAMPLE_PROOF_KEY).ok();
    let app = App::build(config, clock.clone()).await;
    let app = app.expect("the server starts");
    let provisioned = app.provisioned().clone();
    tokio::spawn(app.run(listener, CancellationToken::new()));
    RunningServer {
        provisioned,
        url,
        clock,
        _folder: folder,
    }
}

impl RunningServer {
    pub(super) fn actor(&self) -> &PoolAccess {
        &self.provisioned.actor
    }

    /// Sends a request with an access key.
    pub(super) async fn send(
        &self,
        operation: &str,
        access_key: Option<&str>,
        body: String,
    ) -> reqwest::Response {
        let target = format!("AWSCognitoIdentityProviderService.{operation}");
        let request = reqwest::Client::new().post(&self.url).body(body);
        let request = request.header("content-type", "application/x-amz-json-1.1");
        let mut request = request.header("x-amz-target", target);
        if let Some(key) = access_key {
            let signature = format!("AWS4-HMAC-SHA256 Credential={key}/20261120/us-west-2");
            request = request.header("authorization", signature);
        }
        request.send().await.expect("answer")
    }

    /// Calls an operation as an administrator. Fails with `Exception: message`.
    pub(super) async fn call(&self, operation: &str, body: Value) -> Result<Value, String> {
        let key = Some(self.provisioned.access_key_id.as_str());
        let response = self.send(operation, key, body.to_string()).await;
        let is_success = response.status().is_success();
        let answer: Value = response.json().await.expect("JSON");
        if is_success {
            return Ok(answer);
        }
        let text = |member: &str| answer[member].as_str().expect("text").to_owned();
        Err(format!("{}: {}", text("__type"), text("message")))
    }

    /// Changes a user of the actor pool as an administrator.
    pub(super) async fn change(&self, operation: &str, name: &str, mut body: Value) -> Value {
        body["UserPoolId"] = json!(self.actor().pool_id);
        body["Username"] = json!(name);
        self.call(operation, body).await.expect(operation)
    }

    /// Registers and confirms a user. Returns its `sub`.
    pub(super) async fn register(&self, email: &str, password: &str) -> String {
        let pool = self.actor();
        let body = json!({ "ClientId": pool.client_id, "SecretHash": hash(pool, email),
            "Username": email, "Password": password });
        let signed_up = self.call("SignUp", body).await.expect("signed up");
        assert_eq!(signed_up["UserConfirmed"], false);
        self.change("AdminConfirmSignUp", email, json!({})).await;
        text(&signed_up["UserSub"])
    }

    /// Calls InitiateAuth, with the secret hash over `typed`.
    pub(super) async fn initiate(
        &self,
        pool: &PoolAccess,
        flow: &str,
        typed: &str,
        password: &str,
    ) -> Result<Value, String> {
        let parameters =
            json!({ "USERNAME": typed, "PASSWORD": password, "SECRET_HASH": hash(pool, typed) });
        let body =
            json!({ "AuthFlow": flow, "ClientId": pool.client_id, "AuthParameters": parameters });
        self.call("InitiateAuth", body).await
    }

    /// Signs a user of the actor pool in with a password. Returns tokens, or a challenge.
    pub(super) async fn sign_in(&self, email: &str, password: &str) -> Value {
        let flow = "USER_PASSWORD_AUTH";
        let output = self.initiate(self.actor(), flow, email, password).await;
        output.expect("signed in")
    }

    /// Creates a user with a temporary password as an administrator. Returns its `sub`.
    pub(super) async fn create_user(&self, email: &str) -> String {
        let body = json!({ "TemporaryPassword": PASSWORD });
        text(&self.change("AdminCreateUser", email, body).await["User"]["Username"])
    }

    /// Responds to a challenge.
    pub(super) async fn respond(
        &self,
        pool: &PoolAccess,
        asked: &Value,
        responses: BTreeMap<&str, &str>,
    ) -> Result<Value, String> {
        let body = json!({ "ClientId": pool.client_id, "ChallengeName": asked["ChallengeName"],
            "Session": asked["Session"], "ChallengeResponses": responses });
        self.call("RespondToAuthChallenge", body).await
    }
}

/// Returns the secret hash of a name.
pub(super) fn hash(pool: &PoolAccess, name: &str) -> String {
    secret_hash(name, &pool.client_id, pool.client_secret.expose())
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// Returns the claims of an access token without verification.
pub(super) fn claims(answer: &Value) -> Value {
    let token = text(&answer["AuthenticationResult"]["AccessToken"]);
    let payload = token.split('.').nth(1).expect("three parts");
    let bytes = URL_SAFE_NO_PAD.decode(payload).expect("base64url");
    serde_json::from_slice(&bytes).expect("JSON")
}
