use super::*;

/// Rows of operation, exception, message, HTTP status, expected problem code and the field that it names.
const ROWS: &str = "\
InitiateAuth | NotAuthorizedException | Incorrect username or password. | 400 | invalid_credentials
InitiateAuth | NotAuthorizedException | User is disabled. | 400 | invalid_credentials
InitiateAuth | NotAuthorizedException | Password attempts exceeded | 400 | invalid_credentials
InitiateAuth | UserNotFoundException | User does not exist. | 400 | invalid_credentials
InitiateAuth | NotAuthorizedException | Client 1a2b is configured with secret but SECRET_HASH was not received | 400 | idp_misconfigured
InitiateAuth | NotAuthorizedException | Unable to verify secret hash for client 1a2b | 400 | idp_misconfigured
InitiateAuth | InvalidParameterException | USER_PASSWORD_AUTH flow not enabled for this client | 400 | idp_misconfigured
InitiateAuth | ResourceNotFoundException | User pool client 1a2b does not exist. | 400 | idp_misconfigured
AdminCreateUser | AccessDeniedException | User: arn:aws:iam::1:user/x is not authorized to perform: cognito-idp:AdminSetUserPassword | 400 | idp_misconfigured
AdminCreateUser | UnrecognizedClientException | The security token included in the request is invalid. | 400 | idp_misconfigured
SignUp | NotAuthorizedException | SignUp is not permitted for this user pool | 400 | idp_misconfigured
GetTokensFromRefreshToken | NotAuthorizedException | Invalid Refresh Token | 400 | invalid_refresh_token
GetTokensFromRefreshToken | NotAuthorizedException | Refresh Token has been revoked | 400 | invalid_refresh_token
GetTokensFromRefreshToken | RefreshTokenReuseException | Refresh token reuse | 400 | invalid_refresh_token
RevokeToken | UnauthorizedException | x | 400 | idp_misconfigured
RespondToAuthChallenge | NotAuthorizedException | Invalid session for the user. | 400 | invalid_challenge
RespondToAuthChallenge | CodeMismatchException | Invalid code | 400 | invalid_challenge
ConfirmForgotPassword | ExpiredCodeException | Invalid code | 400 | invalid_code
ConfirmForgotPassword | CodeMismatchException | Invalid verification code | 400 | invalid_code
ConfirmSignUp | CodeMismatchException | Invalid verification code | 400 | invalid_code
ConfirmForgotPassword | UserNotFoundException | Username/client id combination not found. | 400 | invalid_code
InitiateAuth | UserNotConfirmedException | User is not confirmed. | 400 | challenge_required
InitiateAuth | PasswordResetRequiredException | Password reset required | 400 | challenge_required
ConfirmSignUp | AliasExistsException | An account with the email already exists. | 400 | email_not_available
ConfirmForgotPassword | LimitExceededException | Attempt limit exceeded | 400 | invalid_code
ConfirmSignUp | TooManyFailedAttemptsException | x | 400 | rate_limited
InitiateAuth | TooManyRequestsException | Rate exceeded | 400 | rate_limited
GetTokensFromRefreshToken | ThrottlingException | Rate exceeded | 400 | rate_limited
InitiateAuth |  |  | 429 | rate_limited
InitiateAuth | InternalErrorException | x | 500 | unavailable
InitiateAuth |  |  | 503 | unavailable
SignUp | CodeDeliveryFailureException | x | 400 | unavailable
InitiateAuth | UnsupportedOperationException | x | 400 | idp_misconfigured
InitiateAuth | ForbiddenException | Request not allowed by WAF | 400 | rate_limited
InitiateAuth | InvalidParameterException | 1 validation error detected: Value at 'authParameters' failed to satisfy constraint | 400 | invalid_credentials
SignUp | LimitExceededException | Exceeded daily email limit for the operation or the account. | 400 | unavailable
ResendConfirmationCode | LimitExceededException | Exceeded daily email limit for the operation or the account. | 400 | unavailable
ResendConfirmationCode | LimitExceededException | Attempt limit exceeded, please try after some time. | 400 | rate_limited
ResendConfirmationCode | InvalidParameterException | Cannot resend codes. Auto verification not turned on. | 400 | idp_misconfigured
ForgotPassword | LimitExceededException | Exceeded daily email limit for the operation or the account. | 400 | unavailable
ForgotPassword | LimitExceededException | Attempt limit exceeded, please try after some time. | 400 | rate_limited
ForgotPassword | NotAuthorizedException | User password cannot be reset in the current state. | 400 | challenge_required
ForgotPassword | InvalidParameterException | Cannot reset password for the user as there is no registered/verified email or phone_number | 400 | challenge_required
ForgotPassword | NotAuthorizedException | Unable to verify secret hash for client 1a2b | 400 | idp_misconfigured
ForgotPassword | UserNotFoundException | x | 400 | not_found
SignUp | NotAuthorizedException | A client attempted to write unauthorized attribute | 400 | idp_misconfigured
SignUp | InvalidParameterException | Attributes did not conform to the schema: family_name: The attribute is required | 400 | idp_misconfigured
SignUp | InvalidParameterException | Username cannot be of email format, since user pool is configured for email alias. | 400 | idp_misconfigured
SignUp | InvalidParameterException | Username should be a phone number. | 400 | idp_misconfigured
SignUp | InvalidParameterException | Invalid email address format. | 400 | validation_failed /email
SignUp | InvalidParameterException | 1 validation error detected: Value at 'username' failed to satisfy constraint: Member must have length less than or equal to 128 | 400 | validation_failed /email
SignUp | InvalidParameterException | 1 validation error detected: Value at 'password' failed to satisfy constraint: Member must satisfy regular expression pattern: ^[\\S]+.*[\\S]+$ | 400 | validation_failed /password
ConfirmForgotPassword | InvalidParameterException | 1 validation error detected: Value at 'password' failed to satisfy constraint: Member must satisfy regular expression pattern: ^[\\S]+.*[\\S]+$ | 400 | validation_failed /newPassword
ConfirmForgotPassword | InvalidParameterException | 1 validation error detected: Value at 'confirmationCode' failed to satisfy constraint | 400 | invalid_code
ConfirmForgotPassword | InvalidPasswordException | Password did not conform with policy | 400 | weak_password /newPassword
ConfirmForgotPassword | PasswordHistoryPolicyViolationException | x | 400 | weak_password /newPassword
SignUp | InvalidPasswordException | Password did not conform with policy | 400 | weak_password /password
RespondToAuthChallenge | InvalidParameterException | Attributes did not conform to the schema: client: Attribute does not exist in the schema. | 400 | validation_failed /responses
RespondToAuthChallenge | NotAuthorizedException | Cannot modify a non-mutable attribute client secret | 400 | invalid_challenge
RespondToAuthChallenge | MFAMethodNotFoundException | x | 400 | validation_failed /responses
InitiateAuth | MFAMethodNotFoundException | x | 400 | idp_misconfigured
RespondToAuthChallenge | CodeDeliveryFailureException | x | 400 | unavailable
InitiateAuth | FeatureUnavailableInTierException | x | 400 | idp_misconfigured
InitiateAuth | InvalidSmsRoleAccessPolicyException | x | 400 | idp_misconfigured
RefreshAuth | NotAuthorizedException | SecretHash does not match for the client: 1a2b | 400 | idp_misconfigured
RefreshAuth | NotAuthorizedException | Refresh Token has expired | 400 | invalid_refresh_token
AdminCreateUser | InvalidParameterException | Attributes did not conform to the schema: family_name: The attribute is required | 400 | idp_misconfigured
SignUp | UserLambdaValidationException | PreSignUp failed | 400 | validation_failed /
SignUp | UsernameExistsException | User already exists | 400 | email_not_available
InitiateAuth | InvalidParameterException | Missing required parameter SECRET_HASH | 400 | idp_misconfigured
InitiateAuth | InvalidLambdaResponseException | x | 400 | idp_misconfigured
InitiateAuth | InvalidUserPoolConfigurationException | x | 400 | idp_misconfigured";

const OPERATIONS: [Op; 9] = [
    Op::InitiateAuth,
    Op::SignUp,
    Op::ConfirmSignUp,
    Op::ResendConfirmationCode,
    Op::RespondToAuthChallenge,
    Op::GetTokensFromRefreshToken,
    Op::RevokeToken,
    Op::ForgotPassword,
    Op::ConfirmForgotPassword,
];

fn fault(operation: Op, name: &str, message: &str, status: u16) -> PoolFault {
    let error = PoolError::from_exception(operation, name, message, status);
    PoolFault { operation, error }
}

#[test]
fn exception_maps_to_its_problem_code_and_field() {
    for row in ROWS.lines() {
        let fields: Vec<&str> = row.split(" | ").collect();
        let [call, name, message, status, expected] = fields[..] else {
            panic!("{row}")
        };
        let mut known = OPERATIONS.into_iter();
        // A refresh by InitiateAuth, and any call of an operator.
        let operation = match call {
            "RefreshAuth" => Op::InitiateAuth,
            _ => known
                .find(|it| it.name() == call)
                .unwrap_or(Op::AdminCreateUser),
        };
        let status = status.parse().expect("a status");
        let mut fault = fault(operation, name, message, status);
        if call == "RefreshAuth" {
            fault.operation = Op::GetTokensFromRefreshToken;
        }
        let problem = Problem::from(fault).to_json("id");
        let (code, field) = expected.split_once(' ').unwrap_or((expected, "none"));
        let field = field.strip_suffix('/').unwrap_or(field);
        assert_eq!(problem["code"], code, "{row}");
        let named = problem["errors"][0]["pointer"].as_str();
        assert_eq!(named.unwrap_or("none"), field, "{row}");
    }
}

#[test]
fn exhausted_quota_is_retried_after_an_hour() {
    let message = "Exceeded daily email limit for the operation or the account.";
    let fault = fault(Op::SignUp, "LimitExceededException", message, 400);
    let rendered = Problem::from(fault).render("id");
    assert_eq!(rendered.status, 503);
    assert_eq!(rendered.headers["retry-after"], "3600");
}

#[test]
fn pool_message_is_not_rendered() {
    let message = "Unable to verify secret hash for client 1a2b";
    let operation = Op::InitiateAuth;
    let fault = fault(operation, "NotAuthorizedException", message, 400);
    let body = String::from_utf8(Problem::from(fault).render("id").body).expect("UTF-8");
    assert!(!body.contains("1a2b") && !body.contains("secret"), "{body}");
}

#[test]
fn disabled_rotation_is_reported_as_unsupported() {
    let message = "Refresh token rotation is not enabled for client";
    let operation = Op::GetTokensFromRefreshToken;
    let fault = fault(operation, "NotAuthorizedException", message, 400);
    assert_eq!(fault.error, PoolError::Unsupported);
}
