//! Sign-in at the service pool.

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cognitoidentityprovider::operation::initiate_auth::{
    InitiateAuthError, InitiateAuthOutput,
};
use aws_sdk_cognitoidentityprovider::types::AuthFlowType;

use super::{ServiceTokenError, held};
use crate::identity::{Pool, ServiceAccount};

/// Signs in with the service account and returns the token that names the service: the ID token,
/// where Cognito puts custom attributes, or the access token of a pool whose trigger puts them
/// there.
pub(super) async fn sign_in(
    client: &Client,
    pool: &Pool,
    account: &ServiceAccount,
) -> Result<String, ServiceTokenError> {
    let call = client
        .initiate_auth()
        .auth_flow(AuthFlowType::UserPasswordAuth)
        .client_id(&pool.client_id)
        .auth_parameters("USERNAME", &account.username)
        .auth_parameters("PASSWORD", account.password.expose());
    let call = match pool.secret_hash(&account.username) {
        Some(hash) => call.auth_parameters("SECRET_HASH", hash),
        None => call,
    };
    match call.send().await {
        Ok(output) => token(&output),
        Err(error) => Err(refusal(&error)),
    }
}

fn token(output: &InitiateAuthOutput) -> Result<String, ServiceTokenError> {
    let Some(result) = output.authentication_result() else {
        let challenge = output.challenge_name().map_or("none", |name| name.as_str());
        return Err(ServiceTokenError::Refused(format!(
            "it demands the challenge {challenge}"
        )));
    };
    [result.id_token(), result.access_token()]
        .into_iter()
        .flatten()
        .find(|token| held::names_a_service(token))
        .map(str::to_owned)
        .ok_or_else(|| {
            ServiceTokenError::Refused(
                "its tokens lack custom:service_id; the account must have the attribute, and the client must \
                 be able to read it (ReadAttributes)"
                    .to_owned(),
            )
        })
}

/// Faults of the pool's own, and of the way to it, pass; everything else waits for an operator.
fn refusal(error: &SdkError<InitiateAuthError>) -> ServiceTokenError {
    let SdkError::ServiceError(answer) = error else {
        let kind = if matches!(error, SdkError::TimeoutError(_)) {
            "no answer in time"
        } else if matches!(error, SdkError::DispatchFailure(_)) {
            "cannot connect"
        } else {
            "its answer cannot be read"
        };
        return ServiceTokenError::Unavailable(kind.to_owned());
    };
    let name = answer.err().code().unwrap_or("without a name");
    let passes = answer.raw().status().is_server_error()
        || matches!(
            name,
            "TooManyRequestsException" | "InternalErrorException" | "LimitExceededException"
        );
    if passes {
        ServiceTokenError::Unavailable(name.to_owned())
    } else {
        ServiceTokenError::Refused(name.to_owned())
    }
}
