//! Social sign-in against independent OpenID providers (`tests/peers/oidc`), end to end.

use postern_core::testing::assert_members;
use std::collections::{BTreeMap, BTreeSet};
use tokio_util::sync::CancellationToken;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_core::config::Env;
use postern_harness::json;
use postern_harness::paths::repository;
use postern_harness::peer::Peer;
use postern_harness::public_api::landed;
use postern_harness::{Client, PublicApi, Standalone};
use serde_json::Value;
use tempfile::TempDir;
use url::{Position, Url};

use crate::auth_upstream;

/// The authentication upstream with an independent social provider. Standalone provides the pools
/// and the actor service.
struct AuthWithPeer {
    surface: PublicApi,
    postern: Standalone,
    shutdown: CancellationToken,
    folder: TempDir,
    _peers: Vec<Peer>,
}

/// Providers besides the first one: name, habits, and lines of the configuration.
type Further = (&'static str, &'static [&'static str], &'static str);

impl AuthWithPeer {
    /// Starts the upstream with a provider, and further ones.
    async fn start_with(further: &[Further]) -> Self {
        let postern = Standalone::start().await;
        let (listener, base) = auth_upstream::bind().await;
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
        let shutdown = auth_upstream::start(listener, &config, &env).await;
        let surface = PublicApi::of_upstream(&base, postern.surface().environment().clone());
        Self {
            surface,
            postern,
            shutdown,
            folder,
            _peers: peers,
        }
    }

    /// Signs in as a browser does, and returns the temporary token that the UI receives, or the error.
    async fn sign_in(&self, who: &str) -> Result<String, String> {
        self.sign_in_at("peer", who).await
    }

    /// Signs in at a provider.
    async fn sign_in_at(&self, provider: &str, who: &str) -> Result<String, String> {
        let client = self.surface.client();
        let path = format!("/auth/social/login?provider={provider}");
        let started = client.fetch(&path, 302).await;
        let (back, form) = follow(&started.header("location"), who).await;
        let path = &back[Position::BeforePath..Position::AfterQuery];
        let back = match form {
            Some(form) => client.post(path).body(FORM, form).send().await,
            None => client.get(path).send().await,
        };
        landed(&back)
    }

    async fn exchange(&self, token: &str) -> Value {
        self.surface.exchange(token).await.expect(200).json()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.postern.stop().await;
    }
}

/// Starts a provider and returns its issuer.
async fn start_peer(callback: &str, habits: &[&str]) -> (Peer, String) {
    let program = repository().join("tests/peers/oidc/run");
    let arguments = [&["peer-client", "peer-secret", callback], habits].concat();
    Peer::start(&program, &arguments, &[], "issuer ").await
}

fn environment(surface: &PublicApi) -> Env {
    let mut all: BTreeMap<String, String> = surface.environment().clone();
    let key = aws_lc_rs::rand::generate::<[u8; 32]>(&aws_lc_rs::rand::SystemRandom::new())
        .expect("random bytes are generated")
        .expose();
    let password = surface.env("POSTERN_SERVICE_AUTH_PASSWORD").to_owned();
    let own = [
        ("IDP_SERVICE_ACCOUNT_USERNAME", "auth".to_owned()),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", password),
        ("SOCIAL_OAUTH2_CLIENT_ID", "peer-client".to_owned()),
        ("SOCIAL_OAUTH2_CLIENT_SECRET", "peer-secret".to_owned()),
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", STANDARD.encode(key)),
    ];
    all.extend(own.map(|(name, value)| (name.to_owned(), value)));
    all.into_iter().collect()
}

const FORM: &str = "application/x-www-form-urlencoded";

/// Follows redirects from a URL with the provider's cookies, and submits forms as their script does, up to
/// the callback, which is returned with the fields of the last form, encoded.
async fn follow(location: &str, who: &str) -> (Url, Option<String>) {
    let mut url = Url::parse(location).expect("a redirect is a URL");
    url.query_pairs_mut().append_pair("login_hint", who);
    let client = Client::new(&url.origin().ascii_serialization());
    let (mut cookies, mut form) = (BTreeMap::new(), None);
    for _ in 0..10 {
        let pairs = cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let sent = pairs.collect::<Vec<_>>().join("; ");
        let answer = client.get(url.as_str()).header("cookie", &sent);
        let answer = answer.send().await;
        let text = answer.text();
        let is_redirect = answer.status.is_redirection();
        assert!(is_redirect || text.contains("<form"), "{url}: {text}");
        for cookie in answer.headers.get_all("set-cookie") {
            let cookie = cookie.to_str().expect("ASCII");
            let pair = cookie.split(';').next().unwrap_or_default();
            let (name, value) = pair.split_once('=').expect("a pair");
            cookies.insert(name.to_owned(), value.to_owned());
        }
        let target = match is_redirect {
            true => answer.header("location"),
            false => {
                form = Some(hidden_fields(&text));
                attribute(&text, "action")
            }
        };
        url = url.join(&target).expect("a redirect is a URL");
        if url.path() == "/auth/social/login/callback" {
            return (url, form);
        }
    }
    panic!("the provider redirects without an end: {url}");
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
async fn users_of_providers_sign_in() {
    let response_mode = "parameters = { response_mode = 'form_post' }";
    let further: [Further; 3] = [
        ("posting", &["post"], response_mode),
        ("odd", &["post", "odd"], "scopes = ['openid', 'email']"),
        ("large", &["large"], "nonce = false"),
    ];
    let peered = AuthWithPeer::start_with(&further).await;
    users_of_a_provider_sign_in(&peered).await;
    habits_work_side_by_side(&peered).await;
    code_is_bound_to_its_sign_in(&peered).await;
    peered.stop().await;
}

async fn habits_work_side_by_side(peered: &AuthWithPeer) {
    let mut subjects = BTreeSet::new();
    for provider in ["peer", "posting", "odd", "large"] {
        let token = peered.sign_in_at(provider, "ada").await.expect(provider);
        let user = &peered.exchange(&token).await["user"];
        assert_eq!(user["provider"], provider);
        assert_eq!(user["email"], "ada.peer@example.com");
        subjects.insert(user["userId"].to_string());
        let cancelled = peered.sign_in_at(provider, "nobody").await;
        assert_eq!(cancelled, Err("access_denied".to_owned()));
    }
    assert_eq!(subjects.len(), 1, "all are authoritative for the address");
    let client = peered.surface.client();
    let unknown = client.get("/auth/social/login?provider=Peer").send().await;
    let refused = unknown.problem(400, "invalid_request");
    refused.assert_pointers(&["?provider"]);
}

async fn users_of_a_provider_sign_in(peered: &AuthWithPeer) {
    let token = peered.sign_in("ada").await.expect("signed in");
    let exchanged = peered.exchange(&token).await;
    let user = &exchanged["user"];
    assert_members(
        user,
        &json!({"email": "ada.peer@example.com", "emailVerified": true}),
    );
    assert_members(user, &json!({"name": "Ada Lovelace", "provider": "peer"}));
    let tokens = exchanged["tokens"].clone();
    let ada = peered.surface.person("ada.peer@example.com", tokens).await;
    assert_eq!(user["userId"], ada.id.as_str());
    // A second sign-in is the same user. Another user of the provider, without a verified address,
    // must prove it first.
    let again = peered.sign_in("ada").await.expect("signed in");
    let again = peered.exchange(&again).await;
    assert_eq!(again["user"]["userId"], ada.id.as_str());
    let eve = peered.sign_in("eve").await.expect("signed in");
    let required = peered.surface.exchange(&eve).await.expect(401).json();
    assert_eq!(required["challenge"]["name"], "CONFIRM_ADDRESS");
    let code = peered.surface.mailbox().code("eve.peer@example.com").await;
    let answer = json!({ "session": required["challenge"]["session"], "code": code });
    let client = peered.surface.client();
    let tokens = client.posted("/auth/challenge", &answer, 200).await;
    let eve = peered.surface.person("eve.peer@example.com", tokens.json());
    eve.await;
    // The provider's refresh tokens are stored sealed.
    let path = peered.folder.path().join("auth.db");
    let store = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await;
    let query = "SELECT refresh_token FROM auth_social_identities WHERE refresh_token IS NOT NULL";
    let store = store.expect("the store");
    let rows = sqlx::query_scalar(query).fetch_all(&store).await;
    let sealed: Vec<String> = rows.expect("the rows are read");
    assert_eq!(sealed.len(), 2, "one with tokens at once, one after a code");
    let is_sealed = |text: &String| text.starts_with("v1.") && text.split('.').count() == 4;
    assert!(sealed.iter().all(is_sealed), "{sealed:?}");
}

async fn code_is_bound_to_its_sign_in(peered: &AuthWithPeer) {
    let client = peered.surface.client();
    let mut backs = Vec::new();
    for _ in 0..2 {
        let started = client.fetch("/auth/social/login", 302).await;
        backs.push(follow(&started.header("location"), "ada").await.0);
    }
    // The code of one sign-in with the state of another is rejected by PKCE.
    let mut pairs = backs[1].query_pairs();
    let (_, other) = pairs.find(|(name, _)| name == "state").expect("a state");
    let mut mixed = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in backs[0].query_pairs() {
        let is_state = name == "state";
        mixed.append_pair(&name, if is_state { &other } else { &value });
    }
    let mixed = format!("/auth/social/login/callback?{}", mixed.finish());
    // The state is used up.
    let again = &backs[1][Position::BeforePath..Position::AfterQuery];
    for (path, error) in [(&*mixed, "provider_error"), (again, "invalid_state")] {
        let back = client.get(path).send().await;
        assert_eq!(landed(&back), Err(error.to_owned()));
    }
}
