use super::*;

/// Rows of call, exception, message, HTTP status and expected problem code.
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
SignUp | UsernameExistsException | User already exists | 400 | email_not_available
Confirm | AliasExistsException | An account with the email already exists. | 400 | email_not_available
SignUp | InvalidPasswordException | Password did not conform with policy | 400 | weak_password
ResetPassword | PasswordHistoryPolicyViolationException | x | 400 | weak_password
SignUp | InvalidParameterException | Invalid phone number format. | 400 | validation_failed
SignUp | UserLambdaValidationException | PreSignUp failed | 400 | validation_failed
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
SignIn | InvalidParameterException | 1 validation error detected | 400 | invalid_credentials
SignIn | InvalidParameterException | Missing required parameter SECRET_HASH | 400 | idp_misconfigured
SignIn | InvalidLambdaResponseException | x | 400 | idp_misconfigured
SignIn | InvalidUserPoolConfigurationException | x | 400 | idp_misconfigured";

const CALLS: [PoolCall; PoolCall::COUNT] = [
    PoolCall::SignIn,
    PoolCall::SignUp,
    PoolCall::Confirm,
    PoolCall::Challenge,
    PoolCall::Refresh,
    PoolCall::Revoke,
    PoolCall::ForgotPassword,
    PoolCall::ResetPassword,
    PoolCall::Admin,
];

#[test]
fn exception_maps_to_its_problem_code() {
    for row in ROWS.lines() {
        let fields: Vec<&str> = row.split(" | ").collect();
        let [call, name, message, status, expected] = fields[..] else {
            panic!("{row}")
        };
        let call = CALLS.into_iter().find(|known| format!("{known:?}") == call);
        let status = status.parse().expect("a status");
        let fault = PoolError::from_exception(name, message, status);
        let code = fault.code(call.expect("a call"));
        assert_eq!(code.as_str(), expected, "{row}");
    }
}

#[test]
fn sign_in_failures_render_identically() {
    let rendered = |name, message| {
        PoolError::from_exception(name, message, 400)
            .problem(PoolCall::SignIn)
            .render("id")
            .body
    };
    let wrong = rendered("NotAuthorizedException", "Incorrect username or password.");
    assert_eq!(
        wrong,
        rendered("UserNotFoundException", "User does not exist.")
    );
    assert_eq!(
        wrong,
        rendered("NotAuthorizedException", "User is disabled.")
    );
    assert_eq!(
        wrong,
        rendered("LimitExceededException", "Attempt limit exceeded")
    );
}

#[test]
fn pool_message_is_not_rendered() {
    let problem = PoolError::from_exception(
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
        "NotAuthorizedException",
        "Refresh token rotation is not enabled for client",
        400,
    );
    assert_eq!(fault, PoolError::Unsupported);
}
