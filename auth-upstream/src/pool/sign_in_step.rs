//! The step that a sign-in call of the pool ends with.

use std::collections::HashMap;

use aws_sdk_cognitoidentityprovider::types::{AuthenticationResultType, ChallengeNameType};

use super::error::PoolResult;
use super::tokens::PoolTokens;
use crate::telemetry::PoolOperation;

/// The result of a sign-in step.
#[derive(Debug)]
pub(crate) enum SignInStep {
    /// The user is signed in.
    Tokens(PoolTokens),
    /// The pool requires a further step.
    Challenge(PoolChallenge),
}

/// A challenge that must be answered before the pool issues tokens.
#[derive(Debug)]
pub(crate) struct PoolChallenge {
    /// Cognito's challenge name, such as `NEW_PASSWORD_REQUIRED`.
    pub(crate) name: String,
    /// The pool's session.
    pub(crate) session: String,
    /// The pool's user name.
    pub(crate) username: String,
    /// Parameters for the user, such as the masked destination of a code.
    pub(crate) parameters: HashMap<String, String>,
}

/// Converts the response of a sign-in call, each of which has the same fields but different
/// types.
macro_rules! sign_in_step {
    ($operation:expr, $name:expr, $response:expr) => {
        $crate::pool::sign_in_step::read(
            $operation,
            $name,
            $crate::pool::sign_in_step::StepResponse {
                result: $response.authentication_result,
                challenge: $response.challenge_name,
                session: $response.session,
                parameters: $response.challenge_parameters,
            },
        )
    };
}

pub(super) use sign_in_step;

/// The fields of a sign-in response.
pub(super) struct StepResponse {
    pub(super) result: Option<AuthenticationResultType>,
    pub(super) challenge: Option<ChallengeNameType>,
    pub(super) session: Option<String>,
    pub(super) parameters: Option<HashMap<String, String>>,
}

/// Reads the response of a sign-in call.
pub(super) fn read(
    operation: PoolOperation,
    name: &str,
    response: StepResponse,
) -> PoolResult<SignInStep> {
    let Some(challenge) = response.challenge else {
        return PoolTokens::read(operation, response.result).map(SignInStep::Tokens);
    };
    let parameters = response.parameters.unwrap_or_default();
    let username = parameters
        .get("USER_ID_FOR_SRP")
        .map_or(name, String::as_str)
        .to_owned();
    Ok(SignInStep::Challenge(PoolChallenge {
        name: challenge.as_str().to_owned(),
        session: response.session.unwrap_or_default(),
        username,
        parameters,
    }))
}
