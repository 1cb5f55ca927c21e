//! `POST /auth/challenge`: the steps that the pool wants beside a password.
//!
//! The pool's session travels to the client and back sealed, together with the pool's real user
//! name, over which the secret hash is made.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::{Code, Problem};
use serde_json::{Map, Value, json};

use crate::abuse::Door;
use crate::audit::Act;
use crate::auth::{Auth, Refused, Visitor};
use crate::email::Email;
use crate::grant::Session;
use crate::pool::PoolChallenge;
use crate::pool::fault::Operation;
use crate::token_set::TokenSet;

/// How long a challenge can be answered. The pool's own session is shorter (3 to 15 minutes) and
/// decides.
const CHALLENGE_TTL: Duration = Duration::from_secs(15 * 60);
/// How long a code that was mailed can be used: Cognito's 24 hours.
const CONFIRMATION_TTL: Duration = Duration::from_secs(24 * 3600);

/// The challenge that has nothing to guess.
const NEW_PASSWORD: &str = "NEW_PASSWORD_REQUIRED";

/// The name of the challenge that `POST /auth/register/confirm` answers.
pub(crate) const CONFIRM_SIGN_UP: &str = "CONFIRM_SIGN_UP";

/// An answer to a challenge.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The sealed session.
    pub(crate) session: String,
    /// A new password, for NEW_PASSWORD_REQUIRED.
    pub(crate) new_password: Option<String>,
    /// A code, for the MFA challenges.
    pub(crate) code: Option<String>,
    /// Anything else, under Cognito's own names.
    pub(crate) responses: HashMap<String, String>,
}

// === impl Auth ===

impl Auth {
    /// Answers a challenge; the end is a token set, or the next challenge.
    pub(crate) async fn answer_challenge(
        &self,
        visitor: &Visitor,
        answer: Answer,
    ) -> Result<TokenSet, Problem> {
        let outcome = self.take_step(visitor, answer).await;
        self.ended(visitor, Act::SignIn, outcome)
    }

    async fn take_step(
        &self,
        visitor: &Visitor,
        answer: Answer,
    ) -> Result<(String, TokenSet), Problem> {
        let opened = Session::open(&self.ring, &answer.session, self.clock.now());
        let Some(Session::Pool {
            name,
            session,
            username,
            email,
            ..
        }) = opened
        else {
            return Err(Code::InvalidChallenge.into());
        };
        let email = Email::parse(&email).ok_or(Code::InvalidChallenge)?;
        let answers = answer.under_names_of(&name)?;
        let step = async {
            let step = self.pool.answer(&name, &session, &username, answers).await;
            let step = step.map_err(|fault| Refused::from(fault.problem(Operation::Challenge)))?;
            self.complete(step, &email)
        };
        let outcome = if name == NEW_PASSWORD {
            step.await.map_err(|refused| refused.problem)
        } else {
            // Everything else is a code, which can be guessed at by whoever has the password.
            self.guarded(
                (Door::Factor, Code::InvalidChallenge),
                visitor,
                &username,
                step,
            )
            .await
        };
        let signed_in = outcome?;
        self.abuse
            .trust_network(visitor, email.as_str(), Some(&signed_in.subject))
            .await;
        Ok((signed_in.subject, signed_in.set))
    }

    /// 401 with what the client must answer.
    pub(crate) fn challenge_required(&self, challenge: &PoolChallenge, email: &Email) -> Problem {
        let session = Session::of_pool(challenge, email, self.clock.now().plus(CHALLENGE_TTL));
        let mut parameters = challenge.parameters.clone();
        parameters.retain(|name, _| {
            !matches!(
                name.as_str(),
                "USER_ID_FOR_SRP" | "USERNAME" | "SECRET_HASH"
            )
        });
        problem(
            &challenge.name,
            &session.seal(&self.ring),
            &json!(parameters),
        )
    }

    /// 401 that asks for the code that was sent to the address.
    pub(crate) fn confirmation_required(
        &self,
        email: &Email,
        profile: Map<String, Value>,
    ) -> Problem {
        let session =
            Session::of_confirmation(email, profile, self.clock.now().plus(CONFIRMATION_TTL));
        problem(CONFIRM_SIGN_UP, &session.seal(&self.ring), &json!({})).detail(
            "confirm the address with the code that was sent to it, at POST /auth/register/confirm",
        )
    }
}

/// 401 that asks for a new password before anything else; there is no session to carry on.
pub(crate) fn reset_required() -> Problem {
    problem("PASSWORD_RESET_REQUIRED", "", &json!({})).detail(
        "ask for a code at POST /auth/password/forgot and set a new password at POST /auth/password/reset",
    )
}

fn problem(name: &str, session: &str, parameters: &Value) -> Problem {
    let challenge = json!({ "name": name, "session": session, "parameters": parameters });
    Problem::new(Code::ChallengeRequired).member("challenge", challenge)
}

// === impl Answer ===

impl Answer {
    /// The answers under the names that Cognito wants for this challenge.
    fn under_names_of(self, challenge: &str) -> Result<HashMap<String, String>, Problem> {
        let mut answers = self.responses;
        if let Some(code) = self.code {
            answers.insert(format!("{challenge}_CODE"), code);
        }
        if let Some(password) = self.new_password {
            answers.insert("NEW_PASSWORD".to_owned(), password);
        }
        let reserved = ["USERNAME", "SECRET_HASH"];
        if answers.keys().any(|name| reserved.contains(&name.as_str())) {
            return Err(Problem::new(Code::InvalidRequest).error(
                "/responses",
                "unknown_field",
                "USERNAME and SECRET_HASH are set by the service",
            ));
        }
        if answers.is_empty() {
            return Err(Problem::new(Code::InvalidRequest).error(
                "",
                "missing_field",
                "`code`, `newPassword` or `responses` is required",
            ));
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(
        code: Option<&str>,
        new_password: Option<&str>,
        responses: &[(&str, &str)],
    ) -> Answer {
        Answer {
            session: String::new(),
            code: code.map(str::to_owned),
            new_password: new_password.map(str::to_owned),
            responses: responses
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn a_code_stands_under_the_name_of_its_challenge() {
        for (challenge, name) in [
            ("SMS_MFA", "SMS_MFA_CODE"),
            ("SOFTWARE_TOKEN_MFA", "SOFTWARE_TOKEN_MFA_CODE"),
        ] {
            let answers = answer(Some("123456"), None, &[])
                .under_names_of(challenge)
                .expect("answers");
            assert_eq!(answers.get(name).map(String::as_str), Some("123456"));
        }
        let answers = answer(None, Some("new"), &[])
            .under_names_of("NEW_PASSWORD_REQUIRED")
            .expect("answers");
        assert_eq!(answers.get("NEW_PASSWORD").map(String::as_str), Some("new"));
    }

    #[test]
    fn nobody_answers_for_another_user() {
        let refused = answer(None, None, &[("USERNAME", "bob")])
            .under_names_of("SMS_MFA")
            .expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidRequest);
        assert!(answer(None, None, &[]).under_names_of("SMS_MFA").is_err());
    }

    #[test]
    fn a_password_that_must_be_reset_is_a_challenge_too() {
        let body = reset_required().to_json("id-1");
        assert_eq!(
            (&body["status"], &body["code"]),
            (&json!(401), &json!("challenge_required"))
        );
        assert_eq!(body["challenge"]["name"], "PASSWORD_RESET_REQUIRED");
    }
}
