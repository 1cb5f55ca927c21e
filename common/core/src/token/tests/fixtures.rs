//! Fixtures: generated keys, signed tokens, and a loopback server that serves (or withholds)
//! a JWKS.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use crate::clock::{Clock, Timestamp};
use crate::token::{Issuer, IssuerKind, IssuerRules, TokenError, Verifier, VerifierOptions};

pub(super) const NOW_S: i64 = 1_800_000_000;
pub(super) const USERS: &str = "https://pools.test/users";
pub(super) const SERVICES: &str = "https://pools.test/services";
pub(super) const USER_CLIENT: &str = "user-client";
pub(super) const SERVICE_CLIENT: &str = "service-client";

pub(super) fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A signing key.
pub(super) enum Signer {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// RSA keys are slow to generate, so the tests share two.
pub(super) static RSA: LazyLock<Signer> = LazyLock::new(Signer::rsa);
pub(super) static OTHER_RSA: LazyLock<Signer> = LazyLock::new(Signer::rsa);

impl Signer {
    pub(super) fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    pub(super) fn ec() -> Self {
        Self::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub(super) fn ed() -> Self {
        Self::Ed(Ed25519KeyPair::generate().unwrap())
    }

    pub(super) fn alg(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
        }
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature);
                signed.unwrap();
                signature
            }
            Self::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    pub(super) fn jwk(&self, key_id: &str) -> Value {
        let mut jwk = match self {
            Self::Rsa(pair) => {
                let parts = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "n": b64(parts.n), "e": b64(parts.e)})
            }
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": b64(&point[1..33]), "y": b64(&point[33..])})
            }
            Self::Ed(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": b64(pair.public_key())}),
        };
        jwk["kid"] = key_id.into();
        jwk["use"] = "sig".into();
        jwk["alg"] = self.alg().into();
        jwk
    }

    pub(super) fn token(&self, key_id: &str, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.alg(), "kid": key_id}), claims)
    }

    pub(super) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.raw(header.to_string().as_bytes(), claims.to_string().as_bytes())
    }

    /// Signs header and payload unchanged, JSON or not.
    pub(super) fn raw(&self, header: &[u8], payload: &[u8]) -> String {
        let input = format!("{}.{}", b64(header), b64(payload));
        let signature = self.sign(input.as_bytes());
        format!("{input}.{}", b64(signature))
    }
}

pub(super) fn jwks(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

/// Serves these keys.
pub(super) fn keys(keys: &[Value]) -> Behaviour {
    Behaviour::Serve(jwks(keys))
}

/// The usual user claims of another subject.
pub(super) fn claims_of(subject: impl std::fmt::Display) -> Value {
    with(user_claims(), "sub", json!(subject.to_string()))
}

pub(super) fn user_claims() -> Value {
    json!({
        "iss": USERS, "sub": "3a1c", "token_use": "access", "client_id": USER_CLIENT, "username": "ada",
        "scope": "openid profile", "cognito:groups": ["admin"], "iat": NOW_S - 10, "exp": NOW_S + 3600,
    })
}

pub(super) fn service_claims() -> Value {
    json!({
        "iss": SERVICES, "sub": "77f0", "token_use": "id", "aud": SERVICE_CLIENT,
        "custom:service_id": "notify", "iat": NOW_S - 10, "exp": NOW_S + 3600,
    })
}

/// Returns `claims` with one claim replaced, or removed if the value is null.
pub(super) fn with(mut claims: Value, name: &str, value: Value) -> Value {
    if value.is_null() {
        claims.as_object_mut().unwrap().remove(name);
    } else {
        claims[name] = value;
    }
    claims
}

/// The server's response.
#[derive(Clone)]
pub(super) enum Behaviour {
    Serve(String),
    ServeFor(String, u32),
    Status(u16),
    Redirect(String),
    Hang,
    Close,
}

/// A JWKS endpoint on a loopback port, which runs until the runtime ends.
pub(super) struct Server {
    pub(super) url: Url,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    pub(super) async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
        let behaviour = Arc::new(Mutex::new(behaviour));
        let requests = Arc::new(AtomicUsize::new(0));
        let (shared, counter) = (Arc::clone(&behaviour), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let behaviour = shared.lock().clone();
                tokio::spawn(answer(stream, behaviour));
            }
        });
        Self {
            url: url.parse().unwrap(),
            behaviour,
            requests,
        }
    }

    pub(super) fn becomes(&self, behaviour: Behaviour) {
        *self.behaviour.lock() = behaviour;
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn answer(mut stream: TcpStream, behaviour: Behaviour) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let response = match behaviour {
        Behaviour::Serve(body) => response(200, "", &body),
        Behaviour::ServeFor(body, seconds) => {
            let lifetime = format!("Cache-Control: public, max-age={seconds}\r\n");
            response(200, &lifetime, &body)
        }
        Behaviour::Status(status) => response(status, "", "no"),
        Behaviour::Redirect(to) => response(302, &format!("Location: {to}\r\n"), ""),
        Behaviour::Hang => return tokio::time::sleep(Duration::from_secs(600)).await,
        Behaviour::Close => return,
    };
    // The client may close the connection before the end of the response.
    let _sent = stream.write_all(response.as_bytes()).await;
}

fn response(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Both pools, their servers, and a verifier with a manual clock.
pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) users: Server,
    pub(super) services: Server,
    pub(super) verifier: Arc<Verifier>,
}

pub(super) fn clock() -> Clock {
    Clock::manual(Timestamp::from_unix_seconds(NOW_S))
}

/// Returns options with short timings.
pub(super) fn options(clock: &Clock) -> VerifierOptions {
    VerifierOptions {
        clock: clock.clone(),
        fetch_timeout: Duration::from_secs(2),
        refetch_interval: Duration::from_millis(20),
        ..VerifierOptions::default()
    }
}

pub(super) fn issuers(users: &Url, services: &Url) -> Vec<Issuer> {
    let pool = |issuer: &str, jwks_url: &Url, kind, client: &str| Issuer {
        issuer: issuer.to_owned(),
        jwks_url: jwks_url.clone(),
        kind,
        client_ids: vec![client.to_owned()],
        rules: IssuerRules::default(),
        claims: vec!["tier".to_owned(), "origin_jti".to_owned()],
    };
    vec![
        pool(USERS, users, IssuerKind::User, USER_CLIENT),
        pool(SERVICES, services, IssuerKind::Service, SERVICE_CLIENT),
    ]
}

impl World {
    pub(super) async fn new(user_keys: &[Value], service_keys: &[Value]) -> Self {
        Self::with_options(user_keys, service_keys, |options| options).await
    }

    pub(super) async fn with_options(
        user_keys: &[Value],
        service_keys: &[Value],
        change: impl FnOnce(VerifierOptions) -> VerifierOptions,
    ) -> Self {
        let clock = clock();
        let users = Server::start(keys(user_keys)).await;
        let services = Server::start(keys(service_keys)).await;
        let verifier = Verifier::new(issuers(&users.url, &services.url), change(options(&clock)));
        Self {
            clock,
            users,
            services,
            verifier,
        }
    }

    /// Creates pools of which the user pool signs with `RSA` as `u1`, the service pool with
    /// `OTHER_RSA` as `s1`.
    pub(super) async fn usual() -> Self {
        Self::new(&[RSA.jwk("u1")], &[OTHER_RSA.jwk("s1")]).await
    }

    pub(super) async fn trust(&self, issuers: Vec<Issuer>) {
        self.verifier.adopt(self.verifier.prepare(issuers).await);
    }

    pub(super) async fn accepts(&self, token: &str) -> bool {
        self.verifier.verify(token).await.is_ok()
    }

    pub(super) async fn rejection(&self, token: &str) -> TokenError {
        self.verifier.verify(token).await.expect_err("refused")
    }
}
