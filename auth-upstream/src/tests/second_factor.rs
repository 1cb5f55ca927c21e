//! Attempt limits of second factors and custom challenges, which the development pool does not have.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use postern_core::{Code, Problem};
use serde_json::json;

use crate::flows::{StampSnapshot, TokenSet};
use crate::pool::PoolChallenge;
use crate::testing::{ADA, Fault, Fixture, PASSWORD, client_at, email, refused, session_of};

const ANSWER: &str = "RespondToAuthChallenge";

async fn challenge(fixture: &Fixture, name: &str) -> String {
    let challenge = PoolChallenge {
        name: name.to_owned(),
        session: "pool-session".to_owned(),
        username: "ada".to_owned(),
        parameters: HashMap::new(),
    };
    let (flows, email) = (fixture.flows(), email(ADA));
    let stamps = StampSnapshot::default();
    let required = flows.challenge_required(&challenge, Some(&email), None, stamps);
    session_of(&required.await)
}

/// Answers a challenge from network `198.51.<network>.0/24`.
async fn answer(fixture: &Fixture, network: usize, session: String) -> Result<TokenSet, Problem> {
    let client = client_at(&format!("198.51.{network}.1"));
    fixture.answer(&client, session, Ok("123456")).await
}

/// The answer of a pool that asks for a further response.
pub(super) fn next(name: &str) -> Fault {
    let body = json!({ "ChallengeName": name, "Session": "pool-session" });
    Fault::answer(200, &body)
}

pub(super) fn mismatch() -> Fault {
    Fault::exception("CodeMismatchException", "Invalid code received for user")
}

#[tokio::test]
async fn second_factor_guesses_are_limited_across_sign_ins() {
    let custom = "CUSTOM_CHALLENGE";
    for (name, wrong) in [
        ("SOFTWARE_TOKEN_MFA", mismatch()),
        // Each attempt costs a call.
        ("NEW_PASSWORD_REQUIRED", mismatch()),
        // A trigger of the pool may repeat the challenge until the response is right.
        (custom, next(custom)),
    ] {
        let fixture = Fixture::new().await;
        fixture.add_ada().await;
        fixture.inject(ANSWER, 6, wrong);
        let mut bodies = BTreeSet::new();
        for number in 0..20 {
            let rejected = answer(&fixture, number, challenge(&fixture, name).await).await;
            let rejected = rejected.expect_err("rejected");
            if rejected.code() != Code::ChallengeRequired {
                bodies.insert(rejected.render("id").body);
            }
        }
        assert_eq!((bodies.len(), fixture.count(ANSWER)), (1, 6), "{name}");
        fixture.clock.advance(Duration::from_secs(2));
        let tokens = fixture.pool().sign_in(ADA, PASSWORD).await;
        fixture.inject(ANSWER, 1, Fault::answer(200, &tokens));
        let answered = answer(&fixture, 1, challenge(&fixture, name).await).await;
        answered.expect("after the delay");
    }
}

#[tokio::test]
async fn choosing_a_factor_does_not_reset_the_limit() {
    let fixture = Fixture::new().await;
    for _ in 0..3 {
        let choice = next("SOFTWARE_TOKEN_MFA");
        fixture.inject(ANSWER, 1, choice);
        fixture.inject(ANSWER, 1, mismatch());
    }
    for number in 0..20 {
        let session = challenge(&fixture, "SELECT_MFA_TYPE").await;
        let chosen = answer(&fixture, number, session).await;
        let chosen = chosen.expect_err("a challenge, or throttled");
        if chosen.code() == Code::ChallengeRequired {
            let guess = answer(&fixture, number, session_of(&chosen)).await;
            refused(guess, Code::InvalidChallenge);
        }
    }
    let evaluated = fixture.count(ANSWER);
    assert_eq!(evaluated, 6, "choices and codes are counted together");
}
