//! `POST /auth/challenge`: further steps of a sign-in, such as a second factor.

use std::collections::HashMap;

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, Secret};

use super::Flows;
use super::account_codes::CodePurpose;
use super::attempt_guard::{AccountAttempt, AttemptError};
use super::challenge_session::{ChallengeSession, SocialLink};
use super::security_stamps::{StampSnapshot, stamped_names};
use super::social::AuthorizedUser;
use super::token_set::{SignedInUser, TokenSet};
use crate::account_messages::AccountNotice;
use crate::client::ClientContext;
use crate::pool::error::PoolFault;
use crate::pool::{PoolTokens, SignInStep};
use crate::protection::AttemptKind;
use crate::telemetry::{AuditedResult, Operation};

const NEW_PASSWORD_REQUIRED: &str = "NEW_PASSWORD_REQUIRED";

#[derive(Clone, Debug)]
pub(crate) struct ChallengeAnswer {
    pub(crate) session: String,
    pub(crate) new_password: Option<String>,
    /// A code, for the MFA challenges and CONFIRM_ADDRESS.
    pub(crate) code: Option<String>,
    pub(crate) responses: HashMap<String, String>,
}

// === impl Flows ===

impl Flows {
    /// Answers a challenge. Returns tokens if the sign-in is complete.
    pub(crate) async fn answer_challenge(
        &self,
        client: &ClientContext,
        answer: ChallengeAnswer,
    ) -> AuditedResult<TokenSet> {
        let outcome = Box::pin(self.try_answer(client, answer)).await;
        self.audit.complete(client, Operation::SignIn, outcome)
    }

    async fn try_answer(
        &self,
        client: &ClientContext,
        answer: ChallengeAnswer,
    ) -> Result<SignedInUser, Problem> {
        let opened = ChallengeSession::open(&self.key_ring, &answer.session, self.clock.now());
        if let Some(ChallengeSession::Address { user, stamps }) = opened {
            return Box::pin(self.prove_address(client, &user, &stamps, answer)).await;
        }
        let Some(ChallengeSession::Pool {
            name,
            session,
            username,
            email,
            link,
            attributes,
            mut stamps,
        }) = opened
        else {
            return Err(Code::InvalidChallenge.into());
        };
        let email = email.as_deref().and_then(EmailAddress::parse);
        if let Some(email) = &email {
            client.details.set_email(email);
        }
        let answers = answer.into_pool_responses(&name, &attributes)?;
        let started_at = self.clock.now();
        let is_new_password = name == NEW_PASSWORD_REQUIRED;
        let locked = email.as_ref().filter(|_| is_new_password);
        let evaluation = async {
            // Before the pool is asked, which may set a password, and afterwards: a reset renews the stamps
            // before it revokes the tokens.
            self.verify_stamps(&stamps).await?;
            let answered = self
                .pool
                .answer_challenge(&name, &session, &username, answers);
            let step = answered.await?;
            let verified = self.verify_stamps(&stamps).await;
            verified.map_err(AttemptError::after_proof)?;
            if is_new_password {
                let names = stamped_names(Some(&username), email.as_ref());
                stamps = self.renew_stamps(&names).await?;
            }
            self.complete(step, email.as_ref(), link.as_ref(), stamps)
                .await
        };
        let evaluation = async {
            match locked {
                Some(email) => self.with_address(email, Box::pin(evaluation)).await,
                None => evaluation.await,
            }
        };
        // An attacker who has the password can guess a code, or try new passwords without end.
        let (kind, code) = (AttemptKind::SecondFactor, Code::InvalidChallenge);
        let attempt = AccountAttempt::new(kind, client, &username, code);
        let signed_in = Box::pin(self.evaluate(attempt, evaluation)).await?;
        if let Some(email) = &email {
            let subject = &*signed_in.subject;
            self.trust_network(client, email, subject, started_at).await;
            if is_new_password {
                let notice = AccountNotice::PasswordChanged;
                self.messages.notice(notice, email, Some(subject), client);
            }
        }
        Ok(signed_in)
    }

    async fn prove_address(
        &self,
        client: &ClientContext,
        user: &AuthorizedUser,
        stamps: &StampSnapshot,
        answer: ChallengeAnswer,
    ) -> Result<SignedInUser, Problem> {
        let email = user.id_token.email.as_deref().and_then(EmailAddress::parse);
        let email = email.filter(|_| self.social.is_some());
        let email = email.ok_or(Code::InvalidChallenge)?;
        let code = answer.code.ok_or(Code::InvalidChallenge)?;
        client.details.set_email(&email);
        let (kind, failure) = (AttemptKind::ConfirmationCode, Code::InvalidChallenge);
        let attempt = AccountAttempt::new(kind, client, email.as_str(), failure);
        let evaluation = async {
            self.verify_stamps(stamps).await?;
            Box::pin(self.sign_in_with_code(client, user, &code)).await
        };
        Box::pin(self.evaluate(attempt, evaluation)).await
    }

    /// Signs in with a password. A challenge is an error after proof.
    pub(super) async fn check_password(
        &self,
        email: &EmailAddress,
        password: &Secret,
    ) -> Result<Result<PoolTokens, AttemptError>, PoolFault> {
        let (mut stamps, name) = (StampSnapshot::default(), email.as_str());
        // A sign-in without a challenge does not need the cache.
        let stamped = self.add_stamps(&mut stamps, &[name]).await;
        Ok(match (self.pool.sign_in(name, password).await?, stamped) {
            (SignInStep::Tokens(tokens), _) => Ok(tokens),
            (SignInStep::Challenge(_), Err(problem)) => Err(problem.into()),
            (SignInStep::Challenge(challenge), Ok(())) => {
                let required = self.challenge_required(&challenge, Some(email), None, stamps);
                Err(AttemptError::after_proof(required.await))
            }
        })
    }

    /// Returns the tokens of a completed sign-in, or the next challenge as an error. `email` is the
    /// address of the account, if it is known; `link` is that of a social sign-in. Fails with
    /// `invalid_challenge` if a reset has removed the link meanwhile: it removes the links before it
    /// revokes the tokens.
    pub(super) async fn complete(
        &self,
        step: SignInStep,
        email: Option<&EmailAddress>,
        link: Option<&SocialLink>,
        stamps: StampSnapshot,
    ) -> Result<SignedInUser, AttemptError> {
        let tokens = match step {
            SignInStep::Tokens(tokens) => tokens,
            SignInStep::Challenge(challenge) => {
                let required = self.challenge_required(&challenge, email, link, stamps);
                return Err(AttemptError::after_proof(required.await));
            }
        };
        let signed_in = self.issue(tokens)?;
        if let Some((issuer, subject)) = link {
            let found = self.store.social_identity((issuer, subject)).await;
            let found = found.map_err(Problem::from)?;
            if found.is_none_or(|found| found.user_id != signed_in.subject) {
                self.discard(&signed_in).await;
                return Err(AttemptError::after_proof(Code::InvalidChallenge.into()));
            }
        }
        Ok(signed_in)
    }

    /// Ends the sign-ins of an account: those that have begun, and then those that have ended with
    /// refresh tokens, which Cognito leaves valid after a reset. One is attempted without the other.
    pub(super) async fn end_sign_ins(
        &self,
        email: Option<&EmailAddress>,
        username: Option<&str>,
    ) -> Result<(), Problem> {
        let renewed = self.renew_stamps(&stamped_names(username, email)).await;
        let ended = match (&self.pool.admin, username) {
            (Some(admin), Some(username)) => admin.sign_out_everywhere(username).await,
            (Some(_) | None, _) => Ok(()),
        };
        renewed.and(ended.map_err(Problem::from))
    }

    /// Removes the social links of an account and the code for another one, which the owner may not
    /// have made. Before [`Flows::end_sign_ins`].
    pub(super) async fn remove_links(
        &self,
        email: &EmailAddress,
        subject: &str,
    ) -> Result<(), Problem> {
        let voided = self.void_code(CodePurpose::SocialLink, email).await;
        let deleted = self.store.delete_social_identities_of(subject).await;
        voided.and(deleted.map_err(Problem::from))
    }
}

// === impl ChallengeAnswer ===

impl ChallengeAnswer {
    /// Returns the responses under the names that Cognito expects for this challenge. Attributes of
    /// the user are those that the challenge requires.
    fn into_pool_responses(
        self,
        challenge: &str,
        attributes: &[String],
    ) -> Result<HashMap<String, String>, Problem> {
        let mut answers = self.responses;
        if let Some(code) = self.code {
            answers.insert(format!("{challenge}_CODE"), code);
        }
        if let Some(password) = self.new_password {
            answers.insert("NEW_PASSWORD".to_owned(), password);
        }
        let is_allowed = |name: &String| match name.strip_prefix("userAttributes.") {
            Some(_) => attributes.contains(name),
            None => !["USERNAME", "SECRET_HASH"].contains(&name.as_str()),
        };
        let refused: Vec<&String> = answers.keys().filter(|name| !is_allowed(name)).collect();
        if !refused.is_empty() {
            let problem = Problem::new(Code::InvalidRequest);
            return Err(refused.iter().fold(problem, |problem, name| {
                let pointer = format!("/responses/{}", name.replace('~', "~0").replace('/', "~1"));
                let detail = "is set by the service, or not among the required attributes";
                problem.error(&pointer, "unknown_field", detail)
            }));
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
    ) -> ChallengeAnswer {
        ChallengeAnswer {
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
    fn code_is_sent_under_the_name_of_its_challenge() {
        for (challenge, name) in [
            ("SMS_MFA", "SMS_MFA_CODE"),
            ("SOFTWARE_TOKEN_MFA", "SOFTWARE_TOKEN_MFA_CODE"),
        ] {
            let answers = answer(Some("123456"), None, &[])
                .into_pool_responses(challenge, &[])
                .expect("answers");
            assert_eq!(answers.get(name).map(String::as_str), Some("123456"));
        }
        let answers = answer(None, Some("new"), &[])
            .into_pool_responses("NEW_PASSWORD_REQUIRED", &[])
            .expect("answers");
        assert_eq!(answers.get("NEW_PASSWORD").map(String::as_str), Some("new"));
    }

    #[test]
    fn response_sets_no_user_and_only_required_attributes() {
        let required = ["userAttributes.given_name".to_owned()];
        let accepted = |name: &str| {
            let answers = answer(None, Some("new"), &[(name, "bob")]);
            answers.into_pool_responses(NEW_PASSWORD_REQUIRED, &required)
        };
        assert!(accepted("userAttributes.given_name").is_ok());
        for (name, pointer) in [
            ("USERNAME", "/responses/USERNAME"),
            ("SECRET_HASH", "/responses/SECRET_HASH"),
            ("userAttributes.email", "/responses/userAttributes.email"),
            ("userAttributes.a/b~c", "/responses/userAttributes.a~1b~0c"),
        ] {
            let problem = accepted(name).expect_err(name).to_json("id");
            assert_eq!(problem["code"], "invalid_request");
            assert_eq!(problem["errors"][0]["pointer"], pointer);
        }
        let empty = answer(None, None, &[]);
        assert!(empty.into_pool_responses("SMS_MFA", &[]).is_err());
    }
}
