//! Sign-in to the service pool.

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cognitoidentityprovider::operation::initiate_auth::{
    InitiateAuthError, InitiateAuthOutput,
};
use aws_sdk_cognitoidentityprovider::types::AuthFlowType;

use super::{ServiceTokenError, token};
use crate::identity::{Pool, ServiceAccount};

/// Signs in with the service account and returns the token that contains `custom:service_id`: the
/// ID token, where Cognito writes custom attributes, or the access token if a trigger of the pool
/// adds them.
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
        Err(error) => Err(classify(&error)),
    }
}

fn token(output: &InitiateAuthOutput) -> Result<String, ServiceTokenError> {
    let Some(result) = output.authentication_result() else {
        let challenge = output.challenge_name().map_or("none", |name| name.as_str());
        return Err(ServiceTokenError::Refused(format!(
            "it requires the challenge {challenge}"
        )));
    };
    [result.id_token(), result.access_token()]
        .into_iter()
        .flatten()
        .find(|token| token::has_service_id(token))
        .map(str::to_owned)
        .ok_or_else(|| {
            ServiceTokenError::Refused(
                "its tokens lack custom:service_id; the account must have the attribute, and the client must \
                 be able to read it (ReadAttributes)"
                    .to_owned(),
            )
        })
}

/// Classifies an error: failures of the pool and of the connection are temporary, all others need
/// an operator.
fn classify(error: &SdkError<InitiateAuthError>) -> ServiceTokenError {
    let SdkError::ServiceError(answer) = error else {
        let kind = if matches!(error, SdkError::TimeoutError(_)) {
            "no answer in time"
        } else if matches!(error, SdkError::DispatchFailure(_)) {
            "cannot connect"
        } else {
            "its response cannot be parsed"
        };
        return ServiceTokenError::Unavailable(kind.to_owned());
    };
    let name = answer.err().code().unwrap_or("without a name");
    let is_temporary = answer.raw().status().is_server_error()
        || matches!(
            name,
            "TooManyRequestsException" | "InternalErrorException" | "LimitExceededException"
        );
    if is_temporary {
        ServiceTokenError::Unavailable(name.to_owned())
    } else {
        ServiceTokenError::Refused(name.to_owned())
    }
}
