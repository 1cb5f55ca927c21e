use super::*;

/// Rows of exception, message, HTTP status, call and expected problem code.
const ROWS: &[(&str, &str, u16, PoolCall, Code)] = &[
    (
        "NotAuthorizedException",
        "Incorrect username or password.",
        400,
        PoolCall::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "NotAuthorizedException",
        "User is disabled.",
        400,
        PoolCall::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "NotAuthorizedException",
        "Password attempts exceeded",
        400,
        PoolCall::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "UserNotFoundException",
        "User does not exist.",
        400,
        PoolCall::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "NotAuthorizedException",
        "Client 1a2b is configured with secret but SECRET_HASH was not received",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "Unable to verify secret hash for client 1a2b",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "InvalidParameterException",
        "USER_PASSWORD_AUTH flow not enabled for this client",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "ResourceNotFoundException",
        "User pool client 1a2b does not exist.",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "AccessDeniedException",
        "User: arn:aws:iam::1:user/x is not authorized to perform: cognito-idp:AdminSetUserPassword",
        400,
        PoolCall::Admin,
        Code::IdpMisconfigured,
    ),
    (
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        400,
        PoolCall::Admin,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "SignUp is not permitted for this user pool",
        400,
        PoolCall::SignUp,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "Invalid Refresh Token",
        400,
        PoolCall::Refresh,
        Code::InvalidRefreshToken,
    ),
    (
        "NotAuthorizedException",
        "Refresh Token has been revoked",
        400,
        PoolCall::Refresh,
        Code::InvalidRefreshToken,
    ),
    (
        "RefreshTokenReuseException",
        "Refresh token reuse",
        400,
        PoolCall::Refresh,
        Code::InvalidRefreshToken,
    ),
    (
        "UnauthorizedException",
        "x",
        400,
        PoolCall::Revoke,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "Invalid session for the user.",
        400,
        PoolCall::Challenge,
        Code::InvalidChallenge,
    ),
    (
        "CodeMismatchException",
        "Invalid code",
        400,
        PoolCall::Challenge,
        Code::InvalidChallenge,
    ),
    (
        "ExpiredCodeException",
        "Invalid code",
        400,
        PoolCall::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "CodeMismatchException",
        "Invalid verification code",
        400,
        PoolCall::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "CodeMismatchException",
        "Invalid verification code",
        400,
        PoolCall::Confirm,
        Code::InvalidCode,
    ),
    (
        "UserNotFoundException",
        "Username/client id combination not found.",
        400,
        PoolCall::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "UserNotConfirmedException",
        "User is not confirmed.",
        400,
        PoolCall::SignIn,
        Code::ChallengeRequired,
    ),
    (
        "PasswordResetRequiredException",
        "Password reset required",
        400,
        PoolCall::SignIn,
        Code::ChallengeRequired,
    ),
    (
        "UsernameExistsException",
        "User already exists",
        400,
        PoolCall::SignUp,
        Code::EmailNotAvailable,
    ),
    (
        "AliasExistsException",
        "An account with the email already exists.",
        400,
        PoolCall::Confirm,
        Code::EmailNotAvailable,
    ),
    (
        "InvalidPasswordException",
        "Password did not conform with policy",
        400,
        PoolCall::SignUp,
        Code::WeakPassword,
    ),
    (
        "PasswordHistoryPolicyViolationException",
        "x",
        400,
        PoolCall::ResetPassword,
        Code::WeakPassword,
    ),
    (
        "InvalidParameterException",
        "Invalid phone number format.",
        400,
        PoolCall::SignUp,
        Code::ValidationFailed,
    ),
    (
        "UserLambdaValidationException",
        "PreSignUp failed",
        400,
        PoolCall::SignUp,
        Code::ValidationFailed,
    ),
    (
        "LimitExceededException",
        "Attempt limit exceeded",
        400,
        PoolCall::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "TooManyFailedAttemptsException",
        "x",
        400,
        PoolCall::Confirm,
        Code::RateLimited,
    ),
    (
        "TooManyRequestsException",
        "Rate exceeded",
        400,
        PoolCall::SignIn,
        Code::RateLimited,
    ),
    (
        "ThrottlingException",
        "Rate exceeded",
        400,
        PoolCall::Refresh,
        Code::RateLimited,
    ),
    ("", "", 429, PoolCall::SignIn, Code::RateLimited),
    (
        "InternalErrorException",
        "x",
        500,
        PoolCall::SignIn,
        Code::Unavailable,
    ),
    ("", "", 503, PoolCall::SignIn, Code::Unavailable),
    (
        "CodeDeliveryFailureException",
        "x",
        400,
        PoolCall::SignUp,
        Code::Unavailable,
    ),
    (
        "UnsupportedOperationException",
        "x",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "ForbiddenException",
        "Request not allowed by WAF",
        400,
        PoolCall::SignIn,
        Code::RateLimited,
    ),
    (
        "InvalidParameterException",
        "1 validation error detected",
        400,
        PoolCall::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "InvalidParameterException",
        "Missing required parameter SECRET_HASH",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "InvalidLambdaResponseException",
        "x",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "InvalidUserPoolConfigurationException",
        "x",
        400,
        PoolCall::SignIn,
        Code::IdpMisconfigured,
    ),
];

#[test]
fn exception_maps_to_its_problem_code() {
    for (name, message, status, call, expected) in ROWS {
        let fault = PoolError::from_exception(name, message, *status);
        assert_eq!(
            fault.code(*call),
            *expected,
            "{name}: {message} at {call:?}"
        );
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
