//! Attempt limits of second factors and custom challenges.

use postern_common::{Code, Problem};

use crate::flows::ChallengeAnswer;
use crate::pool::PoolChallenge;
use crate::testing::{Fixture, client_at, email};

const ADA: &str = "ada@example.com";

/// Returns a sealed challenge session for the stub.
pub(super) fn challenge(fixture: &Fixture, name: &str, username: &str) -> String {
    let challenge = PoolChallenge {
        name: name.to_owned(),
        session: "pool-session".to_owned(),
        username: username.to_owned(),
        parameters: std::collections::HashMap::new(),
    };
    session_of(
        &fixture
            .service
            .flows
            .login
            .issuer
            .challenge_required(&challenge, &email(ADA)),
    )
}

pub(super) fn session_of(problem: &Problem) -> String {
    problem.to_json("id")["challenge"]["session"]
        .as_str()
        .expect("a session")
        .to_owned()
}

/// Answers a challenge from network `198.51.<network>.0/24`.
pub(super) async fn answer(
    fixture: &Fixture,
    network: usize,
    session: String,
    name: &str,
    value: &str,
) -> Result<(), Problem> {
    let responses = [(name.to_owned(), value.to_owned())].into_iter().collect();
    let answer = ChallengeAnswer {
        session,
        new_password: None,
        code: None,
        responses,
    };
    fixture
        .service
        .flows
        .challenge
        .answer(&client_at(&format!("198.51.{network}.1")), answer)
        .await
        .map(drop)
        .map_err(Problem::from)
}

pub(super) const CODE: &str = "SOFTWARE_TOKEN_MFA_CODE";

#[tokio::test]
async fn second_factor_guesses_are_limited_across_sign_ins() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Password-1", true).subject;
    let mut bodies = std::collections::BTreeSet::new();
    for number in 0..20 {
        let session = challenge(&fixture, "SOFTWARE_TOKEN_MFA", &ada);
        let rejected = answer(&fixture, number, session, CODE, "000000")
            .await
            .expect_err("rejected");
        assert_eq!(rejected.code(), Code::InvalidChallenge);
        bodies.insert(rejected.render("id").body);
    }
    assert_eq!(
        (bodies.len(), fixture.pool.count("RespondToAuthChallenge")),
        (1, 6)
    );
    fixture.clock.advance(std::time::Duration::from_secs(2));
    let session = challenge(&fixture, "SOFTWARE_TOKEN_MFA", &ada);
    answer(&fixture, 1, session, CODE, "123456")
        .await
        .expect("after the delay");
}

#[tokio::test]
async fn choosing_a_factor_does_not_reset_the_limit() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Password-1", true).subject;
    let mut evaluated = 0;
    for number in 0..20 {
        let choice = challenge(&fixture, "SELECT_MFA_TYPE", &ada);
        let chosen = answer(&fixture, number, choice, "ANSWER", "SOFTWARE_TOKEN_MFA").await;
        let chosen = chosen.expect_err("a challenge, or throttled");
        if chosen.code() == Code::ChallengeRequired {
            let rejected = answer(&fixture, number, session_of(&chosen), CODE, "000000").await;
            assert_eq!(
                rejected.expect_err("rejected").code(),
                Code::InvalidChallenge
            );
        }
        evaluated = fixture.pool.count("RespondToAuthChallenge");
    }
    assert_eq!(evaluated, 6, "choices and codes are counted together");
}

#[tokio::test]
async fn answers_to_custom_challenges_are_limited() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Password-1", true).subject;
    let mut session = challenge(&fixture, "CUSTOM_CHALLENGE", &ada);
    for number in 0..20 {
        let rejected = answer(&fixture, number, session.clone(), "ANSWER", "guess")
            .await
            .expect_err("rejected");
        if rejected.code() == Code::ChallengeRequired {
            session = session_of(&rejected);
        }
    }
    assert_eq!(fixture.pool.count("RespondToAuthChallenge"), 6);
    fixture.clock.advance(std::time::Duration::from_secs(2));
    answer(&fixture, 1, session, "ANSWER", "right")
        .await
        .expect("after the delay");
}
