//! Verification of bearer tokens, and the roles of their users.
//!
//! A token is verified by the gateway (`POST /admin/principal`) with the rules that it applies to
//! requests. The result is used for 5 s. If no gateway answers, who was accepted before may read for
//! 15 minutes, but no longer than the token is valid; nobody else has access, except by a one-time link.
//!
//! Input: the header fields of a request. Output: a [`Person`], or the problem of the response.
//! Depends on `attempts`, `config`, `processes` and `sessions`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::{Clock, Code, Problem, Secret};
use postern_service::http::bearer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::attempts::AttemptLimiter;
use crate::config::{ProcessKind, RoleRules};
use crate::processes::{Call, ProcessDirectory};
use crate::sessions::{ConsoleSessions, TokenDigest, is_session_token};

/// Time for which a verification is used again.
const VERIFICATION_LIFETIME: Duration = Duration::from_secs(5);
/// Time for which a person may go on reading while no gateway answers.
const OUTAGE_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Maximum time of a verification: a page that waits longer has old figures.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of verifications in memory.
const MAX_VERIFICATIONS: usize = 1000;
/// Maximum bytes of a token.
pub(crate) const MAX_TOKEN_BYTES: usize = 16 << 10;

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
    /// By what live tails are counted: the subject, or the session of a one-time link.
    pub(crate) tail_owner: String,
    /// The end of the access token.
    expires_at: Option<Timestamp>,
}

/// The header fields of a request, and the address of its client.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) headers: HeaderMap,
    /// `None` without a connection, as in a unit test.
    pub(crate) address: Option<IpAddr>,
}

/// Verification of tokens.
#[derive(Debug)]
pub(crate) struct Access {
    directory: Arc<ProcessDirectory>,
    roles: RoleRules,
    clock: Clock,
    verified: Mutex<HashMap<TokenDigest, (Timestamp, Person)>>,
    pub(crate) attempts: AttemptLimiter,
    pub(crate) sessions: ConsoleSessions,
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
    pub(crate) fn new(
        directory: Arc<ProcessDirectory>,
        roles: RoleRules,
        sessions: ConsoleSessions,
        clock: Clock,
    ) -> Self {
        Self {
            directory,
            roles,
            verified: Mutex::default(),
            attempts: AttemptLimiter::new(clock.clone()),
            sessions,
            clock,
        }
    }

    /// Returns who is calling.
    ///
    /// # Errors
    /// 401 without a valid token, 403 `insufficient_scope` for a person without a role, 429 after
    /// too many wrong tokens from the network, 503 if no gateway can verify the token.
    pub(crate) async fn authenticate(&self, caller: &Caller) -> Result<Person, Problem> {
        let token = bearer(&caller.headers)?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Code::TokenMalformed.into());
        }
        if is_session_token(token) {
            return self.local_person(caller, token);
        }
        let digest: TokenDigest = Sha256::digest(token).into();
        let now = self.clock.now();
        let known = self.verified.lock().get(&digest).cloned();
        if let Some((at, person)) = &known
            && now.since(*at) < VERIFICATION_LIFETIME
        {
            return Ok(person.clone());
        }
        // A token that was accepted before is not a guess: others in the network cannot lock its
        // holder out.
        let verified = if known.is_some() {
            self.verify(token).await
        } else {
            let attempt = self.attempts.admit(caller.address)?;
            let verified = self.verify(token).await;
            attempt.settle(&verified);
            verified
        };
        self.remember(digest, now, &verified);
        match (verified, known) {
            (Err(problem), Some((at, person)))
                if problem.code() == Code::Unavailable
                    && now.since(at) < OUTAGE_LIFETIME
                    && person.expires_at.is_some_and(|end| now < end) =>
            {
                let role = Role::Viewer;
                Ok(Person { role, ..person })
            }
            (verified, _) => verified,
        }
    }

    /// Caches an accepted token and removes a rejected one. If no gateway answers, the entry is
    /// unchanged.
    fn remember(&self, digest: TokenDigest, now: Timestamp, verified: &Result<Person, Problem>) {
        let mut known = self.verified.lock();
        match verified {
            Ok(person) => {
                if known.len() >= MAX_VERIFICATIONS {
                    known.retain(|_, (at, _)| now.since(*at) < VERIFICATION_LIFETIME);
                }
                if known.len() < MAX_VERIFICATIONS {
                    known.insert(digest, (now, person.clone()));
                }
            }
            Err(problem) if problem.code() == Code::Unavailable => {}
            Err(_) => {
                known.remove(&digest);
            }
        }
    }

    /// Returns the person of a session of the one-time link. Such a token is sent to no process.
    fn local_person(&self, caller: &Caller, token: &str) -> Result<Person, Problem> {
        let checked = self.sessions.check(token).map_err(Problem::new);
        if checked.is_err() {
            self.attempts.admit(caller.address)?.settle(&checked);
        }
        checked.map(|()| Person {
            subject: self.sessions.holder.to_owned(),
            name: self.sessions.holder.to_owned(),
            role: Role::Operator,
            tail_owner: format!("session {}", hex::encode(&Sha256::digest(token)[..8])),
            expires_at: None,
        })
    }

    /// Asks a gateway.
    async fn verify(&self, token: &str) -> Result<Person, Problem> {
        let body = json!({ "authorization": format!("Bearer {token}") });
        let call = Call::post("/admin/principal", body);
        let calling = self.directory.call_any(ProcessKind::Gateway, &call);
        let reply = timeout(VERIFICATION_TIMEOUT, calling).await;
        let Ok(Ok(reply)) = reply else {
            tracing::debug!(?reply, "token verification failed");
            let detail = "no gateway answers to verify the token. On the host of the console, `postern-console link` prints a link that signs in without it";
            return Err(Problem::new(Code::Unavailable).detail(detail));
        };
        let answer = reply.json();
        if reply.is_success() {
            return self.person(&answer);
        }
        let code = answer["code"].as_str().and_then(Code::named);
        let code = code.filter(|code| code.status() == http::StatusCode::UNAUTHORIZED);
        let detail = match code {
            // The secret of the console itself may be wrong.
            Some(Code::AuthenticationRequired) => {
                "the gateway rejects the secret of the console (token_env)"
            }
            Some(code) => return Err(code.into()),
            None if reply.status == 404 => {
                "the gateway does not offer POST /admin/principal: set [admin] token_env, or update it"
            }
            None => "the gateway cannot verify the token",
        };
        Err(Problem::new(Code::Unavailable).detail(detail))
    }

    /// Returns the person of a verified token, or 403 without a role.
    fn person(&self, principal: &Value) -> Result<Person, Problem> {
        let text = |name: &str| principal[name].as_str().filter(|text| !text.is_empty());
        let subject = text("subject").ok_or(Code::TokenClaimMissing)?;
        let is_service = text("kind") == Some("service");
        // Those that the actor pool has given: `groups` are those of any issuer that the gateway
        // accepts.
        let groups = principal["actorGroups"].as_array();
        let groups = groups.filter(|_| !is_service).into_iter().flatten();
        let groups: Vec<&str> = groups.filter_map(Value::as_str).collect();
        let username = text("username").or(text("service"));
        let service = is_service.then(|| username.unwrap_or(subject));
        let role = if self.roles.operator.includes(&groups, service) {
            Role::Operator
        } else if self.roles.viewer.includes(&groups, service) {
            Role::Viewer
        } else {
            let operators = self.roles.operator.groups.first();
            let group = operators.map_or("of [roles]", String::as_str);
            let detail = format!(
                "no role of the console lists this person: add them to the group {group} of the pool, or their group to [roles] of console.toml"
            );
            return Err(Problem::new(Code::InsufficientScope).detail(detail));
        };
        Ok(Person {
            subject: subject.to_owned(),
            name: username.unwrap_or(subject).to_owned(),
            role,
            tail_owner: format!("subject {subject}"),
            expires_at: text("expiresAt").and_then(Timestamp::parse),
        })
    }

    /// Ends the session of a caller.
    pub(crate) fn sign_out(&self, caller: &Caller) {
        if let Ok(token) = bearer(&caller.headers) {
            let digest: TokenDigest = Sha256::digest(token).into();
            self.verified.lock().remove(&digest);
            self.sessions.end(token);
        }
    }

    /// Exchanges the secret of a one-time link for the token of a session.
    ///
    /// # Errors
    /// 401 for an invalid secret, 429 after too many attempts.
    pub(crate) fn exchange(&self, caller: &Caller, secret: &str) -> Result<Secret, Problem> {
        let attempt = self.attempts.admit(caller.address)?;
        let exchanged = self.sessions.exchange(secret).map_err(Problem::new);
        attempt.settle(&exchanged);
        exchanged
    }

    /// Creates a one-time link for a program of this machine that knows the secret.
    ///
    /// # Errors
    /// 404 without links, 401 for a wrong secret, 429 after too many attempts.
    pub(crate) fn create_link(&self, caller: &Caller) -> Result<Secret, Problem> {
        if self.sessions.link_command().is_none() {
            return Err(Code::NotFound.into());
        }
        let token = bearer(&caller.headers)?;
        let attempt = self.attempts.admit(caller.address)?;
        let created = self.sessions.request_link(token).map_err(Problem::new);
        attempt.settle(&created);
        created
    }
}
