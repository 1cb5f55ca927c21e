//! A gateway in front of one origin, with a user pool that signs tokens.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{App, Listeners};

/// The secret of the routes under `/admin/`.
pub(super) const ADMIN_TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) const ROUTES: &str = r#"
[[route]]
name = "open"
path = "/open"
methods = ["GET", "POST"]
upstream = "origin"
policy = "public"

[[route]]
name = "any"
path = "/any/{id}"
methods = ["GET", "POST"]
upstream = "origin"
policy = { users = "any", services = "any" }

[[route]]
name = "auth-only"
path = "/auth-only"
methods = ["GET"]
upstream = "origin"
policy = { services = ["auth"] }

[[route]]
name = "socket"
path = "/socket"
methods = ["GET"]
upstream = "origin"
policy = { users = "any" }
websocket = true
"#;

pub(super) fn route(name: &str, path: &str, lines: &str) -> String {
    route_of([name, path, "\"GET\", \"POST\"", lines])
}

/// Returns a route with these methods and further lines: to the origin, unless the gateway answers.
pub(super) fn route_of([name, path, methods, lines]: [&str; 4]) -> String {
    let is_answered = lines.contains("redirect") || lines.contains("respond");
    let upstream = match is_answered || lines.contains("upstream = ") {
        true => "",
        false => "upstream = \"origin\"",
    };
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"{path}\"\nmethods = [{methods}]\n{upstream}\n{lines}\n"
    )
}

/// Returns routes of a table: name, path, methods and other lines of each.
pub(super) fn route_table(table: &str) -> String {
    let route = |row: [String; 4]| route_of(row.each_ref().map(String::as_str));
    rows(table).into_iter().map(route).collect()
}

/// Returns the variables of both user pools, whose keys are at this URL, and of the admin listener.
pub(super) fn pool_env(url: &str) -> Env {
    const URL: &str = "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER";
    Env::from([
        (URL, url),
        ("ADMIN_TOKEN", ADMIN_TOKEN),
        ("IDP_ACTOR_POOL_ID", "actors"),
        ("IDP_ACTOR_CLIENT_ID", "web"),
        ("IDP_SERVICE_POOL_ID", "services"),
        ("IDP_SERVICE_CLIENT_ID", "machines"),
    ])
}

/// Parts of the configuration file of a [`TestGateway`]: lines of `[[listen]]`, of `[upstream.origin]`
/// and of `[limits]`, of which `body_bytes` and `deadline` are those of `[defaults]`; and the routes.
struct ConfigParts<'a>(&'a str, &'a str, &'a str, &'a str);

impl ConfigParts<'_> {
    /// Returns the configuration file. The upstream has the address of the origin, unless its lines
    /// have others, in which `{origin}` is replaced.
    fn text(&self, access_log: &Path, origin: SocketAddr) -> String {
        let Self(listen, upstream, limits, routes) = self;
        let is_default =
            |line: &&str| line.starts_with("body_bytes = ") || line.starts_with("deadline = ");
        let (mut defaults, limits): (Vec<&str>, Vec<&str>) = limits.lines().partition(is_default);
        if !defaults.is_empty() {
            defaults.insert(0, "[defaults]");
        }
        let (defaults, limits) = (defaults.join("\n"), limits.join("\n"));
        let mut own = upstream.lines().take_while(|line| !line.starts_with('['));
        let addresses = match own.any(|line| line.starts_with("addresses = ")) {
            true => String::new(),
            false => format!("addresses = [\"{origin}\"]\n"),
        };
        format!(
            "[[listen]]\naddress = \"127.0.0.1:1\"\n{listen}\n\
             [access_log]\nto = \"{}\"\n[admin]\naddress = \"127.0.0.1:3\"\ntoken_env = \"ADMIN_TOKEN\"\n{defaults}\n[limits]\n{limits}\n\
             [upstream.origin]\n{addresses}{}\n{routes}",
            access_log.display(),
            upstream.replace("{origin}", &origin.to_string())
        )
    }
}

/// A running gateway, its origin and its user pool.
pub(super) struct TestGateway {
    pub(super) address: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) origin: TestOrigin,
    pub(super) shutdown: CancellationToken,
    pub(super) running: JoinHandle<()>,
    pub(super) log: tempfile::TempDir,
    admin_client: reqwest::Client,
    key: Arc<EcdsaKeyPair>,
    issuer: String,
}

impl TestGateway {
    pub(super) async fn start(behavior: OriginBehavior) -> Self {
        Self::with(behavior, "", "").await
    }

    /// `limits` are lines of `[limits]`, `upstream` lines of `[upstream.origin]` and further tables.
    pub(super) async fn with(behavior: OriginBehavior, limits: &str, upstream: &str) -> Self {
        Self::routed(behavior, upstream, limits, ROUTES).await
    }

    pub(super) async fn routed(
        behavior: OriginBehavior,
        upstream: &str,
        limits: &str,
        routes: &str,
    ) -> Self {
        Self::launch(behavior, ConfigParts("", upstream, limits, routes)).await
    }

    pub(super) async fn before(
        origin: TestOrigin,
        upstream: &str,
        limits: &str,
        routes: &str,
    ) -> Self {
        let parts = ConfigParts("", upstream, limits, routes);
        Self::run(vec![bind_narrow()], origin, parts).await
    }

    /// `tls` is the table `[listen.tls]`.
    pub(super) async fn behind_tls(
        behavior: OriginBehavior,
        upstream: &str,
        limits: &str,
        tls: &str,
    ) -> Self {
        Self::launch(behavior, ConfigParts(tls, upstream, limits, ROUTES)).await
    }

    /// Starts a gateway on these sockets. `listen` are the lines of the first `[[listen]]`, and
    /// further tables.
    pub(super) async fn on_listeners(public: Vec<TcpListener>, listen: &str) -> Self {
        let origin = TestOrigin::start(OriginBehavior::Answer).await;
        Self::run(public, origin, ConfigParts(listen, "", "", ROUTES)).await
    }

    /// Starts a gateway without TLS, for clients of HTTP/1.1 and HTTP/2.
    pub(super) async fn h2c(
        behavior: OriginBehavior,
        upstream: &str,
        limits: &str,
        routes: &str,
    ) -> Self {
        Self::launch(
            behavior,
            ConfigParts("h2c = true", upstream, limits, routes),
        )
        .await
    }

    /// Starts a gateway whose upstream gets no requests. `listen` are lines of `[[listen]]`.
    pub(super) async fn answering(listen: &str, limits: &str, routes: &str) -> Self {
        let parts = ConfigParts(listen, "", limits, routes);
        Self::launch(OriginBehavior::Answer, parts).await
    }

    async fn launch(behavior: OriginBehavior, parts: ConfigParts<'_>) -> Self {
        let origin = TestOrigin::start(behavior).await;
        Self::run(vec![bind_narrow()], origin, parts).await
    }

    async fn run(public: Vec<TcpListener>, origin: TestOrigin, parts: ConfigParts<'_>) -> Self {
        let (address, admin) = (public[0].local_addr().expect("bound"), bind().await);
        let admin_address = admin.local_addr().expect("bound");
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let pool = serve_keys(&key).await;
        let log = tempfile::tempdir().expect("a folder");
        let text = parts.text(&log.path().join("access.log"), origin.address);
        let issuer = format!("http://{pool}");
        let env = pool_env(&issuer);
        let config = parse("test.toml", &text, |root| Config::read(root, &env));
        let app = App::build(config.expect("a valid configuration"), Clock::system());
        let file = log.path().join("proxy.toml");
        std::fs::write(&file, &text).expect("writes");
        let app = app.expect("builds").watch(file, env);
        let shutdown = CancellationToken::new();
        let admin = Some(admin);
        let running = tokio::spawn(app.run(Listeners { public, admin }, shutdown.clone()));
        let admin_client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
        Self {
            address,
            admin: admin_address,
            origin,
            shutdown,
            running,
            log,
            admin_client: admin_client.build().expect("a client"),
            key: Arc::new(key),
            issuer,
        }
    }

    pub(super) fn user_issuer(&self) -> String {
        format!("{}/actors", self.issuer)
    }

    pub(super) fn user(&self) -> String {
        self.user_until(4_000_000_000)
    }

    /// Returns a user token that expires at this Unix time in seconds.
    pub(super) fn user_until(&self, exp: i64) -> String {
        self.user_with(&json!({ "scope": "read write", "exp": exp }))
    }

    pub(super) fn user_named(&self, subject: &str) -> String {
        self.user_with(&json!({ "sub": subject, "scope": "read" }))
    }

    pub(super) fn user_with(&self, claims: &Value) -> String {
        let mut all = json!({
            "iss": self.user_issuer(), "sub": "ada", "username": "ada", "token_use": "access",
            "client_id": "web", "exp": 4_000_000_000_i64, "iat": 1_700_000_000,
        });
        for (name, claim) in claims.as_object().expect("an object") {
            all[name] = claim.clone();
        }
        self.sign(&all)
    }

    pub(super) fn service(&self, name: &str) -> String {
        let claims = json!({
            "iss": format!("{}/services", self.issuer), "sub": "s-1", "token_use": "id", "aud": "machines",
            "custom:service_id": name, "exp": 4_000_000_000_i64, "iat": 1_700_000_000,
        });
        self.sign(&claims)
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": "k1", "typ": "JWT"}).to_string();
        let [header, claims] = [header, claims.to_string()].map(|part| BASE64.encode(part));
        let text = format!("{header}.{claims}");
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes());
        format!("{text}.{}", BASE64.encode(signature.expect("signs")))
    }

    pub(super) fn bearer(&self) -> String {
        bearer(&self.user())
    }

    /// Opens a WebSocket of `/socket` with these fields.
    pub(super) async fn tunnel(&self, fields: &str) -> RawClient {
        let mut client = self.connect().await;
        let request = format!("GET /socket HTTP/1.1\r\nHost: h\r\n{fields}{UPGRADE}\r\n");
        assert_eq!(client.ask(&request).await.status, 101);
        client
    }

    pub(super) async fn connect(&self) -> RawClient {
        RawClient::connect(self.address).await
    }

    /// Sends raw bytes on a new connection.
    pub(super) async fn begin(&self, raw: &str) -> RawClient {
        let mut client = self.connect().await;
        client.write(raw).await;
        client
    }

    /// Sends raw bytes on a new connection and reads one response.
    pub(super) async fn send(&self, raw: &str) -> RawResponse {
        self.connect().await.ask(raw).await
    }

    /// Sends a request with additional header lines.
    pub(super) async fn get(&self, target: &str, headers: &str) -> RawResponse {
        let request = format!("GET {target} HTTP/1.1\r\nHost: gate\r\n{headers}\r\n");
        self.send(&request).await
    }

    pub(super) async fn status(&self, target: &str, headers: &str) -> u16 {
        self.get(target, headers).await.status
    }

    pub(super) async fn admin_get(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.admin);
        let response = self.admin_client.get(url).send().await;
        let response = response.expect("a response");
        response.text().await.expect("text")
    }

    /// Returns a request to the admin listener with the secret, and `operator` if it is not empty.
    pub(super) fn admin_request(
        &self,
        method: reqwest::Method,
        path: &str,
        operator: &str,
    ) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.admin);
        let request = self.admin_client.request(method, url);
        let request = request.bearer_auth(ADMIN_TOKEN);
        match operator {
            "" => request,
            name => request.header("X-Postern-Operator", name),
        }
    }

    pub(super) fn edit(&self, change: impl FnOnce(String) -> String) {
        let file = self.log.path().join("proxy.toml");
        let text = std::fs::read_to_string(&file).expect("reads");
        std::fs::write(file, change(text)).expect("writes");
    }

    /// Waits until `/config/status` satisfies the condition.
    pub(super) async fn wait_for_config_status(&self, is: impl Fn(&Value) -> bool) -> Value {
        let asking = async || {
            let status = self.admin_get("/config/status").await;
            let status = serde_json::from_str(&status).expect("JSON");
            is(&status).then_some(status)
        };
        wait_for(asking).await
    }

    /// Waits until this version of the configuration is in force. Returns its status.
    pub(super) async fn wait_for_version(&self, version: u64) -> Value {
        let is_active = |status: &Value| status["version"] == version;
        self.wait_for_config_status(is_active).await
    }

    /// Waits until the last reload has failed. Returns its error.
    pub(super) async fn wait_for_config_error(&self) -> String {
        let is_wrong = |status: &Value| status["lastError"].is_string();
        let status = self.wait_for_config_status(is_wrong).await;
        status["lastError"].as_str().expect("a text").to_owned()
    }

    /// Waits until the metrics have this text.
    pub(super) async fn wait_for_metric(&self, text: &str) {
        wait_until(async || self.admin_get("/metrics").await.contains(text)).await;
    }

    pub(super) async fn assert_metric(&self, text: &str) {
        let metrics = self.admin_get("/metrics").await;
        assert!(metrics.contains(text), "{text}: {metrics}");
    }

    /// Returns the value of a series of the metrics; `None` if there is none.
    pub(super) async fn metric(&self, series: &str) -> Option<usize> {
        let metrics = self.admin_get("/metrics").await;
        let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(series));
        lines.find_map(|value| value.trim().parse().ok())
    }

    /// Waits until the gateway holds data for a reader that does not take it.
    pub(super) async fn wait_for_held_data(&self) {
        wait_until(async || self.metric("postern_response_buffer_bytes").await != Some(0)).await;
    }

    /// Stops the gateway. Its first access event has these members.
    pub(super) async fn assert_event(self, expected: &Value) {
        assert_members(&self.finish().await[0], expected);
    }

    /// Stops the gateway and returns its access events.
    pub(super) async fn finish(self) -> Vec<Value> {
        self.shutdown.cancel();
        in_time(self.running).await.expect("does not panic");
        let text = std::fs::read_to_string(self.log.path().join("access.log")).expect("a log");
        let events = text.lines().map(serde_json::from_str);
        events.map(|event| event.expect("JSON")).collect()
    }
}

pub(super) async fn in_time<F: Future>(step: F) -> F::Output {
    let done = tokio::time::timeout(STEP_TIMEOUT, step).await;
    done.expect("a step takes less than STEP_TIMEOUT")
}

/// Asks until there is an answer.
pub(super) async fn wait_for<T>(ask: impl AsyncFn() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(waiting).await
}

/// Waits until a condition holds.
pub(super) async fn wait_until(is: impl AsyncFn() -> bool) {
    wait_for(async || is().await.then_some(())).await;
}

pub(super) async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("binds")
}

/// Returns an address without a listener.
pub(super) async fn unused_address() -> SocketAddr {
    bind().await.local_addr().expect("bound")
}

/// Binds a socket with small buffers, so that unread data is queued in the gateway.
fn bind_narrow() -> TcpListener {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_send_buffer_size(8 << 10).expect("a size");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("binds");
    socket.listen(64).expect("listens")
}

/// Connects with a receive buffer of this size, so that the reads of the client are those of the
/// connection.
pub(super) async fn connect_narrow(address: SocketAddr, bytes: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(bytes).expect("a size");
    socket.connect(address).await.expect("connects")
}

pub(super) async fn serve_keys(key: &EcdsaKeyPair) -> SocketAddr {
    let point = key.public_key().as_ref();
    let jwks = json!({"keys": [{
        "kty": "EC", "crv": "P-256", "kid": "k1", "alg": "ES256", "use": "sig",
        "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..65]),
    }]})
    .to_string();
    let listener = bind().await;
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut space = [0; 4096];
            let _request = stream.read(&mut space).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length:";
            let answer = format!("{head} {}\r\n\r\n{jwks}", jwks.len());
            let _gone = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}
