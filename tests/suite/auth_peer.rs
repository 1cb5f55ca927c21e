//! Social sign-in against independent OpenID providers (`tests/peers/oidc`), end to end.

use postern_core::testing::assert_members;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tokio_util::sync::CancellationToken;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_auth::{App, Config, Listeners};
use postern_core::Clock;
use postern_core::config::{Env, parse};
use postern_service::startup::ConfigOrigin;
use postern_tests::http_body::json;
use postern_tests::surface::text;
use postern_tests::{Client, Postern, PublicApi};
use serde_json::Value;
use sqlx::Row;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use url::Url;

/// The authentication upstream with an independent social provider. Standalone provides the pools
/// and the actor service.
struct AuthWithPeer {
    surface: PublicApi,
    postern: Postern,
    shutdown: CancellationToken,
    folder: TempDir,
    _peers: Vec<Child>,
}

/// Providers besides the first one: name, habits, and lines of the configuration.
type Further = (&'static str, &'static [&'static str], &'static str);

// === impl AuthWithPeer ===

impl AuthWithPeer {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts the upstream with a provider, and further ones.
    async fn start_with(further: &[Further]) -> Self {
        let postern = Postern::start().await;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let callback = format!("{base}/auth/social/login/callback");
        let (peer, issuer) = start_peer(&callback, &[]).await;
        let mut peers = vec![peer];
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = format!(
            "database = 'sqlite://{}'\nactor_service = 'http://{}'\nnotification_service = 'http://{}'\n[social]\nname = 'peer'\n\
             issuer = '{issuer}'\nredirect_uri = '{callback}'\nui = 'http://127.0.0.1:9/ui'\n\
             scopes = ['openid', 'email', 'profile', 'offline_access']\nauthoritative_domains = ['example.com']\n",
            folder.path().join("auth.db").display(),
            postern.addresses().actor,
            postern.addresses().notify,
        );
        for (name, habits, lines) in further {
            let (peer, issuer) = start_peer(&callback, habits).await;
            peers.push(peer);
            config += &format!(
                "[[social.provider]]\nname = '{name}'\nissuer = '{issuer}'\nclient_id = 'peer-client'\n\
                 client_secret_env = 'SOCIAL_OAUTH2_CLIENT_SECRET'\nauthoritative_domains = ['example.com']\n{lines}\n"
            );
        }
        let env = environment(postern.surface());
        let config = parse("auth.toml", &config, |root| Config::read(root, &env))
            .expect("the configuration is valid");
        let app = Box::pin(App::build(config, Clock::system()))
            .await
            .expect("the upstream is built");
        let shutdown = CancellationToken::new();
        tokio::spawn(app.run(
            Listeners {
                public: listener,
                admin: None,
            },
            ConfigOrigin::built_in("auth.toml", ""),
            shutdown.clone(),
        ));
        let surface = PublicApi::of_upstream(&base, postern.surface().environment().clone());
        Self {
            surface,
            postern,
            shutdown,
            folder,
            _peers: peers,
        }
    }

    /// Signs in as a browser does, and returns the parameter that the UI receives in the fragment.
    async fn sign_in(&self, who: &str) -> (String, String) {
        self.sign_in_at("peer", who).await
    }

    /// Signs in at a provider.
    async fn sign_in_at(&self, provider: &str, who: &str) -> (String, String) {
        let client = self.surface.client();
        let path = format!("/auth/social/login?provider={provider}");
        let started = client.fetch(&path, 302).await;
        let mut authorization_url =
            Url::parse(&started.header("location")).expect("a redirect is a URL");
        authorization_url
            .query_pairs_mut()
            .append_pair("login_hint", who);
        let mut browser = Browser::new(&authorization_url);
        let until = "/auth/social/login/callback";
        let back = browser.follow(authorization_url, until).await;
        let path = format!("{}?{}", back.path(), back.query().unwrap_or_default());
        let landed = match browser.form.take() {
            Some(form) => client.post(&path).body(FORM, form).send().await,
            None => client.get(&path).send().await,
        };
        let landed = landed.expect(302);
        let ui = Url::parse(&landed.header("location")).expect("a redirect is a URL");
        let (name, value) = ui
            .fragment()
            .and_then(|pair| pair.split_once('='))
            .expect("a fragment");
        (name.to_owned(), value.to_owned())
    }

    async fn exchange(&self, token: &str) -> Value {
        self.surface.exchange(token).await.expect(200).json()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.postern.stop().await;
    }
}

async fn start_peer(callback: &str, habits: &[&str]) -> (Child, String) {
    let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/oidc/run");
    let mut command = Command::new(peer);
    command
        .args(["peer-client", "peer-secret", callback])
        .args(habits)
        .stdout(std::process::Stdio::piped());
    let mut child = command
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the peer starts");
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let line = lines
        .next_line()
        .await
        .expect("the output is UTF-8")
        .expect("the peer is installed by tests/run");
    // Later output must be read, so that the pipe does not fill.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (
        child,
        line.strip_prefix("issuer ")
            .expect("the first line names the issuer")
            .to_owned(),
    )
}

fn environment(surface: &PublicApi) -> Env {
    let mut all: BTreeMap<String, String> = surface.environment().clone();
    let key = aws_lc_rs::rand::generate::<[u8; 32]>(&aws_lc_rs::rand::SystemRandom::new())
        .expect("random bytes are generated")
        .expose();
    let password = surface.env("POSTERN_SERVICE_AUTH_PASSWORD").to_owned();
    for (name, value) in [
        ("IDP_SERVICE_ACCOUNT_USERNAME", "auth".to_owned()),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", password),
        ("SOCIAL_OAUTH2_CLIENT_ID", "peer-client".to_owned()),
        ("SOCIAL_OAUTH2_CLIENT_SECRET", "peer-secret".to_owned()),
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", STANDARD.encode(key)),
    ] {
        all.insert(name.to_owned(), value);
    }
    all.into_iter().collect()
}

const FORM: &str = "application/x-www-form-urlencoded";

/// An HTTP client that follows redirects with the provider's cookies.
struct Browser {
    client: Client,
    cookies: BTreeMap<String, String>,
    /// The fields of the form that was submitted last, encoded.
    form: Option<String>,
}

// === impl Browser ===

impl Browser {
    fn new(at: &Url) -> Self {
        Self {
            client: Client::new(&at.origin().ascii_serialization()),
            cookies: BTreeMap::new(),
            form: None,
        }
    }

    /// Follows redirects, and submits forms as their script does, up to the one with the path
    /// `until`, which is returned.
    async fn follow(&mut self, mut url: Url, until: &str) -> Url {
        for _ in 0..10 {
            let cookies: Vec<String> = self
                .cookies
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            let answer = self
                .client
                .get(url.as_str())
                .header("cookie", &cookies.join("; "))
                .send()
                .await;
            let text = answer.text();
            let is_redirect = answer.status.is_redirection();
            assert!(is_redirect || text.contains("<form"), "{url}: {text}");
            for cookie in answer.headers.get_all("set-cookie") {
                let pair = cookie
                    .to_str()
                    .expect("ASCII")
                    .split(';')
                    .next()
                    .expect("a pair");
                let (name, value) = pair.split_once('=').expect("a pair");
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
            let target = match is_redirect {
                true => answer.header("location"),
                false => {
                    self.form = Some(hidden_fields(&text));
                    attribute(&text, "action")
                }
            };
            url = url.join(&target).expect("a redirect is a URL");
            if url.path() == until {
                return url;
            }
        }
        panic!("the provider redirects without an end: {url}");
    }
}

/// Returns the first attribute of this name in a page.
fn attribute(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!("{name}=\"")).expect(name);
    let value = rest.split('"').next().expect("it ends");
    value.replace("&amp;", "&")
}

/// Returns the hidden fields of a page, encoded.
fn hidden_fields(page: &str) -> String {
    let mut fields = url::form_urlencoded::Serializer::new(String::new());
    for input in page.split("<input ").skip(1) {
        fields.append_pair(&attribute(input, "name"), &attribute(input, "value"));
    }
    fields.finish()
}

/// Providers as Apple, LinkedIn, Twitch and Entra ID are, beside one as Google is.
#[tokio::test]
async fn providers_with_other_habits_work_side_by_side() {
    let further: [Further; 3] = [
        (
            "posting",
            &["post"],
            "parameters = { response_mode = 'form_post' }",
        ),
        ("odd", &["post", "odd"], "scopes = ['openid', 'email']"),
        ("large", &["large"], "nonce = false"),
    ];
    let peered = AuthWithPeer::start_with(&further).await;
    let mut subjects = BTreeSet::new();
    for provider in ["peer", "posting", "odd", "large"] {
        let (name, token) = peered.sign_in_at(provider, "ada").await;
        assert_eq!(name, "temporaryToken", "{provider}: {token}");
        let user = &peered.exchange(&token).await["user"];
        assert_eq!(user["provider"], provider);
        assert_eq!(user["email"], "ada.peer@example.com");
        subjects.insert(user["userId"].to_string());
        let cancelled = peered.sign_in_at(provider, "nobody").await;
        assert_eq!(cancelled, ("error".to_owned(), "access_denied".to_owned()));
    }
    assert_eq!(subjects.len(), 1, "all are authoritative for the address");
    let client = peered.surface.client();
    let unknown = client.get("/auth/social/login?provider=Peer").send().await;
    let refused = unknown.problem(400, "invalid_request");
    refused.assert_pointers(&["?provider"]);
    peered.stop().await;
}

#[tokio::test]
async fn users_of_a_provider_sign_in() {
    let peered = AuthWithPeer::start().await;
    let (name, token) = peered.sign_in("ada").await;
    assert_eq!(name, "temporaryToken", "{token}");
    let exchanged = peered.exchange(&token).await;
    let user = &exchanged["user"];
    assert_members(
        user,
        &json!({"email": "ada.peer@example.com", "emailVerified": true}),
    );
    assert_members(user, &json!({"name": "Ada Lovelace", "provider": "peer"}));
    let ada = peered
        .surface
        .person("ada.peer@example.com", exchanged["tokens"].clone())
        .await;
    assert_eq!(user["userId"], ada.id.as_str());
    // A second sign-in is the same user. Another user of the provider, without a verified address,
    // must prove it first.
    let (_, again) = peered.sign_in("ada").await;
    assert_eq!(
        peered.exchange(&again).await["user"]["userId"],
        ada.id.as_str()
    );
    let (_, eve) = peered.sign_in("eve").await;
    let required = peered.surface.exchange(&eve).await.expect(401).json();
    assert_eq!(required["challenge"]["name"], "CONFIRM_ADDRESS");
    let mail = peered.surface.mailbox().to("eve.peer@example.com").await;
    let mail = text(&mail, "text").to_owned();
    let code: String = mail.chars().filter(char::is_ascii_digit).collect();
    let answer = json!({ "session": required["challenge"]["session"], "code": code });
    let client = peered.surface.client();
    let tokens = client.posted("/auth/challenge", &answer, 200).await;
    let tokens = tokens.json();
    peered
        .surface
        .person("eve.peer@example.com", tokens.clone())
        .await;
    // The provider's refresh tokens are stored sealed.
    let path = peered.folder.path().join("auth.db");
    let store = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display()))
        .await
        .expect("the store");
    let rows = sqlx::query(
        "SELECT refresh_token FROM auth_social_identities WHERE refresh_token IS NOT NULL",
    )
    .fetch_all(&store)
    .await;
    let sealed: Vec<String> = rows
        .expect("the rows are read")
        .iter()
        .map(|row| row.get("refresh_token"))
        .collect();
    assert_eq!(sealed.len(), 2, "one with tokens at once, one after a code");
    assert!(
        sealed
            .iter()
            .all(|text| text.starts_with("v1.") && text.split('.').count() == 4),
        "{sealed:?}"
    );
    peered.stop().await;
}

#[tokio::test]
async fn code_is_bound_to_its_sign_in() {
    let peered = AuthWithPeer::start().await;
    let client = peered.surface.client();
    let mut backs = Vec::new();
    for _ in 0..2 {
        let started = client.fetch("/auth/social/login", 302).await;
        let mut authorization_url = Url::parse(&started.header("location")).expect("a URL");
        authorization_url
            .query_pairs_mut()
            .append_pair("login_hint", "ada");
        backs.push(
            Browser::new(&authorization_url)
                .follow(authorization_url, "/auth/social/login/callback")
                .await,
        );
    }
    // The code of one sign-in with the state of another is rejected by PKCE.
    let other = backs[1]
        .query_pairs()
        .find(|(name, _)| name == "state")
        .expect("a state")
        .1
        .into_owned();
    let mut mixed = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in backs[0].query_pairs() {
        mixed.append_pair(
            &name,
            if name == "state" {
                other.as_str()
            } else {
                value.as_ref()
            },
        );
    }
    let query = mixed.finish();
    let landed = client
        .fetch(&format!("/auth/social/login/callback?{query}"), 302)
        .await;
    assert!(
        landed.header("location").ends_with("#error=provider_error"),
        "{}",
        landed.header("location")
    );
    // The state is used up.
    let back = &backs[1];
    let again = client
        .get(&format!(
            "{}?{}",
            back.path(),
            back.query().expect("a query")
        ))
        .send()
        .await;
    assert!(
        again
            .expect(302)
            .header("location")
            .ends_with("#error=invalid_state")
    );
    peered.stop().await;
}
