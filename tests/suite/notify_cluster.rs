//! Replicas of the notification upstream over one database, and a provider that records every call.

use std::time::Duration;

use http::StatusCode;
use postern_core::Clock;
use postern_harness::mail_token::{UNSUBSCRIBE, mail_token};
use postern_harness::paths::conf;
use postern_harness::process::{Ended, Program, Running};
use postern_harness::public_api::{message, text};
use postern_harness::wait::{answer, text_with, until};
use postern_harness::{Answer, Client, FakeClock, Pools, ports};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use postern_harness::provider::{Call, Provider};

/// The shared environment of the replicas.
pub(crate) struct NotifyCluster {
    pub(crate) provider: Provider,
    pools: Pools,
    database: String,
    /// Configuration in addition to the required settings.
    settings: String,
    /// Cache URL of the replicas. Default `memory:`.
    pub(crate) cache: String,
    /// Whether the admin routes exist, with [`ADMIN_TOKEN`].
    pub(crate) has_admin_routes: bool,
    /// The clock of the programs that are started from now on, instead of the machine's.
    pub(crate) clock: Option<FakeClock>,
    /// Maximum calls per second, counted in the cache.
    pub(crate) rate: Option<u64>,
    /// Threads of each replica. Default one per core.
    pub(crate) threads: Option<usize>,
    folder: TempDir,
    /// Token of the service that submits and reads notifications.
    pub(crate) token: String,
}

/// Mail token key of every replica and tool: 33 bytes in base64.
const TOKEN_KEY: &str = "bWFpbC10b2tlbi1rZXktb2YtdGhlLXRlc3RzLW9ubHkh";
/// Secret of the admin routes.
pub(crate) const ADMIN_TOKEN: &str = "notify-admin-token-of-the-tests-only";
/// The id of no notification.
pub(crate) const UNKNOWN_ID: &str = "0190a5d0-0000-7000-8000-000000000001";
/// Name of the recording provider in the replicas' configuration and logs.
pub(crate) const PROVIDER_NAME: &str = "record";

/// A replica process, with clients of its listeners.
pub(crate) struct Replica {
    pub(crate) running: Running,
    client: Client,
    pub(crate) admin: Client,
}

impl Replica {
    /// Stops the process, which must end with status 0.
    pub(crate) async fn stop(self) {
        let ended = self.running.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

impl NotifyCluster {
    /// Creates a cluster over a database. `settings` are appended to the configuration of each
    /// replica.
    pub(crate) async fn over(database: &str, settings: &str) -> Self {
        Self::with_pools(database, settings, Pools::start().await).await
    }

    /// As [`NotifyCluster::over`], with the tokens of these pools.
    pub(crate) async fn with_pools(database: &str, settings: &str, pools: Pools) -> Self {
        let provider = Provider::start().await;
        let token = pools.service_token("document").await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self {
            provider,
            pools,
            database: database.to_owned(),
            settings: settings.to_owned(),
            cache: "memory:".to_owned(),
            has_admin_routes: false,
            clock: None,
            rate: None,
            threads: None,
            folder,
            token,
        }
    }

    /// Starts a replica and waits until it is ready.
    pub(crate) async fn replica(&self) -> Replica {
        let mut replica = self.start();
        replica.running.until_ready().await;
        replica
    }

    fn start(&self) -> Replica {
        let ports = [ports::free(1), ports::free(1)];
        let [client, admin] = ports.map(|port| Client::new(&format!("http://127.0.0.1:{port}")));
        Replica {
            running: self.program(&self.config(ports)).start(),
            client,
            admin,
        }
    }

    /// Runs a command line tool with the replicas' configuration.
    pub(crate) async fn tool(&self, arguments: &[&str]) -> Ended {
        self.tool_program(arguments).run().await
    }

    fn tool_program(&self, arguments: &[&str]) -> Program {
        let program = self.program(&self.config([ports::free(1), ports::free(1)]));
        program.args(arguments.iter().copied())
    }

    /// Runs a command line tool with standard input.
    pub(crate) async fn pipe(&self, arguments: &[&str], input: &str) -> Ended {
        let file = self.folder.path().join("input");
        std::fs::write(&file, input).expect("the test's folder can be written");
        self.tool_program(arguments).input(file).run().await
    }

    fn program(&self, config: &str) -> Program {
        let program = Program::of_workspace("postern-notify", self.folder.path());
        let clock = self.clock.iter();
        let program = clock.fold(program, |program, clock| clock.of(program));
        let program = match self.threads {
            Some(threads) => program.env("TOKIO_WORKER_THREADS", threads.to_string()),
            None => program,
        };
        let env = self.pools.env();
        let names = [
            "IDP_ACTOR_POOL_ID",
            "IDP_ACTOR_CLIENT_ID",
            "IDP_SERVICE_POOL_ID",
            "IDP_SERVICE_CLIENT_ID",
            "IDP_SERVICE_CLIENT_SECRET",
            "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER",
            "CLOUD_REGION",
        ];
        let name = format!("{}.toml", uuid::Uuid::new_v4().simple());
        let known = names
            .into_iter()
            .filter_map(|name| Some((name, env.get(name)?)));
        let program = program.envs(known).env("NOTIFY_TOKEN_KEY", TOKEN_KEY);
        let program = program.env("NOTIFY_ADMIN_TOKEN", ADMIN_TOKEN);
        program.config(&name, config)
    }

    fn config(&self, [public, admin]: [u16; 2]) -> String {
        let templates = conf().join("templates").canonicalize();
        let templates = templates.expect("conf/templates exists");
        let Self {
            database,
            settings,
            cache,
            provider,
            ..
        } = self;
        let url = provider.url();
        let token = match self.has_admin_routes {
            true => ", token_env = \"NOTIFY_ADMIN_TOKEN\"",
            false => "",
        };
        let rate = self
            .rate
            .map(|rate| format!("rate = {rate}"))
            .unwrap_or_default();
        format!(
            r#"listen = [{{ address = "127.0.0.1:{public}" }}]
admin = {{ address = "127.0.0.1:{admin}"{token} }}
database = "{database}"
cache = "{cache}"
{settings}
[templates]
folder = "{templates}"
[log]
filter = "warn"
[[provider]]
name = "{PROVIDER_NAME}"
channel = "sms"
kind = "http"
url = "{url}/messages"
{rate}
body = '{{"text": {{{{ text }}}}, "to": {{{{ to }}}}}}'
"#,
            templates = templates.display()
        )
    }

    fn client(&self, replica: &Replica) -> Client {
        replica.client.with_token(&self.token)
    }

    /// Submits a notification once and returns the response, if there is one.
    pub(crate) async fn post(
        &self,
        replica: &Replica,
        key: &str,
        priority: &str,
    ) -> Option<Answer> {
        let request = self.client(replica).post("/notifications");
        let request = request.header("idempotency-key", key);
        request.json(&text_message(priority)).try_send().await
    }

    /// Submits a notification once and returns its id if it was accepted.
    pub(crate) async fn try_post(
        &self,
        replica: &Replica,
        key: &str,
        priority: &str,
    ) -> Option<String> {
        let answer = self.post(replica, key, priority).await?;
        (answer.status == 201).then(|| answer.string("/notificationId"))
    }

    /// Submits a notification, which must be accepted, and returns its id.
    pub(crate) async fn accept(&self, replica: &Replica, key: &str, priority: &str) -> String {
        let answer = self.post(replica, key, priority).await;
        let answer = answer.unwrap_or_else(|| panic!("{key}: no answer"));
        answer.expect(201).string("/notificationId")
    }

    /// Waits until the provider has been called this many times.
    pub(crate) async fn wait_for_calls(&self, count: usize, timeout: Duration) {
        let all = |calls: &[Call]| calls.len() == count;
        self.provider.until(timeout, all).await;
    }

    /// Submits a notification of normal priority and waits until it is sent.
    pub(crate) async fn deliver(&self, replica: &Replica, key: &str) {
        let id = self.accept(replica, key, "NORMAL").await;
        self.settled(replica, &id, "SENT").await;
    }

    /// Submits a notification until it is accepted, and waits until it is sent.
    pub(crate) async fn deliver_after_recovery(&self, replica: &Replica, key: &str) {
        let id = answer(async || {
            let id = self.try_post(replica, key, "NORMAL").await;
            id.ok_or_else(|| format!("{key} is not accepted without a restart"))
        });
        self.settled(replica, &id.await, "SENT").await;
    }

    /// Submits a notification that is due a day later, and returns its id.
    pub(crate) async fn post_scheduled(&self, replica: &Replica) -> String {
        let send_at = Clock::system().now().plus(Duration::from_secs(86_400));
        let mut body = text_message("NORMAL");
        body["sendAt"] = json!(send_at);
        self.submit(replica, &body).await
    }

    async fn submit(&self, replica: &Replica, body: &Value) -> String {
        let client = self.client(replica);
        let accepted = client.posted("/notifications", body, 201).await;
        accepted.string("/notificationId")
    }

    /// Uses another database for the replicas and tools that are started from now on.
    pub(crate) fn use_database(&mut self, url: &str) {
        url.clone_into(&mut self.database);
    }

    /// Submits an e-mail notification and returns its id.
    pub(crate) async fn post_mail(&self, replica: &Replica, to: &str) -> String {
        let body = message("email", &json!({"email": to}));
        self.submit(replica, &body).await
    }

    /// Submits mails until one ends with this reason, or is sent for `None`: the decision of
    /// another process reaches this one within seconds.
    pub(crate) async fn wait_for_mail_outcome(
        &self,
        replica: &Replica,
        to: &str,
        reason: Option<&str>,
    ) {
        let what = format!("a mail to {to} ends with {reason:?}");
        let is_expected = async || {
            let path = format!("/notifications/{}", self.post_mail(replica, to).await);
            let view = self.client(replica).settled(&path).await;
            view["reason"].as_str() == reason
        };
        until(&what, is_expected).await;
    }

    /// Returns the token of a mail to an address.
    pub(crate) fn mail_token(&self, purpose: &str, id: &str, address: &str) -> String {
        mail_token(TOKEN_KEY, purpose, id, address)
    }

    /// Sends the request of an unsubscribe link.
    pub(crate) async fn unsubscribe(&self, replica: &Replica, id: &str, address: &str) {
        let token = self.mail_token(UNSUBSCRIBE, id, address);
        let click = replica
            .client
            .post(&format!("/unsubscriptions?token={token}"));
        let click = click.form(&[("List-Unsubscribe", "One-Click")]);
        let _ = click.send().await.expect(204);
    }

    /// Waits until a replica that has started is not ready for a reason that contains this text.
    pub(crate) async fn wait_until_not_ready(&self, replica: &Replica, reason: &str) {
        text_with(reason, async || {
            let ready = replica.admin.get("/readyz").send().await;
            match (ready.status.as_u16(), ready.text()) {
                (503, text) if !text.contains("\"starting\"") => text,
                _ => String::new(),
            }
        })
        .await;
    }

    /// Submits a batch and returns the ids in order.
    pub(crate) async fn post_batch(&self, replica: &Replica, priorities: &[&str]) -> Vec<String> {
        let all = priorities.iter().map(|priority| text_message(priority));
        let body = json!({"notifications": all.collect::<Vec<_>>()});
        let client = self.client(replica);
        let answer = client.posted("/notification-batches", &body, 200).await;
        let results = answer.json()["results"].take();
        let ids = results.as_array().expect("results").iter();
        ids.map(|result| text(result, "notificationId").to_owned())
            .collect()
    }

    /// Submits a batch body. Returns the status, or `None` if the connection was closed before the
    /// body was sent.
    pub(crate) async fn post_body(&self, replica: &Replica, body: &Value) -> Option<StatusCode> {
        let request = self.client(replica).post("/notification-batches");
        let request = request.body("application/json", body.to_string());
        request.try_send().await.map(|answer| answer.status)
    }

    /// Returns the response of a route of the admin listener.
    pub(crate) async fn read(&self, replica: &Replica, path: &str) -> Value {
        let admin = replica.admin.with_token(ADMIN_TOKEN);
        admin.read(&format!("/admin/{path}")).await
    }

    /// Makes a change at the admin listener as the operator `ada`, and returns the response.
    pub(crate) async fn change(&self, replica: &Replica, path: &str, body: &Value) -> Value {
        let request = replica.admin.with_token(ADMIN_TOKEN);
        let request = request.post(&format!("/admin/{path}")).json(body);
        let changed = request.header("x-postern-operator", "ada").send().await;
        changed.expect(200).json()
    }

    /// Returns a new token, at the time of the pools.
    pub(crate) async fn new_token(&self) -> String {
        self.pools.service_token("document").await
    }

    /// Starts a replica that does not become ready, and waits until it answers.
    pub(crate) async fn unready_replica(&self) -> Replica {
        let replica = self.start();
        let answers = async || replica.admin.get("/livez").try_send().await.is_some();
        until("the replica answers", answers).await;
        replica
    }

    /// Returns the body of `/readyz`.
    pub(crate) async fn readiness(&self, replica: &Replica) -> Value {
        replica.admin.get("/readyz").send().await.json()
    }

    /// Returns the status document.
    pub(crate) async fn status(&self, replica: &Replica, id: &str) -> Value {
        let request = self.client(replica).get(&format!("/notifications/{id}"));
        request.send().await.json()
    }

    /// Returns a metric of a replica, or 0 if it does not exist.
    pub(crate) async fn metric(&self, replica: &Replica, name: &str) -> u64 {
        let text = replica.admin.fetch("/metrics", 200).await.text();
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or(0)
    }

    /// Polls a notification's status until it is as expected, as a client does.
    pub(crate) async fn settled(&self, replica: &Replica, id: &str, status: &str) {
        let reached = async || self.status(replica, id).await["status"] == status;
        until(&format!("{id} is {status}"), reached).await;
    }

    /// Polls a replica's metrics until a value is reached.
    pub(crate) async fn wait_for_metric(&self, replica: &Replica, name: &str, value: u64) {
        let reached = async || self.metric(replica, name).await >= value;
        until(&format!("{name} is {value}"), reached).await;
    }
}

/// Returns the body of a text message.
fn text_message(priority: &str) -> Value {
    let mut body = message("sms", &json!({"phone": "+491701234567"}));
    body["priority"] = priority.into();
    body
}
