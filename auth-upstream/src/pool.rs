//! The actor pool: every call that a user's own journey makes to Amazon Cognito, or to a server
//! that speaks its wire. Calls under the operator's credentials are in [`admin`]; what refusals
//! mean is in [`fault`].

pub(crate) mod admin;
pub(crate) mod fault;
mod gate;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::config::retry::RetryConfig;
use aws_sdk_cognitoidentityprovider::config::timeout::TimeoutConfig;
use aws_sdk_cognitoidentityprovider::types::{
    AttributeType, AuthFlowType, AuthenticationResultType, ChallengeNameType,
};
use postern_common::identity::Pool;
use postern_common::{Clock, Secret};

use self::admin::AdminPool;
use self::fault::Fault;
use self::gate::Gate;
use crate::email::Email;
use crate::metrics::Metrics;
use crate::token_set::{Claims, PoolTokens};

/// How passwords are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    /// InitiateAuth with USER_PASSWORD_AUTH: needs no AWS credentials.
    #[default]
    UserPassword,
    /// AdminInitiateAuth with ADMIN_USER_PASSWORD_AUTH: for clients that only servers may use.
    AdminUserPassword,
}

/// The pool of the people who sign in.
#[derive(Debug)]
pub(crate) struct UserPool {
    client: Client,
    gate: Arc<Gate>,
    /// Calls under AWS credentials, where the operator gave some.
    pub(crate) admin: Option<AdminPool>,
    pool: Pool,
    flow: Flow,
    /// Set once the pool has said that it does not know GetTokensFromRefreshToken.
    lacks_rotation: AtomicBool,
}

/// What a sign-in step ends with.
#[derive(Debug)]
pub(crate) enum SignIn {
    /// The user is signed in.
    Tokens(PoolTokens),
    /// The pool wants another step.
    Challenge(PoolChallenge),
}

/// A step that the pool wants before it gives tokens.
#[derive(Debug)]
pub(crate) struct PoolChallenge {
    /// Cognito's name for it, such as `NEW_PASSWORD_REQUIRED`.
    pub(crate) name: String,
    /// The pool's own session.
    pub(crate) session: String,
    /// The pool's real user name.
    pub(crate) username: String,
    /// What the person must know to answer, such as where a code was sent.
    pub(crate) parameters: HashMap<String, String>,
}

/// What SignUp made.
#[derive(Debug)]
pub(crate) struct SignedUp {
    /// The user's subject.
    pub(crate) subject: String,
    /// Whether the user can sign in at once.
    pub(crate) confirmed: bool,
}

/// What a step ended with: the four calls that sign in answer alike, each with a type of its own.
macro_rules! step {
    ($name:expr, $answer:expr) => {
        $crate::pool::outcome(
            $name,
            $answer.authentication_result,
            $answer.challenge_name,
            $answer.session,
            $answer.challenge_parameters,
        )
    };
}

use step;

// === impl UserPool ===

impl UserPool {
    /// From a client that signs nothing and one that does, each with our own deadline and no
    /// repetitions: what may be repeated is decided by the journeys.
    pub(crate) fn new(
        (client, admin): (Client, Option<Client>),
        pool: &Pool,
        flow: Flow,
        deadline: Duration,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        let gate = Arc::new(Gate::new(
            clock.clone(),
            pool.jwks_url.clone(),
            metrics.clone(),
        ));
        let admin = admin.map(|client| {
            AdminPool::new(
                with_deadline(&client, deadline),
                Arc::clone(&gate),
                pool.clone(),
            )
        });
        let client = with_deadline(&client, deadline);
        Self {
            client,
            gate,
            admin,
            pool: pool.clone(),
            flow,
            lacks_rotation: AtomicBool::new(false),
        }
    }

    /// The client at the pool that tokens are for.
    pub(crate) fn client_id(&self) -> &str {
        &self.pool.client_id
    }

    /// Signs in with what the person typed. The secret hash is over that name, not the pool's own.
    pub(crate) async fn sign_in(&self, name: &str, password: &Secret) -> Result<SignIn, Fault> {
        let mut parameters = self.parameters(name);
        parameters.insert("PASSWORD".to_owned(), password.expose().to_owned());
        if let (Flow::AdminUserPassword, Some(admin)) = (self.flow, &self.admin) {
            return admin.sign_in(name, parameters).await;
        }
        let call = self
            .client
            .initiate_auth()
            .auth_flow(AuthFlowType::UserPasswordAuth)
            .client_id(&self.pool.client_id)
            .set_auth_parameters(Some(parameters));
        let answer = self.gate.call(call.send()).await?;
        step!(name, answer)
    }

    /// Answers a challenge under the pool's real user name.
    pub(crate) async fn answer(
        &self,
        challenge: &str,
        session: &str,
        username: &str,
        answers: HashMap<String, String>,
    ) -> Result<SignIn, Fault> {
        let mut parameters = self.parameters(username);
        parameters.extend(answers);
        if let (Flow::AdminUserPassword, Some(admin)) = (self.flow, &self.admin) {
            return admin.answer(challenge, session, username, parameters).await;
        }
        let call = self
            .client
            .respond_to_auth_challenge()
            .client_id(&self.pool.client_id)
            .challenge_name(ChallengeNameType::from(challenge))
            .session(session)
            .set_challenge_responses(Some(parameters));
        let answer = self.gate.call(call.send()).await?;
        step!(username, answer)
    }

    /// Makes a user who signs in with an e-mail address.
    pub(crate) async fn sign_up(
        &self,
        email: &Email,
        password: &Secret,
    ) -> Result<SignedUp, Fault> {
        let address = AttributeType::builder()
            .name("email")
            .value(email.as_str())
            .build();
        let address = address.map_err(|_| Fault::InvalidParameter)?;
        let call = self
            .client
            .sign_up()
            .client_id(&self.pool.client_id)
            .set_secret_hash(self.hash(email.as_str()))
            .username(email.as_str())
            .password(password.expose())
            .user_attributes(address);
        let answer = self.gate.call(call.send()).await?;
        Ok(SignedUp {
            subject: answer.user_sub,
            confirmed: answer.user_confirmed,
        })
    }

    /// Confirms an address with the code that was sent there.
    pub(crate) async fn confirm(&self, email: &Email, code: &str) -> Result<(), Fault> {
        let call = self
            .client
            .confirm_sign_up()
            .client_id(&self.pool.client_id)
            .set_secret_hash(self.hash(email.as_str()))
            .username(email.as_str())
            .confirmation_code(code);
        self.gate.call(call.send()).await.map(drop)
    }

    /// Has the confirmation code sent once more.
    pub(crate) async fn resend_code(&self, email: &Email) -> Result<(), Fault> {
        let call = self
            .client
            .resend_confirmation_code()
            .client_id(&self.pool.client_id)
            .set_secret_hash(self.hash(email.as_str()))
            .username(email.as_str());
        self.gate.call(call.send()).await.map(drop)
    }

    /// New tokens for a refresh token: GetTokensFromRefreshToken, or REFRESH_TOKEN_AUTH where the
    /// pool lacks that call or has it switched off for this client.
    pub(crate) async fn refresh(&self, username: &str, token: &str) -> Result<PoolTokens, Fault> {
        if !self.lacks_rotation.load(Ordering::Relaxed) {
            match self.rotate(token).await {
                Err(Fault::Unsupported) => self.lacks_rotation.store(true, Ordering::Relaxed),
                decided => return decided,
            }
        }
        let mut parameters = self.parameters(username);
        parameters.remove("USERNAME");
        parameters.insert("REFRESH_TOKEN".to_owned(), token.to_owned());
        let call = self
            .client
            .initiate_auth()
            .auth_flow(AuthFlowType::RefreshTokenAuth)
            .client_id(&self.pool.client_id)
            .set_auth_parameters(Some(parameters));
        let answer = match self.gate.call(call.send()).await {
            // Its rotation was switched on meanwhile: the next refresh asks for that again.
            Err(fault @ Fault::Misconfigured(_)) => {
                self.lacks_rotation.store(false, Ordering::Relaxed);
                return Err(fault);
            }
            decided => decided?,
        };
        tokens(answer.authentication_result)
    }

    async fn rotate(&self, token: &str) -> Result<PoolTokens, Fault> {
        let call = self
            .client
            .get_tokens_from_refresh_token()
            .client_id(&self.pool.client_id)
            .set_client_secret(
                self.pool
                    .client_secret
                    .as_ref()
                    .map(|secret| secret.expose().to_owned()),
            )
            .refresh_token(token);
        let answer = self.gate.call(call.send()).await?;
        tokens(answer.authentication_result)
    }

    /// Revokes a refresh token and every access token that came from it.
    pub(crate) async fn revoke(&self, token: &str) -> Result<(), Fault> {
        let call = self
            .client
            .revoke_token()
            .client_id(&self.pool.client_id)
            .set_client_secret(
                self.pool
                    .client_secret
                    .as_ref()
                    .map(|secret| secret.expose().to_owned()),
            )
            .token(token);
        self.gate.call(call.send()).await.map(drop)
    }

    /// Has a code sent that allows a new password.
    pub(crate) async fn forgot_password(&self, email: &Email) -> Result<(), Fault> {
        let call = self
            .client
            .forgot_password()
            .client_id(&self.pool.client_id)
            .set_secret_hash(self.hash(email.as_str()))
            .username(email.as_str());
        self.gate.call(call.send()).await.map(drop)
    }

    /// Sets a new password with the code.
    pub(crate) async fn reset_password(
        &self,
        email: &Email,
        code: &str,
        password: &Secret,
    ) -> Result<(), Fault> {
        let call = self
            .client
            .confirm_forgot_password()
            .client_id(&self.pool.client_id)
            .set_secret_hash(self.hash(email.as_str()))
            .username(email.as_str())
            .confirmation_code(code)
            .password(password.expose());
        self.gate.call(call.send()).await.map(drop)
    }

    /// Deletes the user whom an access token belongs to; needs no credentials but the token.
    pub(crate) async fn delete_own_user(&self, access_token: &str) -> Result<(), Fault> {
        let call = self.client.delete_user().access_token(access_token);
        self.gate.call(call.send()).await.map(drop)
    }

    fn hash(&self, name: &str) -> Option<String> {
        self.pool.secret_hash(name)
    }

    fn parameters(&self, name: &str) -> HashMap<String, String> {
        let mut parameters = HashMap::from([("USERNAME".to_owned(), name.to_owned())]);
        parameters.extend(self.hash(name).map(|hash| ("SECRET_HASH".to_owned(), hash)));
        parameters
    }
}

fn with_deadline(client: &Client, deadline: Duration) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1).min(deadline))
        .operation_timeout(deadline)
        .build();
    let config = client.config().to_builder();
    Client::from_conf(
        config
            .timeout_config(timeouts)
            .retry_config(RetryConfig::disabled())
            .build(),
    )
}

fn outcome(
    name: &str,
    result: Option<AuthenticationResultType>,
    challenge: Option<ChallengeNameType>,
    session: Option<String>,
    parameters: Option<HashMap<String, String>>,
) -> Result<SignIn, Fault> {
    let Some(challenge) = challenge else {
        return tokens(result).map(SignIn::Tokens);
    };
    let parameters = parameters.unwrap_or_default();
    let username = parameters
        .get("USER_ID_FOR_SRP")
        .map_or(name, String::as_str)
        .to_owned();
    Ok(SignIn::Challenge(PoolChallenge {
        name: challenge.as_str().to_owned(),
        session: session.unwrap_or_default(),
        username,
        parameters,
    }))
}

fn tokens(result: Option<AuthenticationResultType>) -> Result<PoolTokens, Fault> {
    let unreadable = || Fault::Unavailable("an answer without tokens");
    let result = result.ok_or_else(unreadable)?;
    let access_token = result.access_token.ok_or_else(unreadable)?;
    let claims = Claims::of(&access_token).ok_or_else(unreadable)?;
    let id_token = result.id_token.unwrap_or_default();
    Ok(PoolTokens {
        access_token,
        id_token,
        refresh_token: result.refresh_token,
        claims,
    })
}
