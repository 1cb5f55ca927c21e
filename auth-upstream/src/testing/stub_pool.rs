//! A stub of the actor pool and the service pool with Cognito's wire format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use postern_common::Clock;
use postern_common::identity::secret_hash;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{CallPauses, FailureScript, PausePoint, SigningKey, StubFailure, spawn};
use crate::pool::AccessTokenClaims;

/// An actor pool and a service pool on a loopback socket.
pub(crate) struct StubPool {
    pub(crate) url: String,
    clock: Clock,
    key: SigningKey,
    state: Mutex<PoolState>,
    /// Failures of the next calls.
    pub(crate) failures: FailureScript,
    /// Paused calls.
    pub(crate) pauses: CallPauses,
    /// Whether SignUp confirms users.
    pub(crate) auto_confirm: AtomicBool,
    /// Whether GetTokensFromRefreshToken is not supported.
    pub(crate) lacks_rotation: AtomicBool,
}

#[derive(Default)]
struct PoolState {
    /// By e-mail address.
    users: BTreeMap<String, StubUser>,
    /// Subjects by refresh token.
    refresh: BTreeMap<String, String>,
    calls: Vec<String>,
}

/// A user of the actor pool.
#[derive(Clone, Debug)]
pub(crate) struct StubUser {
    pub(crate) subject: String,
    pub(crate) password: String,
    pub(crate) status: &'static str,
    pub(crate) verified: bool,
    pub(crate) enabled: bool,
    created_at: i64,
}

/// Name and message of an exception.
type PoolException = (&'static str, &'static str);

const WRONG_CREDENTIALS: PoolException =
    ("NotAuthorizedException", "Incorrect username or password.");

impl StubPool {
    pub(super) async fn start(clock: Clock) -> Arc<Self> {
        let mut stub = None;
        spawn(|url| {
            let pool = Arc::new(Self {
                url: url.to_owned(),
                clock,
                key: SigningKey::new("k1"),
                state: Mutex::default(),
                failures: FailureScript::default(),
                pauses: CallPauses::default(),
                auto_confirm: AtomicBool::new(false),
                lacks_rotation: AtomicBool::new(false),
            });
            stub = Some(Arc::clone(&pool));
            let keys = |State(pool): State<Arc<Self>>| async move { Json(pool.key.jwks()) };
            Router::new()
                .route("/", post(call))
                .route("/{pool}/.well-known/jwks.json", get(keys))
                .with_state(pool)
        })
        .await;
        stub.expect("created with the router")
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    pub(crate) fn user(&self, email: &str) -> Option<StubUser> {
        self.state().users.get(email).cloned()
    }

    pub(crate) fn add_user(&self, email: &str, password: &str, verified: bool) -> StubUser {
        let user = StubUser {
            subject: Uuid::new_v4().to_string(),
            password: password.to_owned(),
            status: CONFIRMED,
            verified,
            enabled: true,
            created_at: self.clock.now().unix_seconds() - 86_400,
        };
        self.state().users.insert(email.to_owned(), user.clone());
        user
    }

    /// Changes a user, as an operator can.
    pub(crate) fn alter(&self, email: &str, change: impl FnOnce(&mut StubUser)) {
        self.state()
            .users
            .entry(email.to_owned())
            .and_modify(change);
    }

    fn delete_users(&self, is_deleted: impl Fn(&StubUser) -> bool) {
        let mut state = self.state();
        let deleted: Vec<String> = state
            .users
            .values()
            .filter(|user| is_deleted(user))
            .map(|user| user.subject.clone())
            .collect();
        state.users.retain(|_, user| !is_deleted(user));
        state.refresh.retain(|_, owner| !deleted.contains(owner));
    }

    /// Returns how often an operation was called.
    pub(crate) fn count(&self, operation: &str) -> usize {
        self.state()
            .calls
            .iter()
            .filter(|call| *call == operation)
            .count()
    }

    /// Returns the number of valid refresh tokens.
    pub(crate) fn live_refresh_tokens(&self) -> usize {
        self.state().refresh.len()
    }

    fn handle(&self, operation: &str, body: &Value) -> Result<Value, PoolException> {
        match operation {
            "InitiateAuth" | "AdminInitiateAuth" => self.initiate(body),
            "SignUp" => self.sign_up(body),
            "ConfirmSignUp" => self.confirm(body),
            "GetTokensFromRefreshToken" => self.rotate(body),
            "RevokeToken" => {
                self.state()
                    .refresh
                    .remove(body["Token"].as_str().unwrap_or_default());
                Ok(json!({}))
            }
            "AdminConfirmSignUp" => self.change_user(body, |user| user.status = CONFIRMED),
            "AdminSetUserPassword" => {
                let password = text(body, "Password");
                self.change_user(body, |user| {
                    user.password = password;
                    user.status = CONFIRMED;
                })
            }
            "AdminUserGlobalSignOut" => {
                let subject = self.named_user(body)?.1.subject;
                self.state().refresh.retain(|_, owner| *owner != subject);
                Ok(json!({}))
            }
            "AdminDeleteUser" => {
                let subject = self.named_user(body)?.1.subject;
                self.delete_users(|user| user.subject == subject);
                Ok(json!({}))
            }
            "DeleteUser" => {
                let claims =
                    AccessTokenClaims::decode(body["AccessToken"].as_str().unwrap_or_default());
                let subject = claims.ok_or(WRONG_CREDENTIALS)?.sub;
                self.delete_users(|user| user.subject == subject);
                Ok(json!({}))
            }
            "AdminGetUser" => self
                .named_user(body)
                .map(|(email, user)| describe(&email, &user, "UserAttributes")),
            "AdminCreateUser" => self.create(body),
            "ForgotPassword" | "ResendConfirmationCode" => self.named_user(body).map(|_| json!({})),
            "ConfirmForgotPassword" if body["ConfirmationCode"] == "123456" => {
                let password = text(body, "Password");
                self.change_user(body, |user| user.password = password)
            }
            "ConfirmForgotPassword" => Err(("CodeMismatchException", "Invalid verification code")),
            "RespondToAuthChallenge" | "AdminRespondToAuthChallenge" => self.respond(body),
            // An app client without password sign-in that can write the service id.
            "DescribeUserPoolClient" => Ok(json!({ "UserPoolClient": {
                "ExplicitAuthFlows": ["ALLOW_REFRESH_TOKEN_AUTH"], "ReadAttributes": ["email"],
                "WriteAttributes": ["email", "custom:service_id"],
            } })),
            _ => Err(("UnknownOperationException", "")),
        }
    }

    fn initiate(&self, body: &Value) -> Result<Value, PoolException> {
        let parameters = &body["AuthParameters"];
        if body["ClientId"] == "service-client" {
            let now = self.clock.now().unix_seconds();
            let claims = json!({
                "iss": format!("{}/us-west-2_services", self.url), "sub": "service-1", "aud": "service-client",
                "token_use": "id", "custom:service_id": "auth", "iat": now, "exp": now + 3600,
            });
            let token = self.key.sign(&claims);
            return Ok(
                json!({ "AuthenticationResult": { "AccessToken": token, "IdToken": token } }),
            );
        }
        if body["AuthFlow"] == "REFRESH_TOKEN_AUTH" {
            if !self.lacks_rotation.load(Ordering::SeqCst) {
                return Err(("InvalidParameterException", "flow not enabled"));
            }
            let token = text(parameters, "REFRESH_TOKEN");
            let subject = self
                .state()
                .refresh
                .get(&token)
                .cloned()
                .ok_or(INVALID_REFRESH)?;
            check_secret_hash(parameters, &subject)?;
            return Ok(json!({ "AuthenticationResult": self.result(&subject, None) }));
        }
        let name = text(parameters, "USERNAME");
        check_secret_hash(parameters, &name)?;
        let (_, user) = self.find(&name).ok_or(WRONG_CREDENTIALS)?;
        if user.password != parameters["PASSWORD"] {
            return Err(WRONG_CREDENTIALS);
        }
        if !user.enabled {
            return Err(("NotAuthorizedException", "User is disabled."));
        }
        if user.status == UNCONFIRMED {
            return Err(("UserNotConfirmedException", "User is not confirmed."));
        }
        if user.password.starts_with("Temporary") {
            return Ok(json!({
                "ChallengeName": "NEW_PASSWORD_REQUIRED", "Session": "pool-session",
                "ChallengeParameters": { "USER_ID_FOR_SRP": user.subject, "requiredAttributes": "[]" },
            }));
        }
        Ok(json!({ "AuthenticationResult": self.signed_in(&user.subject) }))
    }

    fn respond(&self, body: &Value) -> Result<Value, PoolException> {
        let answers = &body["ChallengeResponses"];
        let name = text(answers, "USERNAME");
        check_secret_hash(answers, &name)?;
        if body["Session"] != "pool-session" {
            return Err(("NotAuthorizedException", "Invalid session for the user."));
        }
        let (email, user) = self.find(&name).ok_or(WRONG_CREDENTIALS)?;
        let next = |name: &str| Ok(json!({ "ChallengeName": name, "Session": "pool-session" }));
        match body["ChallengeName"].as_str().unwrap_or_default() {
            "SELECT_MFA_TYPE" => return next("SOFTWARE_TOKEN_MFA"),
            // Like a pool whose trigger repeats the challenge until the response is right.
            "CUSTOM_CHALLENGE" if answers["ANSWER"] != "right" => return next("CUSTOM_CHALLENGE"),
            "SOFTWARE_TOKEN_MFA" if answers["SOFTWARE_TOKEN_MFA_CODE"] != "123456" => {
                return Err(("CodeMismatchException", "Invalid code received for user"));
            }
            "CUSTOM_CHALLENGE" | "SOFTWARE_TOKEN_MFA" => {
                return Ok(json!({ "AuthenticationResult": self.signed_in(&user.subject) }));
            }
            _ => {}
        }
        let password = text(answers, "NEW_PASSWORD");
        self.state()
            .users
            .entry(email)
            .and_modify(|user| user.password = password);
        Ok(json!({ "AuthenticationResult": self.signed_in(&user.subject) }))
    }

    fn create(&self, body: &Value) -> Result<Value, PoolException> {
        let email = text(body, "Username");
        if self.user(&email).is_some() {
            return Err(("UsernameExistsException", "User account already exists"));
        }
        self.add_user(&email, &Uuid::new_v4().to_string(), true);
        let now = self.clock.now().unix_seconds();
        self.alter(&email, |user| {
            user.status = "FORCE_CHANGE_PASSWORD";
            user.created_at = now;
        });
        let user = self.user(&email).ok_or(WRONG_CREDENTIALS)?;
        Ok(json!({ "User": describe(&email, &user, "Attributes") }))
    }

    fn sign_up(&self, body: &Value) -> Result<Value, PoolException> {
        let email = text(body, "Username");
        if body["SecretHash"] != hash(&email) {
            return Err((
                "NotAuthorizedException",
                "Unable to verify secret hash for client",
            ));
        }
        if self.user(&email).is_some() {
            return Err(("UsernameExistsException", "User already exists"));
        }
        let password = text(body, "Password");
        if password.len() < 8 {
            return Err(("InvalidPasswordException", "Password not long enough"));
        }
        let confirmed = self.auto_confirm.load(Ordering::SeqCst);
        let subject = Uuid::new_v4().to_string();
        let created_at = self.clock.now().unix_seconds();
        let status = if confirmed { CONFIRMED } else { UNCONFIRMED };
        let user = StubUser {
            subject: subject.clone(),
            password,
            status,
            verified: false,
            enabled: true,
            created_at,
        };
        self.state().users.insert(email, user);
        Ok(json!({ "UserConfirmed": confirmed, "UserSub": subject }))
    }

    fn confirm(&self, body: &Value) -> Result<Value, PoolException> {
        let (_, user) = self.named_user(body)?;
        if user.status == CONFIRMED {
            return Err((
                "NotAuthorizedException",
                "User cannot be confirmed. Current status is CONFIRMED",
            ));
        }
        if body["ConfirmationCode"] != "123456" {
            return Err((
                "CodeMismatchException",
                "Invalid verification code provided, please try again.",
            ));
        }
        self.change_user(body, |user| {
            user.status = CONFIRMED;
            user.verified = true;
        })
    }

    fn rotate(&self, body: &Value) -> Result<Value, PoolException> {
        if self.lacks_rotation.load(Ordering::SeqCst) {
            return Err(("UnknownOperationException", ""));
        }
        if body["ClientSecret"] != "actor-secret" {
            return Err((
                "NotAuthorizedException",
                "Unable to verify secret for client",
            ));
        }
        let token = text(body, "RefreshToken");
        let subject = self.state().refresh.remove(&token).ok_or(INVALID_REFRESH)?;
        Ok(json!({ "AuthenticationResult": self.signed_in(&subject) }))
    }

    fn signed_in(&self, subject: &str) -> Value {
        let refresh = Uuid::new_v4().to_string();
        self.state()
            .refresh
            .insert(refresh.clone(), subject.to_owned());
        self.result(subject, Some(&refresh))
    }

    fn result(&self, subject: &str, refresh: Option<&str>) -> Value {
        let now = self.clock.now().unix_seconds();
        let claims = json!({
            "iss": format!("{}/us-west-2_actors", self.url), "sub": subject, "username": subject,
            "client_id": "actor-client", "token_use": "access", "scope": "aws.cognito.signin.user.admin",
            "iat": now, "exp": now + 3600, "jti": Uuid::new_v4().to_string(),
        });
        json!({ "AccessToken": self.key.sign(&claims), "IdToken": "i.d.t", "RefreshToken": refresh,
            "ExpiresIn": 3600, "TokenType": "Bearer" })
    }

    fn find(&self, name: &str) -> Option<(String, StubUser)> {
        let state = self.state();
        let found = state
            .users
            .iter()
            .find(|(email, user)| *email == name || user.subject == name)?;
        Some((found.0.clone(), found.1.clone()))
    }

    fn named_user(&self, body: &Value) -> Result<(String, StubUser), PoolException> {
        self.find(&text(body, "Username"))
            .ok_or(("UserNotFoundException", "User does not exist."))
    }

    fn change_user(
        &self,
        body: &Value,
        change: impl FnOnce(&mut StubUser),
    ) -> Result<Value, PoolException> {
        let (email, _) = self.named_user(body)?;
        self.state().users.entry(email).and_modify(change);
        Ok(json!({}))
    }
}

const CONFIRMED: &str = "CONFIRMED";
const UNCONFIRMED: &str = "UNCONFIRMED";
const INVALID_REFRESH: PoolException = ("NotAuthorizedException", "Invalid Refresh Token");

fn describe(email: &str, user: &StubUser, attributes: &str) -> Value {
    json!({
        "Username": user.subject, "UserStatus": user.status, "Enabled": user.enabled, "UserCreateDate": user.created_at,
        attributes: [
            { "Name": "sub", "Value": user.subject },
            { "Name": "email", "Value": email },
            { "Name": "email_verified", "Value": user.verified.to_string() },
        ],
    })
}

fn text(body: &Value, name: &str) -> String {
    body[name].as_str().unwrap_or_default().to_owned()
}

fn hash(name: &str) -> String {
    secret_hash(name, "actor-client", "actor-secret")
}

fn check_secret_hash(parameters: &Value, name: &str) -> Result<(), PoolException> {
    if parameters["SECRET_HASH"] == hash(name) {
        return Ok(());
    }
    Err((
        "NotAuthorizedException",
        "Unable to verify secret hash for client actor-client",
    ))
}

async fn call(State(pool): State<Arc<StubPool>>, headers: HeaderMap, body: String) -> Response {
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let operation = target.rsplit('.').next().unwrap_or_default();
    pool.state().calls.push(operation.to_owned());
    if let Some(StubFailure {
        status,
        name,
        message,
    }) = pool.failures.next(operation)
    {
        if status == 0 {
            // Does not respond until the caller times out.
            std::future::pending::<()>().await;
        }
        let status = StatusCode::from_u16(status).expect("a status");
        return response(status, &json!({ "__type": name, "message": message }));
    }
    let body: Value = serde_json::from_str(&body).expect("JSON");
    if operation.starts_with("Admin") && !headers.contains_key("authorization") {
        return response(
            StatusCode::BAD_REQUEST,
            &json!({ "__type": "MissingAuthenticationTokenException" }),
        );
    }
    pool.pauses.pass(operation, PausePoint::Before).await;
    let result = pool.handle(operation, &body);
    pool.pauses.pass(operation, PausePoint::After).await;
    match result {
        Ok(body) => response(StatusCode::OK, &body),
        Err((name, message)) => response(
            StatusCode::BAD_REQUEST,
            &json!({ "__type": name, "message": message }),
        ),
    }
}

fn response(status: StatusCode, body: &Value) -> Response {
    (
        status,
        [("content-type", "application/x-amz-json-1.1")],
        body.to_string(),
    )
        .into_response()
}
