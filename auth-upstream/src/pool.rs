//! The client of the actor pool: Amazon Cognito, or a server with the same API.
//!
//! Every call passes a circuit breaker. Calls under the operator's AWS credentials are in
//! [`admin`] and [`users`]; the mapping of errors to problem codes is in [`error`].

pub(crate) mod admin;
mod circuit_breaker;
pub(crate) mod client;
pub(crate) mod error;
mod sign_in_step;
mod social;
mod tokens;
pub(crate) mod users;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::types::{AuthFlowType, ChallengeNameType};
use postern_core::email::EmailAddress;
use postern_core::identity::{IdentityConfig, Pool, SOCIAL_PROOF, SocialProofKey};
use postern_core::{Clock, Secret};

use self::admin::{PoolAdmin, attribute};
use self::circuit_breaker::PoolCircuitBreaker;
use self::client::{AwsCredentials, pool_client};
use self::error::{PoolFault, PoolResult};
use self::sign_in_step::StepResponse;
pub(crate) use self::sign_in_step::{PoolChallenge, SignInStep};
pub(crate) use self::social::SocialChallenge;
pub(crate) use self::tokens::PoolTokens;
use crate::telemetry::{Metrics, PoolOperation as Op};

#[derive(Debug)]
pub(crate) struct UserPool {
    client: Client,
    breaker: Arc<PoolCircuitBreaker>,
    /// Calls under AWS credentials; `None` if no credentials are configured.
    pub(crate) admin: Option<PoolAdmin>,
    pool: Pool,
    social_proof_key: Option<SocialProofKey>,
    clock: Clock,
    /// Whether refreshes use REFRESH_TOKEN_AUTH, because the pool has refused
    /// GetTokensFromRefreshToken.
    uses_refresh_auth: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct SignUpResult {
    pub(crate) subject: String,
    /// Whether the user can sign in without confirming the address.
    pub(crate) confirmed: bool,
    pub(crate) code_sent: bool,
}

// === impl UserPool ===

macro_rules! user_call {
    ($pool:expr, $operation:ident, $email:expr) => {
        $pool
            .client
            .$operation()
            .client_id(&$pool.pool.client_id)
            .set_secret_hash($pool.pool.secret_hash($email.as_str()))
            .username($email.as_str())
    };
}

impl UserPool {
    pub(crate) async fn open(
        identity: &IdentityConfig,
        credentials: Option<AwsCredentials>,
        social_proof_key: Option<SocialProofKey>,
        deadline: Duration,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        let pool = identity.actor.clone();
        let (clock, jwks_url) = (clock.clone(), pool.jwks_url.clone());
        let breaker = PoolCircuitBreaker::new(clock.clone(), jwks_url, metrics.clone());
        let breaker = Arc::new(breaker);
        let admin = match credentials {
            Some(credentials) => Some(PoolAdmin {
                client: pool_client(identity, Some(credentials), deadline).await,
                breaker: Arc::clone(&breaker),
                pool: pool.clone(),
            }),
            None => None,
        };
        Self {
            client: pool_client(identity, None, deadline).await,
            breaker,
            admin,
            pool,
            social_proof_key,
            clock,
            uses_refresh_auth: AtomicBool::new(false),
        }
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.pool.client_id
    }

    /// Signs in with a password. The secret hash is computed over `name`, which may be an e-mail
    /// address.
    pub(crate) async fn sign_in(&self, name: &str, password: &Secret) -> PoolResult<SignInStep> {
        let password = Some(("PASSWORD", password.expose()));
        let response = self.initiate(AuthFlowType::UserPasswordAuth, name, password);
        response.await?.step(Op::InitiateAuth, name)
    }

    /// Calls InitiateAuth for a user, whose name is not sent to refresh.
    async fn initiate(
        &self,
        flow: AuthFlowType,
        name: &str,
        credential: Option<(&str, &str)>,
    ) -> PoolResult<StepResponse> {
        let mut parameters = self.parameters(name);
        if flow == AuthFlowType::RefreshTokenAuth {
            parameters.remove("USERNAME");
        }
        parameters.extend(credential.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let call = self
            .client
            .initiate_auth()
            .auth_flow(flow)
            .client_id(&self.pool.client_id)
            .set_auth_parameters(Some(parameters));
        let response = self.breaker.call(Op::InitiateAuth, call.send()).await?;
        Ok(StepResponse {
            result: response.authentication_result,
            challenge: response.challenge_name,
            session: response.session,
            parameters: response.challenge_parameters,
        })
    }

    /// Responds to a challenge. `username` is the pool's user name.
    pub(crate) async fn answer_challenge(
        &self,
        challenge: &str,
        session: &str,
        username: &str,
        answers: HashMap<String, String>,
    ) -> PoolResult<SignInStep> {
        let mut parameters = self.parameters(username);
        parameters.extend(answers);
        self.respond(challenge, session, username, parameters).await
    }

    async fn respond(
        &self,
        challenge: &str,
        session: &str,
        username: &str,
        parameters: HashMap<String, String>,
    ) -> PoolResult<SignInStep> {
        let call = self
            .client
            .respond_to_auth_challenge()
            .client_id(&self.pool.client_id)
            .challenge_name(ChallengeNameType::from(challenge))
            .session(session)
            .set_challenge_responses(Some(parameters));
        let operation = Op::RespondToAuthChallenge;
        let response = self.breaker.call(operation, call.send()).await?;
        let response = StepResponse {
            result: response.authentication_result,
            challenge: response.challenge_name,
            session: response.session,
            parameters: response.challenge_parameters,
        };
        response.step(operation, username)
    }

    pub(crate) async fn sign_up(
        &self,
        email: &EmailAddress,
        password: &Secret,
    ) -> PoolResult<SignUpResult> {
        self.create_user(email, password, None).await
    }

    /// Calls SignUp. The pool's trigger confirms a user with a proof of the address.
    async fn create_user(
        &self,
        email: &EmailAddress,
        password: &Secret,
        proof: Option<String>,
    ) -> PoolResult<SignUpResult> {
        let call = user_call!(self, sign_up, email)
            .password(password.expose())
            .set_client_metadata(proof.map(|proof| [(SOCIAL_PROOF.to_owned(), proof)].into()))
            .user_attributes(attribute("email", email.as_str()));
        let response = self.breaker.call(Op::SignUp, call.send()).await?;
        Ok(SignUpResult {
            subject: response.user_sub,
            confirmed: response.user_confirmed,
            code_sent: response.code_delivery_details.is_some(),
        })
    }

    /// Confirms an address with the code that was sent to it.
    pub(crate) async fn confirm_sign_up(&self, email: &EmailAddress, code: &str) -> PoolResult {
        let call = user_call!(self, confirm_sign_up, email).confirmation_code(code);
        self.breaker.run(Op::ConfirmSignUp, call.send()).await
    }

    pub(crate) async fn resend_code(&self, email: &EmailAddress) -> PoolResult {
        let call = user_call!(self, resend_confirmation_code, email);
        self.breaker
            .run(Op::ResendConfirmationCode, call.send())
            .await
    }

    /// Exchanges a refresh token for new tokens with GetTokensFromRefreshToken, or with
    /// REFRESH_TOKEN_AUTH. A pool that rotates refresh tokens accepts the former only, and one that
    /// does not, or an emulator, may accept the latter only. The other call is tried once if the
    /// pool refuses the one that it accepted last.
    ///
    /// See [`RefreshTokenRotationType`][rotation].
    ///
    /// [rotation]: https://docs.aws.amazon.com/cognito-user-identity-pools/latest/APIReference/API_RefreshTokenRotationType.html
    pub(crate) async fn refresh(&self, username: &str, token: &str) -> PoolResult<PoolTokens> {
        let uses_refresh_auth = self.uses_refresh_auth.load(Ordering::Relaxed);
        let first = self.refresh_by(uses_refresh_auth, username, token).await;
        if !first.as_ref().is_err_and(PoolFault::is_refused_call) {
            return first;
        }
        let second = self.refresh_by(!uses_refresh_auth, username, token).await;
        if second.as_ref().is_err_and(PoolFault::is_refused_call) {
            return first;
        }
        self.uses_refresh_auth
            .store(!uses_refresh_auth, Ordering::Relaxed);
        second
    }

    async fn refresh_by(
        &self,
        uses_refresh_auth: bool,
        username: &str,
        token: &str,
    ) -> PoolResult<PoolTokens> {
        let operation = Op::GetTokensFromRefreshToken;
        let result = if uses_refresh_auth {
            let token = Some(("REFRESH_TOKEN", token));
            let refreshed = self.initiate(AuthFlowType::RefreshTokenAuth, username, token);
            // What is refused is a refresh token, not a password.
            let refreshed = refreshed.await;
            refreshed
                .map_err(|fault| PoolFault { operation, ..fault })?
                .result
        } else {
            let call = self
                .client
                .get_tokens_from_refresh_token()
                .client_id(&self.pool.client_id)
                .set_client_secret(self.client_secret())
                .refresh_token(token);
            let response = self.breaker.call(operation, call.send()).await?;
            response.authentication_result
        };
        PoolTokens::read(operation, result)
    }

    /// Revokes a refresh token and all access tokens issued for it.
    pub(crate) async fn revoke(&self, token: &str) -> PoolResult {
        let call = self
            .client
            .revoke_token()
            .client_id(&self.pool.client_id)
            .set_client_secret(self.client_secret())
            .token(token);
        self.breaker.run(Op::RevokeToken, call.send()).await
    }

    pub(crate) async fn forgot_password(&self, email: &EmailAddress) -> PoolResult {
        let call = user_call!(self, forgot_password, email);
        self.breaker.run(Op::ForgotPassword, call.send()).await
    }

    pub(crate) async fn reset_password(
        &self,
        email: &EmailAddress,
        code: &str,
        password: &Secret,
    ) -> PoolResult {
        let call = user_call!(self, confirm_forgot_password, email)
            .confirmation_code(code)
            .password(password.expose());
        self.breaker
            .run(Op::ConfirmForgotPassword, call.send())
            .await
    }

    /// Deletes the user of an access token. Needs no AWS credentials.
    pub(crate) async fn delete_own_user(&self, access_token: &str) -> PoolResult {
        let call = self.client.delete_user().access_token(access_token);
        self.breaker.run(Op::DeleteUser, call.send()).await
    }

    fn client_secret(&self) -> Option<String> {
        let secret = self.pool.client_secret.as_ref()?;
        Some(secret.expose().to_owned())
    }

    fn parameters(&self, name: &str) -> HashMap<String, String> {
        let mut parameters = HashMap::from([("USERNAME".to_owned(), name.to_owned())]);
        let hash = self.pool.secret_hash(name);
        parameters.extend(hash.map(|hash| ("SECRET_HASH".to_owned(), hash)));
        parameters
    }
}
