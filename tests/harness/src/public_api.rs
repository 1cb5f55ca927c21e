//! The public interface of a running Postern: the gateway, and the external systems that exist in
//! production as well: the identity pool, the social provider, and mail.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use postern_core::identity::secret_hash;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::{Position, Url};

use crate::answer::Answer;
use crate::client::{Client, Request};
use crate::contract::Contract;
use crate::mailbox::Mailbox;

/// A password that every policy accepts.
pub const PASSWORD: &str = "Correct horse battery 9";

/// Addresses of an installation, and flows of several requests.
#[derive(Clone, Debug)]
pub struct PublicApi {
    client: Client,
    env: BTreeMap<String, String>,
}

/// A registered user with a valid token set.
#[derive(Clone, Debug)]
pub struct Person {
    /// E-mail address of the registration.
    pub email: String,
    /// Subject in the actor pool.
    pub id: String,
    /// The token set of the last response.
    pub tokens: Value,
    /// Client of the gateway with the user's access token.
    pub client: Client,
}

impl PublicApi {
    /// Creates the interface of a gateway, with the variables of `standalone.env`.
    pub fn new(gateway: &str, env: BTreeMap<String, String>) -> Self {
        Self {
            client: Client::to_gateway(gateway),
            env,
        }
    }

    /// Creates the interface of one upstream without the gateway. Its responses are not checked
    /// against the contract.
    pub fn of_upstream(base: &str, env: BTreeMap<String, String>) -> Self {
        Self {
            client: Client::new(base),
            env,
        }
    }

    /// Reads `standalone.env` of a running standalone's data folder.
    pub fn of_folder(folder: &Path) -> Self {
        let path = folder.join("standalone.env");
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let unquoted = |value: &str| value.trim_matches(['"', '\'']).to_owned();
        let pairs = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='));
        let name = |name: &str| name.trim_start_matches("export ").to_owned();
        let pairs = pairs.map(|(left, value)| (name(left), unquoted(value)));
        let env: BTreeMap<String, String> = pairs.collect();
        let gateway = env.get("POSTERN_URL").cloned();
        Self::new(
            &gateway.unwrap_or_else(|| panic!("no POSTERN_URL in {text}")),
            env,
        )
    }

    /// Waits until both pools have generated their signing keys, which may take longer than a
    /// request waits on a busy machine.
    pub async fn until_keys(&self) {
        let pools = Client::new(self.env("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER"));
        for pool in ["IDP_ACTOR_POOL_ID", "IDP_SERVICE_POOL_ID"] {
            let path = format!("/{}/.well-known/jwks.json", self.env(pool));
            let keys = pools.read(&path).await;
            assert!(keys["keys"][0].is_object(), "{keys}");
        }
    }

    /// Returns the client of the gateway, without a token.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the interface with responses checked against `contract`.
    pub fn against(&self, contract: &'static Contract) -> Self {
        Self {
            client: self.client.against(contract),
            env: self.env.clone(),
        }
    }

    /// Returns a variable of the installation.
    #[track_caller]
    pub fn env(&self, name: &str) -> &str {
        match self.env.get(name) {
            Some(value) => value,
            None => panic!("standalone.env has no {name}: {:?}", self.env.keys()),
        }
    }

    /// Returns all variables of the installation.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// Returns the delivered mail.
    pub fn mailbox(&self) -> Mailbox {
        Mailbox::at(self.env("POSTERN_MAIL_URL"))
    }

    /// Registers a new user.
    pub async fn register(&self) -> Person {
        self.register_as(&format!("{}@example.com", uuid::Uuid::new_v4().simple()))
            .await
    }

    /// Registers a new user with an address.
    pub async fn register_as(&self, email: &str) -> Person {
        let profile = json!({"firstName": "Ada", "lastName": "Lovelace"});
        let body = json!({"email": email, "password": PASSWORD, "profile": profile});
        let tokens = self.client.posted("/auth/register", &body, 201).await;
        self.person(email, tokens.json()).await
    }

    /// Returns the user of a token set.
    pub async fn person(&self, email: &str, tokens: Value) -> Person {
        let client = self.client.with_token(text(&tokens, "accessToken"));
        let id = client.fetch("/auth/me", 200).await.string("/userId");
        Person {
            email: email.to_owned(),
            id,
            tokens,
            client,
        }
    }

    /// Exchanges a temporary token.
    pub async fn exchange(&self, temporary_token: &str) -> Answer {
        let body = json!({ "temporaryToken": temporary_token });
        self.client.post_json("/auth/tokens/exchange", &body).await
    }

    /// Exchanges a refresh token.
    pub async fn refresh(&self, refresh_token: &str) -> Answer {
        let body = json!({ "refreshToken": refresh_token });
        self.client.post_json("/auth/tokens/refresh", &body).await
    }

    /// Signs in a sample person of the development provider, and returns the temporary token.
    pub async fn social_token(&self, name: &str) -> String {
        let token = self.social_sign_in(&sample(name), None).await;
        token.expect("the person is signed in")
    }

    /// Returns a new token of a service account, obtained as an SDK does, with InitiateAuth at the
    /// service pool.
    pub async fn service_token(&self, username: &str, password: &str) -> String {
        let client_id = self.env("IDP_SERVICE_CLIENT_ID");
        let mut parameters = json!({"USERNAME": username, "PASSWORD": password});
        if let Some(secret) = self.env.get("IDP_SERVICE_CLIENT_SECRET") {
            parameters["SECRET_HASH"] = secret_hash(username, client_id, secret).into();
        }
        let body = json!({"AuthFlow": "USER_PASSWORD_AUTH", "ClientId": client_id, "AuthParameters": parameters});
        self.pool("InitiateAuth", &body).await["AuthenticationResult"]["IdToken"]
            .as_str()
            .unwrap_or_else(|| panic!("no ID token for {username}"))
            .to_owned()
    }

    /// Makes an unsigned call to the identity pool.
    pub async fn pool(&self, operation: &str, body: &Value) -> Value {
        let client = Client::new(self.env("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER"));
        let target = format!("AWSCognitoIdentityProviderService.{operation}");
        let request = client.post("/").header("x-amz-target", &target);
        let request = request.body("application/x-amz-json-1.1", body.to_string());
        request.send().await.expect(200).json()
    }

    /// Signs in at the social provider as a browser does, and returns the parameter that the UI
    /// receives in the fragment: the temporary token, or the error.
    pub async fn social_sign_in(
        &self,
        who: &[(&str, &str)],
        code_challenge: Option<&str>,
    ) -> Result<String, String> {
        let back = self.social_callback(who, code_challenge).await;
        landed(&self.client.get(&back).send().await)
    }

    /// Chooses a person at the social provider, and returns the path and the query to which it sends
    /// the browser.
    pub async fn social_callback(
        &self,
        who: &[(&str, &str)],
        code_challenge: Option<&str>,
    ) -> String {
        let query = code_challenge.map(|challenge| format!("?code_challenge={challenge}"));
        let path = format!("/auth/social/login{}", query.unwrap_or_default());
        let begun = self.client.fetch(&path, 302).await;
        let asked = Url::parse(&begun.header("location")).expect("a redirect is a URL");
        let provider = Client::new(asked.origin().ascii_serialization().as_str());
        let page = provider.fetch(asked.as_str(), 200).await;
        assert!(page.text().contains("<form"), "{}", page.text());
        let who = who
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        let form: Vec<(Cow<'_, str>, Cow<'_, str>)> = asked.query_pairs().chain(who).collect();
        let chosen = provider.post(asked.path()).form(&form).send().await;
        let back = Url::parse(&chosen.expect(303).header("location"));
        let back = back.expect("a redirect is a URL");
        back[Position::BeforePath..Position::AfterQuery].to_owned()
    }
}

/// Returns what the UI receives in the fragment from a callback's answer: the temporary token, or the
/// error.
pub fn landed(answer: &Answer) -> Result<String, String> {
    assert_eq!(answer.status, 302, "{}", answer.text());
    let ui = Url::parse(&answer.header("location")).expect("a redirect is a URL");
    assert_eq!(ui.query(), None, "a token is never in a query");
    match ui.fragment().and_then(|fragment| fragment.split_once('=')) {
        Some(("temporaryToken", token)) => Ok(token.to_owned()),
        Some(("error", error)) => Err(error.to_owned()),
        Some(_) | None => panic!("the UI gets {ui}"),
    }
}

/// Returns the form of a sample user of the social provider.
pub fn sample(name: &str) -> [(&str, &str); 1] {
    [("person", name)]
}

/// Returns a string member.
#[track_caller]
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    match value[name].as_str() {
        Some(text) => text,
        None => panic!("no {name} in {value}"),
    }
}

/// Returns the credentials of an address with [`PASSWORD`].
pub fn credentials(email: &str) -> Value {
    json!({"email": email, "password": PASSWORD})
}

/// Returns the body of POST /notifications to an actor: an e-mail with the template `welcome`.
pub fn welcome(actor_id: &str) -> Value {
    message("email", &json!({"actorId": actor_id}))
}

/// Returns the body of POST /notifications to a recipient, with the template `welcome`.
pub fn message(channel: &str, recipient: &Value) -> Value {
    json!({"channel": channel, "recipient": recipient, "template": "welcome", "variables": {"name": "Ada"}})
}

/// Returns incompressible content of this size, and its SHA-256.
pub fn resume(bytes: usize) -> (Vec<u8>, String) {
    let mut content = Vec::with_capacity(bytes + 32);
    let mut block = Sha256::digest(b"resume");
    while content.len() < bytes {
        content.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    content.truncate(bytes);
    let digest = hex::encode(Sha256::digest(&content));
    (content, digest)
}

/// Returns the request POST /resumes, with the form of a candidate (RFC 7578).
pub fn upload(client: &Client, candidate_id: &str, content: &[u8]) -> Request {
    let fields = format!(
        "--the-boundary\r\nContent-Disposition: form-data; name=\"candidateId\"\r\n\r\n{candidate_id}\r\n\
         --the-boundary\r\nContent-Disposition: form-data; name=\"resume\"; filename=\"ada.pdf\"\r\n\
         Content-Type: application/pdf\r\n\r\n"
    );
    let body = [fields.as_bytes(), content, b"\r\n--the-boundary--\r\n"].concat();
    let request = client.post("/resumes");
    request.body("multipart/form-data; boundary=the-boundary", body)
}
