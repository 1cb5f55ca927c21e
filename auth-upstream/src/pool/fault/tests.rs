use super::*;

/// Exception, its sentence, HTTP status, the call, and what our client is told: one row each.
const ROWS: &[(&str, &str, u16, Operation, Code)] = &[
    (
        "NotAuthorizedException",
        "Incorrect username or password.",
        400,
        Operation::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "NotAuthorizedException",
        "User is disabled.",
        400,
        Operation::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "NotAuthorizedException",
        "Password attempts exceeded",
        400,
        Operation::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "UserNotFoundException",
        "User does not exist.",
        400,
        Operation::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "NotAuthorizedException",
        "Client 1a2b is configured with secret but SECRET_HASH was not received",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "Unable to verify secret hash for client 1a2b",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "InvalidParameterException",
        "USER_PASSWORD_AUTH flow not enabled for this client",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "ResourceNotFoundException",
        "User pool client 1a2b does not exist.",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "AccessDeniedException",
        "User: arn:aws:iam::1:user/x is not authorized to perform: cognito-idp:AdminSetUserPassword",
        400,
        Operation::Admin,
        Code::IdpMisconfigured,
    ),
    (
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        400,
        Operation::Admin,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "SignUp is not permitted for this user pool",
        400,
        Operation::SignUp,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "Invalid Refresh Token",
        400,
        Operation::Refresh,
        Code::InvalidRefreshToken,
    ),
    (
        "NotAuthorizedException",
        "Refresh Token has been revoked",
        400,
        Operation::Refresh,
        Code::InvalidRefreshToken,
    ),
    (
        "RefreshTokenReuseException",
        "Refresh token reuse",
        400,
        Operation::Refresh,
        Code::InvalidRefreshToken,
    ),
    (
        "UnauthorizedException",
        "x",
        400,
        Operation::Revoke,
        Code::IdpMisconfigured,
    ),
    (
        "NotAuthorizedException",
        "Invalid session for the user.",
        400,
        Operation::Challenge,
        Code::InvalidChallenge,
    ),
    (
        "CodeMismatchException",
        "Invalid code",
        400,
        Operation::Challenge,
        Code::InvalidChallenge,
    ),
    (
        "ExpiredCodeException",
        "Invalid code",
        400,
        Operation::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "CodeMismatchException",
        "Invalid verification code",
        400,
        Operation::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "CodeMismatchException",
        "Invalid verification code",
        400,
        Operation::Confirm,
        Code::InvalidCode,
    ),
    (
        "UserNotFoundException",
        "Username/client id combination not found.",
        400,
        Operation::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "UserNotConfirmedException",
        "User is not confirmed.",
        400,
        Operation::SignIn,
        Code::ChallengeRequired,
    ),
    (
        "PasswordResetRequiredException",
        "Password reset required",
        400,
        Operation::SignIn,
        Code::ChallengeRequired,
    ),
    (
        "UsernameExistsException",
        "User already exists",
        400,
        Operation::SignUp,
        Code::EmailNotAvailable,
    ),
    (
        "AliasExistsException",
        "An account with the email already exists.",
        400,
        Operation::Confirm,
        Code::EmailNotAvailable,
    ),
    (
        "InvalidPasswordException",
        "Password did not conform with policy",
        400,
        Operation::SignUp,
        Code::WeakPassword,
    ),
    (
        "PasswordHistoryPolicyViolationException",
        "x",
        400,
        Operation::ResetPassword,
        Code::WeakPassword,
    ),
    (
        "InvalidParameterException",
        "Invalid phone number format.",
        400,
        Operation::SignUp,
        Code::ValidationFailed,
    ),
    (
        "UserLambdaValidationException",
        "PreSignUp failed",
        400,
        Operation::SignUp,
        Code::ValidationFailed,
    ),
    (
        "LimitExceededException",
        "Attempt limit exceeded",
        400,
        Operation::ResetPassword,
        Code::InvalidCode,
    ),
    (
        "TooManyFailedAttemptsException",
        "x",
        400,
        Operation::Confirm,
        Code::RateLimited,
    ),
    (
        "TooManyRequestsException",
        "Rate exceeded",
        400,
        Operation::SignIn,
        Code::RateLimited,
    ),
    (
        "ThrottlingException",
        "Rate exceeded",
        400,
        Operation::Refresh,
        Code::RateLimited,
    ),
    ("", "", 429, Operation::SignIn, Code::RateLimited),
    (
        "InternalErrorException",
        "x",
        500,
        Operation::SignIn,
        Code::Unavailable,
    ),
    ("", "", 503, Operation::SignIn, Code::Unavailable),
    (
        "CodeDeliveryFailureException",
        "x",
        400,
        Operation::SignUp,
        Code::Unavailable,
    ),
    (
        "UnsupportedOperationException",
        "x",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "ForbiddenException",
        "Request not allowed by WAF",
        400,
        Operation::SignIn,
        Code::RateLimited,
    ),
    (
        "InvalidParameterException",
        "1 validation error detected",
        400,
        Operation::SignIn,
        Code::InvalidCredentials,
    ),
    (
        "InvalidParameterException",
        "Missing required parameter SECRET_HASH",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "InvalidLambdaResponseException",
        "x",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
    (
        "InvalidUserPoolConfigurationException",
        "x",
        400,
        Operation::SignIn,
        Code::IdpMisconfigured,
    ),
];

#[test]
fn every_refusal_of_the_pool_has_its_row() {
    for (name, message, status, operation, expected) in ROWS {
        let fault = Fault::of_wire(name, message, *status);
        assert_eq!(
            fault.code(*operation),
            *expected,
            "{name}: {message} at {operation:?}"
        );
    }
}

#[test]
fn wrong_password_unknown_user_and_disabled_user_read_the_same() {
    let rendered = |name, message| {
        Fault::of_wire(name, message, 400)
            .problem(Operation::SignIn)
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
fn the_words_of_the_pool_stay_inside() {
    let problem = Fault::of_wire(
        "NotAuthorizedException",
        "Unable to verify secret hash for client 1a2b",
        400,
    )
    .problem(Operation::SignIn);
    let body = String::from_utf8(problem.render("id").body).expect("UTF-8");
    assert!(!body.contains("1a2b") && !body.contains("secret"), "{body}");
}

#[test]
fn a_client_without_rotation_is_asked_the_older_way() {
    let fault = Fault::of_wire(
        "NotAuthorizedException",
        "Refresh token rotation is not enabled for client",
        400,
    );
    assert_eq!(fault, Fault::Unsupported);
}
