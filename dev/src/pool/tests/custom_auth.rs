//! CUSTOM_AUTH with the proofs of the authentication service, and SignUp with one.

use postern_core::clock::Timestamp;
use postern_core::identity::{SOCIAL_PROOF, SocialAccount, SocialProofKey, SocialStatement};
use serde_json::{Value, json};

use super::harness::{EMAIL, PASSWORD, RunningServer, SAMPLE_PROOF_KEY, claims, hash, start, text};

const BOB: &str = "bob@example.com";

/// Returns the key of the pool, or another one.
fn key(number: u8) -> SocialProofKey {
    let other = "ahHiQ3S1Btco+VqLzB3uP2CVocIDFHf4idpLLL1uD5E=";
    let text = if number == 1 { SAMPLE_PROOF_KEY } else { other };
    SocialProofKey::parse(text).expect("a key")
}

/// A challenge as the authentication service reads it.
struct Started {
    challenge: Value,
    username: String,
    nonce: String,
    account: Option<SocialAccount>,
}

impl RunningServer {
    async fn start_custom(&self, name: &str) -> Result<Value, String> {
        self.initiate(self.actor(), "CUSTOM_AUTH", name, "").await
    }

    async fn started(&self, name: &str) -> Started {
        let challenge = self.start_custom(name).await.expect("a challenge");
        assert_eq!(challenge["ChallengeName"], "CUSTOM_CHALLENGE");
        let parameter = |name: &str| text(&challenge["ChallengeParameters"][name]);
        let nonce = parameter("nonce");
        let account = key(1).open_account(&parameter("account"), &nonce);
        Started {
            username: parameter("USERNAME"),
            account: account.expect("sealed with the key"),
            nonce,
            challenge,
        }
    }

    /// Answers with a proof that a key makes for a subject, nonce and client.
    async fn answer(&self, started: &Started, proof: &str) -> Result<String, String> {
        let (actor, username) = (self.actor(), &*started.username);
        let hash = hash(actor, username);
        let responses = [
            ("USERNAME", username),
            ("SECRET_HASH", &hash),
            ("ANSWER", proof),
        ];
        let answered = self.respond(actor, &started.challenge, responses.into());
        answered.await.map(|answer| text(&claims(&answer)["sub"]))
    }

    fn prove(&self, subject: &str, nonce: &str, age_s: i64) -> String {
        let statement = SocialStatement::SignIn { subject, nonce };
        let time = Timestamp(self.clock.now().0 - 1000 * age_s);
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
            "client" => key(1).prove(statement, &pool.provisioned.service.client_id, now_at),
            "key" => key(2).prove(statement, client, now_at),
            _ => "x".to_owned(),
        };
        refused(pool.answer(&started, &proof).await);
        // The wrong answer has used the challenge up.
        let right = pool.prove(subject, nonce, 0);
        refused(pool.answer(&started, &right).await);
    }
    let kept = pool.sign_in(EMAIL, PASSWORD).await;
    assert_eq!(claims(&kept)["sub"], *ada, "the password stays");
}

#[tokio::test]
async fn unknown_user_gets_a_challenge_that_nobody_answers() {
    let pool = start().await;
    let nobody = pool.started(EMAIL).await;
    assert_eq!((&nobody.account, &*nobody.username), (&None, EMAIL));
    let proof = pool.prove("", &nobody.nonce, 0);
    pool.answer(&nobody, &proof).await.expect_err("refused");
    pool.register(EMAIL, PASSWORD).await;
    pool.change("AdminDisableUser", EMAIL, json!({})).await;
    let disabled = pool.start_custom(EMAIL).await.expect_err("refused");
    assert_eq!(disabled, "NotAuthorizedException: User is disabled.");
}

#[tokio::test]
async fn proof_of_the_address_confirms_a_new_user() {
    let pool = start().await;
    let actor = pool.actor();
    let client = &actor.client_id;
    let sign_up = async |email| {
        let statement = SocialStatement::SignUp { email };
        let proof = key(1).prove(statement, client, pool.clock.now());
        let body = json!({ "ClientId": client, "SecretHash": hash(actor, EMAIL), "Username": EMAIL,
            "Password": PASSWORD, "ClientMetadata": { SOCIAL_PROOF: proof } });
        pool.call("SignUp", body).await
    };
    let error = sign_up(BOB).await.expect_err("another address");
    assert!(
        error.starts_with("UserLambdaValidationException"),
        "{error}"
    );
    let created = sign_up(EMAIL).await.expect("created");
    assert_eq!(created["UserConfirmed"], true);
    let account = pool.started(EMAIL).await.account.expect("an account");
    assert!(account.is_verified);
    assert_eq!(created["UserSub"], *account.subject);
}
