//! Who is calling: verification of bearer tokens, roles, and the one-time link of a standalone
//! installation.
//!
//! A token is verified by the gateway (`POST /admin/principal`) with the rules that it applies to
//! requests, revocation included. The result is used for 5 s. If no gateway answers, nobody has
//! access.
//!
//! Input: the header fields of a request. Output: a [`Person`], or the problem of the response.
//! Depends on `config` and `processes`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method};
use parking_lot::Mutex;
use postern_common::clock::Timestamp;
use postern_common::exit::Exit;
use postern_common::http::bearer;
use postern_common::{Clock, Code, Problem, Secret};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::{ProcessKind, RoleRules};
use crate::processes::{Call, ProcessDirectory};

/// Time for which a verification is used again.
const VERIFICATION_LIFETIME: Duration = Duration::from_secs(5);
/// Maximum number of verifications in memory.
const MAX_VERIFICATIONS: usize = 1000;
/// Time for which a session of the one-time link is valid.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum bytes of a token.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Prefix of the tokens of console sessions, by which they differ from those of issuers.
const SESSION_PREFIX: &str = "postern-console-";

type TokenDigest = [u8; 32];

/// What a person may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// May see every page.
    Viewer,
    /// May also make changes.
    Operator,
}

/// A person, or a service, with access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Person {
    /// The subject, which the processes log with each change.
    pub(crate) subject: String,
    /// The name that the pages show.
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// Verification of tokens.
#[derive(Debug)]
pub(crate) struct Access {
    directory: Arc<ProcessDirectory>,
    roles: RoleRules,
    clock: Clock,
    verified: Mutex<HashMap<TokenDigest, (Timestamp, Person)>>,
    sessions: Mutex<HashMap<TokenDigest, Timestamp>>,
    /// Digest of the secret of the one-time link, until it is used.
    one_time: Mutex<Option<TokenDigest>>,
}

// === impl Role ===

impl Role {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

// === impl Access ===

impl Access {
    pub(crate) fn new(directory: Arc<ProcessDirectory>, roles: RoleRules, clock: Clock) -> Self {
        Self {
            directory,
            roles,
            clock,
            verified: Mutex::default(),
            sessions: Mutex::default(),
            one_time: Mutex::default(),
        }
    }

    /// Returns who is calling.
    ///
    /// # Errors
    /// 401 without a valid token, 403 `insufficient_scope` for a person without a role, 503 if no
    /// gateway can verify the token.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<Person, Problem> {
        let token = bearer(headers)?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Code::TokenMalformed.into());
        }
        let digest: TokenDigest = Sha256::digest(token).into();
        if token.starts_with(SESSION_PREFIX) {
            return self.session(&digest);
        }
        let now = self.clock.now();
        let known = self.verified.lock().get(&digest).cloned();
        if let Some((at, person)) = known
            && now.since(at) < VERIFICATION_LIFETIME
        {
            return Ok(person);
        }
        let person = self.verify(token).await?;
        let mut verified = self.verified.lock();
        if verified.len() >= MAX_VERIFICATIONS {
            verified.retain(|_, (at, _)| now.since(*at) < VERIFICATION_LIFETIME);
        }
        if verified.len() < MAX_VERIFICATIONS {
            verified.insert(digest, (now, person.clone()));
        }
        Ok(person)
    }

    /// Asks a gateway.
    async fn verify(&self, token: &str) -> Result<Person, Problem> {
        let body = json!({ "authorization": format!("Bearer {token}") });
        let call = Call {
            method: Method::POST,
            ..Call::post("/admin/principal", body)
        };
        let reply = self.directory.call_any(ProcessKind::Gateway, &call).await;
        let reply = reply.map_err(|error| {
            tracing::debug!(%error, "token verification failed");
            Problem::new(Code::Unavailable).detail("no gateway answers to verify the token")
        })?;
        let answer = reply.json();
        if reply.is_success() {
            return self.person(&answer);
        }
        let code = answer["code"].as_str().and_then(Code::named);
        match code.filter(|code| code.status() == http::StatusCode::UNAUTHORIZED) {
            // The secret of the console itself may be wrong.
            Some(Code::AuthenticationRequired) => Err(Problem::new(Code::Unavailable)
                .detail("the gateway rejects the secret of the console (token_env)")),
            Some(code) => Err(code.into()),
            None if reply.status == 404 => Err(Problem::new(Code::Unavailable).detail(
                "the gateway does not offer POST /admin/principal: set [admin] token_env, or update it",
            )),
            None => Err(Problem::new(Code::Unavailable).detail("the gateway cannot verify the token")),
        }
    }

    /// Returns the person of a verified token, or 403 without a role.
    fn person(&self, principal: &Value) -> Result<Person, Problem> {
        let text = |name: &str| principal[name].as_str().filter(|text| !text.is_empty());
        let subject = text("subject").ok_or(Code::TokenClaimMissing)?;
        let is_service = text("kind") == Some("service");
        let groups = principal["groups"].as_array().into_iter().flatten();
        let groups: Vec<&str> = match is_service {
            true => Vec::new(),
            false => groups.filter_map(Value::as_str).collect(),
        };
        let username = text("username").or(text("service"));
        let service = is_service.then(|| username.unwrap_or(subject));
        let role = if self.roles.operator.includes(&groups, service) {
            Role::Operator
        } else if self.roles.viewer.includes(&groups, service) {
            Role::Viewer
        } else {
            let detail = "no role of the console lists this person ([roles] of console.toml)";
            return Err(Problem::new(Code::InsufficientScope).detail(detail));
        };
        Ok(Person {
            subject: subject.to_owned(),
            name: username.unwrap_or(subject).to_owned(),
            role,
        })
    }

    fn session(&self, digest: &TokenDigest) -> Result<Person, Problem> {
        let now = self.clock.now();
        let until = self.sessions.lock().get(digest).copied();
        match until {
            Some(until) if now < until => Ok(Person {
                subject: "standalone".to_owned(),
                name: "standalone".to_owned(),
                role: Role::Operator,
            }),
            Some(_) => Err(Code::TokenExpired.into()),
            None => Err(Code::TokenSignatureInvalid.into()),
        }
    }

    /// Creates the secret of a one-time link, which replaces an earlier one.
    ///
    /// # Errors
    /// Status 69 if the system has no randomness.
    pub(crate) fn create_one_time_secret(&self) -> Result<Secret, Exit> {
        let secret = random_secret().map_err(|error| Exit::unavailable(error.to_string()))?;
        *self.one_time.lock() = Some(Sha256::digest(secret.expose()).into());
        Ok(secret)
    }

    /// Exchanges the secret of the one-time link for the token of a session of 12 hours. The secret
    /// is valid once.
    ///
    /// # Errors
    /// 401 for any other secret.
    pub(crate) fn exchange(&self, secret: &str) -> Result<Secret, Problem> {
        let digest: TokenDigest = Sha256::digest(secret).into();
        let mut one_time = self.one_time.lock();
        if one_time.as_ref() != Some(&digest) {
            return Err(Code::InvalidTemporaryToken.into());
        }
        *one_time = None;
        let token = random_secret().map_err(|_| Code::Internal)?;
        let token = format!("{SESSION_PREFIX}{}", token.expose());
        let digest: TokenDigest = Sha256::digest(&token).into();
        let until = self.clock.now().plus(SESSION_LIFETIME);
        self.sessions.lock().insert(digest, until);
        Ok(Secret::new(token))
    }

    /// Ends a session of the one-time link.
    pub(crate) fn sign_out(&self, headers: &HeaderMap) {
        if let Ok(token) = bearer(headers) {
            let digest: TokenDigest = Sha256::digest(token).into();
            self.sessions.lock().remove(&digest);
            self.verified.lock().remove(&digest);
        }
    }
}

/// Returns 256 random bits in hexadecimal digits.
fn random_secret() -> Result<Secret, getrandom::Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)?;
    Ok(Secret::new(hex::encode(bytes)))
}
