use super::*;

/// Rows of call, exception, message, HTTP status, expected problem code and the field that it names.
const ROWS: &str = "\
SignIn | NotAuthorizedException | Incorrect username or password. | 400 | invalid_credentials
SignIn | NotAuthorizedException | User is disabled. | 400 | invalid_credentials
SignIn | NotAuthorizedException | Password attempts exceeded | 400 | invalid_credentials
SignIn | UserNotFoundException | User does not exist. | 400 | invalid_credentials
SignIn | NotAuthorizedException | Client 1a2b is configured with secret but SECRET_HASH was not received | 400 | idp_misconfigured
SignIn | NotAuthorizedException | Unable to verify secret hash for client 1a2b | 400 | idp_misconfigured
SignIn | InvalidParameterException | USER_PASSWORD_AUTH flow not enabled for this client | 400 | idp_misconfigured
SignIn | ResourceNotFoundException | User pool client 1a2b does not exist. | 400 | idp_misconfigured
Admin | AccessDeniedException | User: arn:aws:iam::1:user/x is not authorized to perform: cognito-idp:AdminSetUserPassword | 400 | idp_misconfigured
Admin | UnrecognizedClientException | The security token included in the request is invalid. | 400 | idp_misconfigured
SignUp | NotAuthorizedException | SignUp is not permitted for this user pool | 400 | idp_misconfigured
Refresh | NotAuthorizedException | Invalid Refresh Token | 400 | invalid_refresh_token
Refresh | NotAuthorizedException | Refresh Token has been revoked | 400 | invalid_refresh_token
Refresh | RefreshTokenReuseException | Refresh token reuse | 400 | invalid_refresh_token
Revoke | UnauthorizedException | x | 400 | idp_misconfigured
Challenge | NotAuthorizedException | Invalid session for the user. | 400 | invalid_challenge
Challenge | CodeMismatchException | Invalid code | 400 | invalid_challenge
ResetPassword | ExpiredCodeException | Invalid code | 400 | invalid_code
ResetPassword | CodeMismatchException | Invalid verification code | 400 | invalid_code
Confirm | CodeMismatchException | Invalid verification code | 400 | invalid_code
ResetPassword | UserNotFoundException | Username/client id combination not found. | 400 | invalid_code
SignIn | UserNotConfirmedException | User is not confirmed. | 400 | challenge_required
SignIn | PasswordResetRequiredException | Password reset required | 400 | challenge_required
Confirm | AliasExistsException | An account with the email already exists. | 400 | email_not_available
ResetPassword | LimitExceededException | Attempt limit exceeded | 400 | invalid_code
Confirm | TooManyFailedAttemptsException | x | 400 | rate_limited
SignIn | TooManyRequestsException | Rate exceeded | 400 | rate_limited
Refresh | ThrottlingException | Rate exceeded | 400 | rate_limited
SignIn |  |  | 429 | rate_limited
SignIn | InternalErrorException | x | 500 | unavailable
SignIn |  |  | 503 | unavailable
SignUp | CodeDeliveryFailureException | x | 400 | unavailable
SignIn | UnsupportedOperationException | x | 400 | idp_misconfigured
SignIn | ForbiddenException | Request not allowed by WAF | 400 | rate_limited
SignIn | InvalidParameterException | 1 validation error detected: Value at 'authParameters' failed to satisfy constraint | 400 | invalid_credentials
SignUp | LimitExceededException | Exceeded daily email limit for the operation or the account. | 400 | unavailable
Resend | LimitExceededException | Exceeded daily email limit for the operation or the account. | 400 | unavailable
Resend | LimitExceededException | Attempt limit exceeded, please try after some time. | 400 | rate_limited
Resend | InvalidParameterException | Cannot resend codes. Auto verification not turned on. | 400 | idp_misconfigured
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
ResetPassword | InvalidParameterException | 1 validation error detected: Value at 'password' failed to satisfy constraint: Member must satisfy regular expression pattern: ^[\\S]+.*[\\S]+$ | 400 | validation_failed /newPassword
ResetPassword | InvalidParameterException | 1 validation error detected: Value at 'confirmationCode' failed to satisfy constraint | 400 | invalid_code
ResetPassword | InvalidPasswordException | Password did not conform with policy | 400 | weak_password /newPassword
ResetPassword | PasswordHistoryPolicyViolationException | x | 400 | weak_password /newPassword
SignUp | InvalidPasswordException | Password did not conform with policy | 400 | weak_password /password
Challenge | InvalidParameterException | Attributes did not conform to the schema: client: Attribute does not exist in the schema. | 400 | validation_failed /responses
Challenge | NotAuthorizedException | Cannot modify a non-mutable attribute client secret | 400 | invalid_challenge
Challenge | MFAMethodNotFoundException | x | 400 | validation_failed /responses
SignIn | MFAMethodNotFoundException | x | 400 | idp_misconfigured
Challenge | CodeDeliveryFailureException | x | 400 | unavailable
SignIn | FeatureUnavailableInTierException | x | 400 | idp_misconfigured
SignIn | InvalidSmsRoleAccessPolicyException | x | 400 | idp_misconfigured
RefreshAuth | NotAuthorizedException | SecretHash does not match for the client: 1a2b | 400 | idp_misconfigured
RefreshAuth | NotAuthorizedException | Refresh Token has expired | 400 | invalid_refresh_token
Admin | InvalidParameterException | Attributes did not conform to the schema: family_name: The attribute is required | 400 | idp_misconfigured
SignUp | UserLambdaValidationException | PreSignUp failed | 400 | validation_failed /
SignUp | UsernameExistsException | User already exists | 400 | email_not_available
SignIn | InvalidParameterException | Missing required parameter SECRET_HASH | 400 | idp_misconfigured
SignIn | InvalidLambdaResponseException | x | 400 | idp_misconfigured
SignIn | InvalidUserPoolConfigurationException | x | 400 | idp_misconfigured";

const CALLS: [(&str, PoolOperation, PoolCall); 11] = [
    ("SignIn", PoolOperation::InitiateAuth, PoolCall::SignIn),
    ("SignUp", PoolOperation::SignUp, PoolCall::SignUp),
    ("Confirm", PoolOperation::ConfirmSignUp, PoolCall::Confirm),
    (
        "Resend",
        PoolOperation::ResendConfirmationCode,
        PoolCall::Confirm,
    ),
    (
        "Challenge",
        PoolOperation::RespondToAuthChallenge,
        PoolCall::Challenge,
    ),
    (
        "Refresh",
        PoolOperation::GetTokensFromRefreshToken,
        PoolCall::Refresh,
    ),
    (
        "RefreshAuth",
        PoolOperation::InitiateAuth,
        PoolCall::Refresh,
    ),
    ("Revoke", PoolOperation::RevokeToken, PoolCall::Revoke),
    (
        "ForgotPassword",
        PoolOperation::ForgotPassword,
        PoolCall::ForgotPassword,
    ),
    (
        "ResetPassword",
        PoolOperation::ConfirmForgotPassword,
        PoolCall::ResetPassword,
    ),
    ("Admin", PoolOperation::AdminCreateUser, PoolCall::Admin),
];

#[test]
fn exception_maps_to_its_problem_code_and_field() {
    for row in ROWS.lines() {
        let fields: Vec<&str> = row.split(" | ").collect();
        let [call, name, message, status, expected] = fields[..] else {
            panic!("{row}")
        };
        let known = CALLS.iter().find(|known| known.0 == call);
        let (_, operation, call) = *known.expect("a call");
        let status = status.parse().expect("a status");
        let error = PoolError::from_exception(operation, name, message, status);
        let problem = error.problem(call).to_json("id");
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
    let (operation, name) = (PoolOperation::SignUp, "LimitExceededException");
    let error = PoolError::from_exception(operation, name, message, 400);
    let rendered = error.problem(PoolCall::SignUp).render("id");
    assert_eq!(rendered.status, 503);
    assert_eq!(rendered.headers["retry-after"], "3600");
}

#[test]
fn pool_message_is_not_rendered() {
    let problem = PoolError::from_exception(
        PoolOperation::InitiateAuth,
        "NotAuthorizedException",
        "Unable to verify secret hash for client 1a2b",
        400,
    )
    .problem(PoolCall::SignIn);
    let body = String::from_utf8(problem.render("id").body).expect("UTF-8");
    assert!(!body.contains("1a2b") && !body.contains("secret"), "{body}");
}

#[test]
fn disabled_rotation_is_reported_as_unsupported() {
    let fault = PoolError::from_exception(
        PoolOperation::GetTokensFromRefreshToken,
        "NotAuthorizedException",
        "Refresh token rotation is not enabled for client",
        400,
    );
    assert_eq!(fault, PoolError::Unsupported);
}
