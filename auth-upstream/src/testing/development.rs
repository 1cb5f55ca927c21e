//! The development services in this process, behind a [`FaultProxy`], and their operator's view.

use std::net::SocketAddr;

use postern_core::Clock;
use postern_core::identity::secret_hash;
use postern_dev::data_folder::DataFolder;
use postern_dev::pool::ProvisionedPools;
use postern_dev::{Addresses, DevelopmentServices, DevelopmentSockets};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::fault_proxy::{FaultProxy, Targets, http};

/// The files of a data folder with pools, accounts and keys. Their generation takes seconds, so that
/// all tests of this process start with copies of them.
static TEMPLATE: OnceCell<Vec<(String, Vec<u8>)>> = OnceCell::const_new();

pub(super) struct Development {
    pub(super) faults: FaultProxy,
    pub(super) pool: PoolOperator,
    /// The base URL of all services, which is the proxy's.
    pub(super) url: String,
    pub(super) variables: Vec<(&'static str, String)>,
    _folder: TempDir,
}

/// The identity pool as its operator sees it. Its calls do not pass the proxy.
pub(crate) struct PoolOperator {
    url: String,
    pools: ProvisionedPools,
}

// === impl Development ===

impl Development {
    pub(super) async fn start(clock: &Clock) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in TEMPLATE.get_or_init(template).await {
            std::fs::write(folder.path().join(name), content).expect("written");
        }
        let (proxy, address) = listen().await;
        let (services, sockets) = build(&folder, address, clock).await;
        let base = |socket: &TcpListener| url(socket.local_addr().expect("bound"));
        let pool = PoolOperator {
            url: base(&sockets.identity_pool),
            pools: services.provisioned().clone(),
        };
        let targets = Targets {
            pool: pool.url.clone(),
            social: base(&sockets.social),
            actors: base(&sockets.actor),
        };
        let variables = services.variables(Some("auth"));
        for (_, part) in services.parts(sockets, &CancellationToken::new()) {
            tokio::spawn(part);
        }
        Self {
            faults: FaultProxy::start(proxy, targets),
            pool,
            url: url(address),
            variables,
            _folder: folder,
        }
    }

    pub(super) fn variable(&self, name: &str) -> &str {
        let mut found = self.variables.iter().filter(|(known, _)| *known == name);
        &found.next().expect("a variable").1
    }
}

async fn template() -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, address) = listen().await;
    let (services, sockets) = build(&folder, address, &Clock::system()).await;
    // Closes the stores.
    let stop = CancellationToken::new();
    stop.cancel();
    let parts = services.parts(sockets, &stop).into_iter();
    futures_util::future::join_all(parts.map(|(_, part)| part)).await;
    let entries = std::fs::read_dir(folder.path()).expect("the folder");
    let files = entries.filter_map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, std::fs::read(path).ok()?))
    });
    files.collect()
}

async fn build(
    folder: &TempDir,
    address: SocketAddr,
    clock: &Clock,
) -> (DevelopmentServices, DevelopmentSockets) {
    let data = DataFolder::acquire(folder.path()).expect("not in use");
    let addresses = Addresses {
        proxy: address,
        auth: address,
        notify: address,
        identity_pool: address,
        actor: address,
        document: address,
        social: address,
        smtp: address,
        mail: address,
        proxy_admin: address,
        auth_admin: address,
        notify_admin: address,
        console: address,
    };
    let services = DevelopmentServices::build(&data, &addresses, None, clock);
    let sockets = DevelopmentSockets {
        identity_pool: listen().await.0,
        actor: listen().await.0,
        document: listen().await.0,
        social: listen().await.0,
        smtp: listen().await.0,
        mail: listen().await.0,
    };
    (Box::pin(services).await.expect("built"), sockets)
}

pub(super) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

// === impl PoolOperator ===

impl PoolOperator {
    /// Calls an operation on the actor pool. Fails with the name of an exception.
    pub(crate) async fn call(&self, operation: &str, mut body: Value) -> Result<Value, String> {
        body["UserPoolId"] = json!(self.pools.actor.pool_id);
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/20261120/{}/cognito-idp/aws4_request, \
             SignedHeaders=host, Signature={:0>64}",
            self.pools.access_key_id, self.pools.region, 0
        );
        let target = format!("AWSCognitoIdentityProviderService.{operation}");
        let request = http().post(&self.url).body(body.to_string());
        let request = request.header("content-type", "application/x-amz-json-1.1");
        let request = request.header("x-amz-target", target);
        let response = request.header("authorization", authorization).send();
        let response = response.await.expect("the pool answers");
        let is_success = response.status().is_success();
        let answer: Value = response.json().await.expect("JSON");
        if is_success {
            return Ok(answer);
        }
        Err(answer["__type"].as_str().unwrap_or_default().to_owned())
    }

    async fn change(&self, operation: &str, body: Value) {
        self.call(operation, body).await.expect(operation);
    }

    /// Creates a user with a password of their own. Returns the subject.
    pub(crate) async fn add_user(&self, email: &str, password: &str, is_verified: bool) -> String {
        let verified = is_verified.to_string();
        let attributes = json!([{ "Name": "email_verified", "Value": verified }]);
        let user =
            json!({ "Username": email, "MessageAction": "SUPPRESS", "UserAttributes": attributes });
        self.change("AdminCreateUser", user).await;
        self.set_password(email, password, true).await;
        self.subject(email).await.expect("created")
    }

    /// Sets a permanent password, or one that the user must replace.
    pub(crate) async fn set_password(&self, email: &str, password: &str, is_permanent: bool) {
        let body = json!({ "Username": email, "Password": password, "Permanent": is_permanent });
        self.change("AdminSetUserPassword", body).await;
    }

    /// Calls an operation that has no other parameter than the user.
    pub(crate) async fn change_user(&self, operation: &str, name: &str) {
        self.change(operation, json!({ "Username": name })).await;
    }

    pub(crate) async fn subject(&self, email: &str) -> Option<String> {
        let user = self.call("AdminGetUser", json!({ "Username": email }));
        Some(user.await.ok()?["Username"].as_str()?.to_owned())
    }

    /// Returns the answer to a complete sign-in.
    pub(crate) async fn sign_in(&self, email: &str, password: &str) -> Value {
        let actor = &self.pools.actor;
        let hash = secret_hash(email, &actor.client_id, actor.client_secret.expose());
        let parameters = json!({ "USERNAME": email, "PASSWORD": password, "SECRET_HASH": hash });
        let flow = "USER_PASSWORD_AUTH";
        let body =
            json!({ "AuthFlow": flow, "ClientId": actor.client_id, "AuthParameters": parameters });
        let answer = self.call("InitiateAuth", body).await;
        answer.expect("the password is right")
    }
}
