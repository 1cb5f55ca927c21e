//! The three processes with dependencies that fail on demand, and the incidents of auth and notify.

use std::path::{Path, PathBuf};

use postern_harness::paths::repository;
use postern_harness::process::{Program, Running};
use postern_harness::public_api::message;
use postern_harness::wait::text_with;
use postern_harness::{
    Answer, Changes, Client, Installation, Origin, Person, PublicApi, Standalone,
};
use postern_store::cache::testing::RedisServer;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;

use super::console_view::{ADMIN_TOKEN, READER};
use super::evidence::Evidence;
use super::fault_proxy::FaultProxy;
use super::{authentication, delivery, dependencies, latency};
use postern_harness::stores::OwnPostgres;

/// The SID of the Twilio account, which does not exist.
const TWILIO_ACCOUNT: &str = "AC00000000000000000000000000000000";

/// Notifications per minute of each user.
pub(super) const USER_QUOTA: usize = 5;

/// The processes, and what they depend on.
pub(super) struct Services {
    pub(super) split: Installation,
    pub(super) evidence: Evidence,
    pub(super) database: OwnPostgres,
    pub(super) redis: RedisServer,
    /// A mail server of aiosmtpd; `None` after it was stopped.
    pub(super) mail: Option<Running>,
    pub(super) actor: FaultProxy,
    pub(super) social: FaultProxy,
    pub(super) pool: FaultProxy,
    /// A service that may send to everybody.
    pub(super) service: Client,
    _mail_folder: TempDir,
}

impl Services {
    pub(super) async fn start() -> Self {
        let mail_folder = tempfile::tempdir().expect("a folder");
        let (mail, mail_port) = start_mail(mail_folder.path()).await;
        let development = Standalone::start().await;
        let addresses = development.addresses();
        let actor = FaultProxy::start(&format!("http://{}", addresses.actor)).await;
        let social = FaultProxy::start(&format!("http://{}", addresses.social)).await;
        let endpoint = development
            .surface()
            .env("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER");
        let pool = FaultProxy::start(endpoint).await;
        let twilio = json!({"code": 20003, "message": "Authenticate", "status": 401});
        let twilio = Origin::answering(&[("", 401, twilio)]).await;
        let database = OwnPostgres::start().await;
        let redis = RedisServer::start(&["--save", "", "--appendonly", "no"]).await;
        let auth = create(&database, "auth").await;
        let notify = create(&database, "notify").await;
        let changes = Changes {
            notify: sms_provider(&twilio.url()),
            mail_port: Some(mail_port),
            tables: identity_tables(development.surface(), endpoint),
            env: secrets(&pool),
            set: settings(&actor, &social),
            admin_token: Some(ADMIN_TOKEN.to_owned()),
            stores: Some([auth, notify, redis.url()]),
            ..Changes::default()
        };
        let split = Installation::over(development, changes).await;
        for name in ["auth", "notify"] {
            let from = split.folder().join(format!("postern-{name}.toml"));
            let to = split.folder().join(format!("{name}.toml"));
            std::fs::copy(from, to).expect("the folder can be written");
        }
        let sections = ["Authentication", "Notification", "Dependencies"];
        let token = split.development().service_token(READER).await;
        let evidence = Evidence::of(&sections, &split.admin_ports(), &token).await;
        let service = split.surface().client().with_token(&token);
        Self {
            split,
            evidence,
            database,
            redis,
            mail: Some(mail),
            actor,
            social,
            pool,
            service,
            _mail_folder: mail_folder,
        }
    }

    /// Stops everything that was started.
    pub(super) async fn stop(self) {
        self.split.stop().await;
        self.database.stop().await;
    }

    /// Proves an incident, after its fault was planted.
    pub(super) async fn prove(&mut self, name: &str, output: &str) {
        let Self {
            split, evidence, ..
        } = self;
        evidence.prove(name, || split.log(), output).await;
    }

    /// Sends a JSON body without a token.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.split.surface().client().post_json(path, body).await
    }

    /// Submits a notification as a service and returns its id.
    pub(super) async fn submit(&self, channel: &str, recipient: Value) -> String {
        let mut body = message(channel, &recipient);
        body["priority"] = "CRITICAL".into();
        let created = self.service.posted("/notifications", &body, 201).await;
        created.string("/notificationId")
    }

    /// Returns the output of a command once it contains a text: results are stored in groups.
    pub(super) async fn output(&self, name: &str, arguments: &[&str], expected: &str) -> String {
        let arguments: Vec<&str> = match name {
            "postern" => [&arguments[..1], &["--config", "."], &arguments[1..]].concat(),
            "postern-auth" => [&["--config", "auth.toml"], arguments].concat(),
            _ => [&["--config", "notify.toml"], arguments].concat(),
        };
        let program = self.split.tool(name);
        let program = program.args(arguments.iter().copied());
        text_with(expected, async || {
            let ended = program.run().await;
            format!("{}{}", ended.stdout, ended.stderr)
        })
        .await
    }

    /// Returns what `postern-notify show` prints once it contains a text.
    pub(super) async fn show(&self, id: &str, expected: &str) -> String {
        self.output("postern-notify", &["show", id], expected).await
    }

    /// Returns the time line of a person once it contains a text.
    pub(super) async fn timeline(&self, person: &Person, expected: &str) -> String {
        let arguments = ["timeline", "--email", &person.email];
        self.output("postern", &arguments, expected).await
    }

    /// Returns `/readyz` of a process once it contains a text.
    pub(super) async fn readiness(&self, process: &str, expected: &str) -> String {
        let ports = self.split.admin_ports();
        let port = ports.iter().find(|(name, _)| *name == process);
        let (_, port) = port.expect("a process");
        let admin = Client::new(&format!("http://127.0.0.1:{port}"));
        let ask = async || admin.get("/readyz").send().await.text();
        text_with(expected, ask).await
    }
}

/// Returns the variables of the processes.
fn secrets(pool: &FaultProxy) -> Vec<(&'static str, String)> {
    let webhook = "whsec_YSBrZXkgb2YgdGhpcnR5LXR3byBieXRlcyBvciBtb3Jl";
    vec![
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", pool.url()),
        ("TWILIO_TOKEN", "a-token-of-another-account".to_owned()),
        ("WEBHOOK_SECRET", webhook.to_owned()),
    ]
}

/// Returns the changed settings of the processes.
fn settings(actor: &FaultProxy, social: &FaultProxy) -> Vec<(&'static str, &'static str, String)> {
    let actor = format!("\"{}\"", actor.url());
    let provider = format!("\"google\"\ntoken_endpoint = \"{}/token\"", social.url());
    vec![
        ("postern-auth", "actor_service", actor.clone()),
        ("postern-notify", "actor_service", actor),
        ("postern-notify", "user_quota", USER_QUOTA.to_string()),
        ("postern-auth", "name", provider),
    ]
}

/// Starts a mail server and returns its port.
async fn start_mail(folder: &Path) -> (Running, u16) {
    let program = repository().join("tests/peers/notify/mail");
    let program = Program::at(program, folder).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let mut mail = program.start();
    let said = mail.wait_for_line("port ").await.concat();
    let port = said.trim_start_matches("port ").parse().expect("a port");
    (mail, port)
}

/// Creates a database and returns its URL.
async fn create(server: &OwnPostgres, name: &str) -> String {
    let connection = PgConnection::connect(server.url()).await;
    let mut connection = connection.expect("PostgreSQL answers");
    let create = format!("CREATE DATABASE {name} TEMPLATE template0");
    let created = connection.execute(AssertSqlSafe(create)).await;
    created.expect("created");
    let mut url = url::Url::parse(server.url()).expect("a URL");
    url.set_path(name);
    url.to_string()
}

/// The provider of text messages, which takes nearly all of them, and the webhooks.
fn sms_provider(base: &str) -> String {
    format!(
        "[[provider]]\nname = \"twilio\"\nchannel = \"sms\"\nkind = \"twilio\"\nweight = 1000\n\
         account = \"{TWILIO_ACCOUNT}\"\nauth_token_env = \"TWILIO_TOKEN\"\nfrom = \"+15005550006\"\n\
         base = \"{base}\"\n[webhooks.standard]\nsecret_env = \"WEBHOOK_SECRET\"\n"
    )
}

/// The issuers of the pools, of which the API is called through a proxy.
fn identity_tables(surface: &PublicApi, endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    let pools = ["IDP_ACTOR_POOL_ID", "IDP_SERVICE_POOL_ID"];
    let [actor, service] = pools.map(|name| surface.env(name));
    format!(
        "[identity.actor]\nissuer = \"{endpoint}/{actor}\"\n[identity.service]\nissuer = \"{endpoint}/{service}\"\n"
    )
}

#[tokio::test]
async fn incidents_of_the_services_name_their_causes() {
    let mut services = Services::start().await;
    delivery::plant(&mut services).await;
    authentication::plant(&mut services).await;
    latency::slow_identity_pool(&services).await;
    dependencies::plant(&mut services).await;
    let Services {
        split,
        evidence,
        database,
        ..
    } = services;
    let work: PathBuf = split.folder().to_owned();
    evidence.finish(&split.log(), &work);
    split.stop().await;
    database.stop().await;
}
