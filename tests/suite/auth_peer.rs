//! Social sign-in against independent OpenID providers (`tests/peers/oidc`,
//! `tests/peers/oidc-mock`), end to end.

use std::collections::BTreeMap;
use std::path::Path;
use tokio_util::sync::CancellationToken;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_auth::{App, Config, Listeners};
use postern_common::Clock;
use postern_common::config::{Env, parse};
use postern_common::startup::ConfigOrigin;
use postern_tests::http_body::json;
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
    _peer: Child,
}

// === impl AuthWithPeer ===

impl AuthWithPeer {
    async fn start() -> Self {
        Self::start_with("oidc").await
    }

    /// Starts the upstream with one of the providers in `tests/peers`.
    async fn start_with(peer: &str) -> Self {
        let postern = Postern::start().await;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let callback = format!("{base}/auth/social/login/callback");
        let (peer, issuer) = start_peer(peer, &callback).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = format!(
            "database = 'sqlite://{}'\nactor_service = 'http://{}'\n[social]\nprovider = 'peer'\n\
             issuer = '{issuer}'\nredirect_uri = '{callback}'\nui = 'http://127.0.0.1:9/ui'\n\
             scopes = ['openid', 'email', 'profile', 'offline_access']\n",
            folder.path().join("auth.db").display(),
            postern.addresses().actor,
        );
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
            _peer: peer,
        }
    }

    /// Signs in as a browser does, and returns the parameter that the UI receives in the fragment.
    async fn sign_in(&self, who: &str) -> (String, String) {
        let started = self
            .surface
            .client()
            .get("/auth/social/login")
            .send()
            .await
            .expect(302);
        let mut authorization_url =
            Url::parse(&started.header("location")).expect("a redirect is a URL");
        authorization_url
            .query_pairs_mut()
            .append_pair("login_hint", who);
        let back = Browser::new(&authorization_url)
            .follow(authorization_url, "/auth/social/login/callback")
            .await;
        let path = format!("{}?{}", back.path(), back.query().unwrap_or_default());
        let landed = self.surface.client().get(&path).send().await.expect(302);
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

async fn start_peer(peer: &str, callback: &str) -> (Child, String) {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let mut command = Command::new(peers.join(peer).join("run"));
    command
        .args(["peer-client", "peer-secret", callback])
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

/// An HTTP client that follows redirects with the provider's cookies.
struct Browser {
    client: Client,
    cookies: BTreeMap<String, String>,
}

// === impl Browser ===

impl Browser {
    fn new(at: &Url) -> Self {
        Self {
            client: Client::new(&at.origin().ascii_serialization()),
            cookies: BTreeMap::new(),
        }
    }

    /// Follows redirects up to the one with the path `until`, which is returned.
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
            assert!(
                answer.status.is_redirection(),
                "{url}: {} {}",
                answer.status,
                answer.text()
            );
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
            url = url
                .join(&answer.header("location"))
                .expect("a redirect is a URL");
            if url.path() == until {
                return url;
            }
        }
        panic!("the provider redirects without an end: {url}");
    }
}

#[tokio::test]
async fn users_of_a_provider_sign_in() {
    let peered = AuthWithPeer::start().await;
    let (name, token) = peered.sign_in("ada").await;
    assert_eq!(name, "temporaryToken", "{token}");
    let exchanged = peered.exchange(&token).await;
    let user = &exchanged["user"];
    assert_eq!(
        (&user["email"], &user["emailVerified"]),
        (&json!("ada.peer@example.com"), &json!(true))
    );
    assert_eq!(
        (&user["name"], &user["provider"]),
        (&json!("Ada Lovelace"), &json!("peer"))
    );
    let ada = peered
        .surface
        .person("ada.peer@example.com", exchanged["tokens"].clone())
        .await;
    assert_eq!(user["userId"], ada.id.as_str());
    // A second sign-in is the same user. Another user of the provider, without a verified address,
    // gets no pool user.
    let (_, again) = peered.sign_in("ada").await;
    assert_eq!(
        peered.exchange(&again).await["user"]["userId"],
        ada.id.as_str()
    );
    let (_, eve) = peered.sign_in("eve").await;
    let eve = peered.exchange(&eve).await;
    assert_eq!(
        (&eve["tokens"], &eve["user"]["emailVerified"]),
        (&Value::Null, &json!(false))
    );
    assert_eq!(eve["tokensUnavailable"], "no_account");
    // The provider's refresh tokens are stored sealed.
    let path = peered.folder.path().join("auth.db");
    let store = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display()))
        .await
        .expect("the store");
    let rows = sqlx::query("SELECT refresh_token FROM auth_social_identities")
        .fetch_all(&store)
        .await;
    let sealed: Vec<String> = rows
        .expect("the rows are read")
        .iter()
        .map(|row| row.get("refresh_token"))
        .collect();
    assert_eq!(sealed.len(), 2);
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
        let started = client.get("/auth/social/login").send().await.expect(302);
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
        .get(&format!("/auth/social/login/callback?{query}"))
        .send()
        .await
        .expect(302);
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

/// The provider's ID tokens have no `kid`, because its key set has one key.
#[tokio::test]
async fn provider_with_one_key_may_omit_kid() {
    let peered = AuthWithPeer::start_with("oidc-mock").await;
    let client = peered.surface.client();
    let started = client.get("/auth/social/login").send().await.expect(302);
    let authorization_url = Url::parse(&started.header("location")).expect("a redirect is a URL");
    let provider = Client::new(&authorization_url.origin().ascii_serialization());
    let chosen = provider
        .post(authorization_url.as_str())
        .form(&[("sub", "ada")])
        .send()
        .await
        .expect(302);
    let back = Url::parse(&chosen.header("location")).expect("a redirect is a URL");
    let path = format!("{}?{}", back.path(), back.query().unwrap_or_default());
    let landed = client
        .get(&path)
        .send()
        .await
        .expect(302)
        .header("location");
    let (_, token) = landed
        .split_once("#temporaryToken=")
        .unwrap_or_else(|| panic!("{landed}"));
    let user = &peered.exchange(token).await["user"];
    assert_eq!(
        (&user["email"], &user["emailVerified"]),
        (&json!("ada.mock@example.com"), &json!(true))
    );
    peered.stop().await;
}
