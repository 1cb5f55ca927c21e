//! CUSTOM_AUTH with the proofs of the authentication service, and SignUp with one.

use std::collections::HashMap;

use aws_sdk_cognitoidentityprovider::operation::initiate_auth::InitiateAuthOutput;
use aws_sdk_cognitoidentityprovider::types::{AuthFlowType, ChallengeNameType};
use postern_core::clock::Timestamp;
use postern_core::identity::{SOCIAL_PROOF, SocialAccount, SocialProofKey, SocialStatement};

use super::harness::{EMAIL, PASSWORD, RunningServer, SAMPLE_PROOF_KEY, claims, error_text, start};

const BOB: &str = "bob@example.com";

/// Returns the key of the pool, or another one.
fn key(number: u8) -> SocialProofKey {
    let other = "ahHiQ3S1Btco+VqLzB3uP2CVocIDFHf4idpLLL1uD5E=";
    let text = if number == 1 { SAMPLE_PROOF_KEY } else { other };
    SocialProofKey::parse(text).expect("a key")
}

/// A challenge as the authentication service reads it.
struct Started {
    session: String,
    username: String,
    nonce: String,
    account: Option<SocialAccount>,
}

impl RunningServer {
    async fn start_custom(&self, name: &str) -> Result<InitiateAuthOutput, String> {
        let call = self.anonymous.initiate_auth();
        let call = call.client_id(&self.actor().client_id);
        let call = call.auth_flow(AuthFlowType::CustomAuth);
        let hash = self.actor().secret_hash(name).expect("a secret");
        let call = call.auth_parameters("USERNAME", name);
        let call = call.auth_parameters("SECRET_HASH", hash);
        call.send().await.map_err(error_text)
    }

    async fn started(&self, name: &str) -> Started {
        let output = self.start_custom(name).await.expect("a challenge");
        let named = output.challenge_name();
        assert_eq!(named, Some(&ChallengeNameType::CustomChallenge));
        let parameters: &HashMap<_, _> = output.challenge_parameters().expect("parameters");
        let nonce = parameters["nonce"].clone();
        let account = key(1).open_account(&parameters["account"], &nonce);
        Started {
            session: output.session().expect("a session").to_owned(),
            username: parameters["USERNAME"].clone(),
            account: account.expect("sealed with the key"),
            nonce,
        }
    }

    /// Answers with a proof that a key makes for a subject, nonce and client.
    async fn answer(&self, started: &Started, proof: &str) -> Result<String, String> {
        let username = &started.username;
        let hash = self.actor().secret_hash(username).expect("a secret");
        let call = self.anonymous.respond_to_auth_challenge();
        let call = call.client_id(&self.actor().client_id);
        let call = call.challenge_name(ChallengeNameType::CustomChallenge);
        let call = call.session(&started.session);
        let call = call.challenge_responses("USERNAME", username);
        let call = call.challenge_responses("SECRET_HASH", hash);
        let call = call.challenge_responses("ANSWER", proof);
        let answer = call.send().await.map_err(error_text)?;
        let result = answer.authentication_result().expect("tokens");
        let token = claims(result.access_token().expect("an access token"));
        Ok(token["sub"].as_str().expect("a subject").to_owned())
    }

    fn prove(&self, subject: &str, nonce: &str, age_s: i64) -> String {
        let statement = SocialStatement::SignIn { subject, nonce };
        let now = self.clock.now();
        let time = Timestamp(now.0 - 1000 * age_s);
        key(1).prove(statement, &self.actor().client_id, time)
    }
}

#[tokio::test]
async fn proof_signs_in_the_user_of_the_challenge_once() {
    let pool = start().await;
    let ada = pool.register(EMAIL, PASSWORD).await;
    let bob = pool.register(BOB, PASSWORD).await;
    let started = pool.started(EMAIL).await;
    let account = SocialAccount::new(ada.clone(), Some(EMAIL), false);
    assert_eq!(started.account, Some(account));
    let proof = pool.prove(&ada, &started.nonce, 0);
    assert_eq!(pool.answer(&started, &proof).await, Ok(ada.clone()));
    let refused = |error: Result<String, String>| {
        let error = error.expect_err("refused");
        assert!(error.starts_with("NotAuthorizedException"), "{error}");
    };
    refused(pool.answer(&started, &proof).await);
    // The address stands for the user name.
    let mut by_address = pool.started(EMAIL).await;
    EMAIL.clone_into(&mut by_address.username);
    let own = pool.prove(&ada, &by_address.nonce, 0);
    assert_eq!(pool.answer(&by_address, &own).await, Ok(ada.clone()));
    refused(pool.answer(&pool.started(EMAIL).await, &proof).await);
    refused(pool.answer(&pool.started(BOB).await, &proof).await);
    for case in ["subject", "age", "client", "key", "text"] {
        let started = pool.started(EMAIL).await;
        let (subject, nonce) = (ada.as_str(), started.nonce.as_str());
        let statement = SocialStatement::SignIn { subject, nonce };
        let (client, now_at) = (&pool.actor().client_id, pool.clock.now());
        let proof = match case {
            "subject" => pool.prove(&bob, nonce, 0),
            "age" => pool.prove(subject, nonce, 61),
            "client" => key(1).prove(statement, &pool.service().client_id, now_at),
            "key" => key(2).prove(statement, client, now_at),
            _ => "x".to_owned(),
        };
        refused(pool.answer(&started, &proof).await);
        // The wrong answer has used the challenge up.
        let right = pool.prove(subject, nonce, 0);
        refused(pool.answer(&started, &right).await);
    }
    pool.sign_in(EMAIL, PASSWORD)
        .await
        .expect("the password stays");
}

#[tokio::test]
async fn unknown_user_gets_a_challenge_that_nobody_answers() {
    let pool = start().await;
    let nobody = pool.started(EMAIL).await;
    assert_eq!((&nobody.account, &*nobody.username), (&None, EMAIL));
    let proof = pool.prove("", &nobody.nonce, 0);
    pool.answer(&nobody, &proof).await.expect_err("refused");
    pool.register(EMAIL, PASSWORD).await;
    pool.set_enabled(EMAIL, false).await;
    let disabled = pool.start_custom(EMAIL).await.expect_err("refused");
    assert_eq!(disabled, "NotAuthorizedException: User is disabled.");
}

#[tokio::test]
async fn proof_of_the_address_confirms_a_new_user() {
    let pool = start().await;
    let client = pool.actor().client_id.clone();
    let sign_up = async |proof: String| {
        let call = pool.anonymous.sign_up().client_id(&client).username(EMAIL);
        let call = call.password(PASSWORD).client_metadata(SOCIAL_PROOF, proof);
        let call = call.set_secret_hash(pool.actor().secret_hash(EMAIL));
        call.send().await.map_err(error_text)
    };
    let of = |email| key(1).prove(SocialStatement::SignUp { email }, &client, pool.clock.now());
    let error = sign_up(of(BOB)).await.expect_err("another address");
    assert!(
        error.starts_with("UserLambdaValidationException"),
        "{error}"
    );
    let created = sign_up(of(EMAIL)).await.expect("created");
    assert!(created.user_confirmed());
    let account = pool.started(EMAIL).await.account.expect("an account");
    assert!(account.is_verified);
    assert_eq!(account.subject, created.user_sub());
}
