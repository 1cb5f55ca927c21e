//! The step that a sign-in call of the pool ends with.

use std::collections::HashMap;

use aws_sdk_cognitoidentityprovider::types::{AuthenticationResultType, ChallengeNameType};

use super::error::PoolResult;
use super::tokens::PoolTokens;
use crate::telemetry::PoolOperation;

#[derive(Debug)]
pub(crate) enum SignInStep {
    Tokens(PoolTokens),
    Challenge(PoolChallenge),
}

/// A challenge that must be answered before the pool issues tokens.
#[derive(Debug)]
pub(crate) struct PoolChallenge {
    /// Cognito's challenge name, such as `NEW_PASSWORD_REQUIRED`.
    pub(crate) name: String,
    pub(crate) session: String,
    pub(crate) username: String,
    /// Parameters for the user, such as the masked destination of a code.
    pub(crate) parameters: HashMap<String, String>,
}

/// The fields of a sign-in response, which several types of the SDK have.
pub(super) struct StepResponse {
    pub(super) result: Option<AuthenticationResultType>,
    pub(super) challenge: Option<ChallengeNameType>,
    pub(super) session: Option<String>,
    pub(super) parameters: Option<HashMap<String, String>>,
}

// === impl StepResponse ===

impl StepResponse {
    pub(super) fn step(self, operation: PoolOperation, name: &str) -> PoolResult<SignInStep> {
        let Some(challenge) = self.challenge else {
            return PoolTokens::read(operation, self.result).map(SignInStep::Tokens);
        };
        let parameters = self.parameters.unwrap_or_default();
        let username = parameters.get("USER_ID_FOR_SRP");
        Ok(SignInStep::Challenge(PoolChallenge {
            name: challenge.as_str().to_owned(),
            session: self.session.unwrap_or_default(),
            username: username.map_or(name, String::as_str).to_owned(),
            parameters,
        }))
    }
}
