//! Sign-in and creation of social users, who need no password: CUSTOM_AUTH and SignUp with proofs
//! that the pool's triggers verify (`conf/cognito/triggers`). Needs no AWS credentials.

use aws_sdk_cognitoidentityprovider::types::AuthFlowType;
use postern_core::Secret;
use postern_core::email::EmailAddress;
use postern_core::identity::{SocialAccount, SocialProofKey, SocialStatement};

use super::error::{PoolError, PoolFault, PoolResult};
use super::{PoolChallenge, SignInStep, UserPool};
use crate::crypto::random;
use crate::telemetry::PoolOperation;

const CUSTOM_CHALLENGE: &str = "CUSTOM_CHALLENGE";

/// A sign-in that waits for the proof.
#[derive(Debug)]
pub(crate) struct SocialChallenge {
    pub(crate) username: String,
    pub(crate) account: SocialAccount,
    session: String,
    nonce: String,
}

// === impl UserPool ===

impl UserPool {
    /// Returns whether social users can be signed in: this service and the pool share a key.
    pub(crate) fn has_social_sign_in(&self) -> bool {
        self.social_proof_key.is_some()
    }

    /// Starts the sign-in of the user with this user name or address. Returns `None` if there is no
    /// such user.
    pub(crate) async fn start_social_sign_in(
        &self,
        name: &str,
    ) -> PoolResult<Option<SocialChallenge>> {
        let response = self.initiate(AuthFlowType::CustomAuth, name, None).await;
        let step = match response {
            Ok(response) => response.step(PoolOperation::InitiateAuth, name)?,
            Err(fault) if fault.error == PoolError::UserNotFound => return Ok(None),
            Err(PoolFault {
                error: PoolError::InvalidParameter(_) | PoolError::Unsupported,
                ..
            }) => {
                let reason = "the pool has no triggers for CUSTOM_AUTH";
                return Err(PoolFault::misconfigured(reason));
            }
            Err(fault) => return Err(fault),
        };
        match step {
            SignInStep::Challenge(challenge) if challenge.name == CUSTOM_CHALLENGE => {
                read_challenge(self.proof_key()?, challenge)
            }
            SignInStep::Challenge(_) | SignInStep::Tokens(_) => Err(PoolFault::misconfigured(
                "CUSTOM_AUTH starts with another challenge",
            )),
        }
    }

    /// Answers the challenge with the proof. The user is the one whose subject the challenge named,
    /// or nobody.
    pub(crate) async fn finish_social_sign_in(
        &self,
        challenge: &SocialChallenge,
    ) -> PoolResult<SignInStep> {
        let statement = SocialStatement::SignIn {
            subject: &challenge.account.subject,
            nonce: &challenge.nonce,
        };
        let mut responses = self.parameters(&challenge.username);
        responses.insert("ANSWER".to_owned(), self.prove(statement)?);
        let (session, username) = (&challenge.session, &challenge.username);
        self.respond(CUSTOM_CHALLENGE, session, username, responses)
            .await
    }

    /// Creates a confirmed user with a verified address and a random password that nobody keeps.
    pub(crate) async fn sign_up_social(&self, email: &EmailAddress) -> PoolResult {
        let address = email.as_str();
        let proof = self.prove(SocialStatement::SignUp { email: address })?;
        let password = Secret::from(random::password());
        let created = self.create_user(email, &password, Some(proof)).await?;
        if created.confirmed {
            Ok(())
        } else {
            Err(PoolFault::misconfigured(
                "the pool has no trigger PreSignUp for social users",
            ))
        }
    }

    fn prove(&self, statement: SocialStatement<'_>) -> PoolResult<String> {
        let key = self.proof_key()?;
        Ok(key.prove(statement, self.client_id(), self.clock.now()))
    }

    fn proof_key(&self) -> PoolResult<&SocialProofKey> {
        let key = self.social_proof_key.as_ref();
        key.ok_or_else(|| PoolFault::misconfigured("SOCIAL_PROOF_KEY is not set"))
    }
}

fn read_challenge(
    key: &SocialProofKey,
    challenge: PoolChallenge,
) -> PoolResult<Option<SocialChallenge>> {
    let PoolChallenge {
        session,
        username,
        parameters,
        ..
    } = challenge;
    let parameter = |name: &str| parameters.get(name).map_or("", String::as_str);
    let (nonce, sealed) = (parameter("nonce"), parameter("account"));
    let account = key.open_account(sealed, nonce).ok_or_else(|| {
        PoolFault::misconfigured("SOCIAL_PROOF_KEY is not the key of the pool's triggers")
    })?;
    Ok(account.map(|account| SocialChallenge {
        username: parameters.get("USERNAME").cloned().unwrap_or(username),
        account,
        session,
        nonce: nonce.to_owned(),
    }))
}
