//! Errors of the user pool and their mapping to problem codes.
//!
//! The pool reports the name of a Cognito exception and a message. [`PoolError`] is their meaning,
//! which depends on the operation: an exception of SignUp that a user cannot cause is the operator's
//! mistake. [`PoolFault::code`] is the problem code for the client, which depends on it as well: a wrong
//! code at a challenge has another problem code than one at a password reset.
//! The [API reference][api] lists the exceptions of each operation.
//!
//! [api]: https://docs.aws.amazon.com/cognito-user-identity-pools/latest/APIReference/API_Operations.html

use aws_sdk_cognitoidentityprovider::config::http::HttpResponse;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use postern_core::{Code, Problem};

use postern_core::log_limit::admit_cause;
use postern_core::log_outage;

use crate::telemetry::PoolOperation as Op;

/// A failed call to the pool, which becomes the problem for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub(crate) struct PoolFault {
    pub(crate) operation: Op,
    pub(crate) error: PoolError,
}

pub(crate) type PoolResult<T = ()> = Result<T, PoolFault>;

/// The problem codes of calls that the pool refuses because of their input, which is the client's but
/// for SignUp and calls under the operator's AWS credentials.
const FAILURE_CODES: [(Op, Code); 8] = [
    (Op::InitiateAuth, Code::InvalidCredentials),
    (Op::ConfirmSignUp, Code::InvalidCode),
    (Op::ResendConfirmationCode, Code::InvalidCode),
    (Op::ConfirmForgotPassword, Code::InvalidCode),
    (Op::ForgotPassword, Code::NotFound),
    (Op::RespondToAuthChallenge, Code::InvalidChallenge),
    (Op::GetTokensFromRefreshToken, Code::InvalidRefreshToken),
    (Op::RevokeToken, Code::InvalidRefreshToken),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PoolError {
    #[error("not authorized")]
    NotAuthorized,
    #[error("user not found")]
    UserNotFound,
    #[error("user not confirmed")]
    UserNotConfirmed,
    #[error("password reset required")]
    PasswordResetRequired,
    #[error("user already exists")]
    UserExists,
    /// With advice for the user.
    #[error("password does not meet the policy")]
    WeakPassword(&'static str),
    #[error("code does not match, or has expired")]
    CodeMismatch,
    #[error("code could not be delivered")]
    CodeNotDelivered,
    #[error("too many attempts for this user")]
    TooManyAttempts,
    #[error("quota of the pool reached, such as that of mails in a day")]
    QuotaExceeded,
    #[error("refresh token was used before")]
    TokenReused,
    /// With the field of the client's request, as a JSON pointer.
    #[error("parameter not acceptable")]
    InvalidParameter(&'static str),
    #[error("rejected by a Lambda trigger of the pool")]
    RejectedByTrigger,
    #[error("call not supported by the pool")]
    Unsupported,
    #[error("throttled")]
    Throttled,
    #[error("pool misconfigured: {0}")]
    Misconfigured(String),
    #[error("pool unavailable: {0}")]
    Unavailable(&'static str),
}

// === impl PoolError ===

impl PoolError {
    pub(super) fn from_sdk<E: ProvideErrorMetadata>(
        operation: Op,
        error: &SdkError<E, HttpResponse>,
    ) -> Self {
        if let Some(service) = error.as_service_error() {
            let status = error
                .raw_response()
                .map_or(0, |response| response.status().as_u16());
            let name = service.code().unwrap_or_default();
            let message = service.message().unwrap_or_default();
            return Self::from_exception(operation, name, message, status);
        }
        if matches!(error, SdkError::TimeoutError(_)) {
            return Self::Unavailable("timeout");
        }
        if matches!(error, SdkError::ConstructionFailure(_)) {
            return Self::Misconfigured(
                "request cannot be built (region, endpoint or credentials)".into(),
            );
        }
        Self::Unavailable("connection failed")
    }

    /// Converts an exception by its name and the operation. The message decides only where Cognito
    /// has one exception for mistakes of users and of operators, and then by its beginning: what
    /// follows may contain text of a client.
    fn from_exception(operation: Op, name: &str, message: &str, status: u16) -> Self {
        match (name, operation) {
            ("NotAuthorizedException", _)
                if operation == Op::SignUp || is_about_app_client(message) =>
            {
                misconfigured(name, message)
            }
            // The first password is still to be chosen, or the address was never verified.
            ("NotAuthorizedException" | "InvalidParameterException", Op::ForgotPassword) => {
                Self::UserNotConfirmed
            }
            // Rotation is enabled or disabled for this app client, and the call is for the other case.
            ("InvalidParameterException", Op::GetTokensFromRefreshToken) => Self::Unsupported,
            ("NotAuthorizedException", _) if message.starts_with("Refresh token rotation") => {
                Self::Unsupported
            }
            ("NotAuthorizedException", _) => Self::NotAuthorized,
            ("InvalidParameterException", _) => mistaken_field(operation, message)
                .map_or_else(|| misconfigured(name, message), Self::InvalidParameter),
            (
                "MFAMethodNotFoundException" | "SoftwareTokenMFANotFoundException",
                Op::RespondToAuthChallenge,
            ) => Self::InvalidParameter("/responses"),
            ("LimitExceededException", Op::SignUp) => Self::QuotaExceeded,
            ("LimitExceededException", _) if message.starts_with("Exceeded daily") => {
                Self::QuotaExceeded
            }
            ("TooManyFailedAttemptsException" | "LimitExceededException", _) => {
                Self::TooManyAttempts
            }
            ("UserNotFoundException", _) => Self::UserNotFound,
            ("UserNotConfirmedException", _) => Self::UserNotConfirmed,
            ("PasswordResetRequiredException", _) => Self::PasswordResetRequired,
            ("UsernameExistsException" | "AliasExistsException", _) => Self::UserExists,
            ("InvalidPasswordException", _) => Self::WeakPassword(
                "choose a longer password with upper-case and lower-case letters, digits and symbols",
            ),
            ("PasswordHistoryPolicyViolationException", _) => {
                Self::WeakPassword("choose a password that is new")
            }
            ("CodeMismatchException" | "ExpiredCodeException", _) => Self::CodeMismatch,
            ("CodeDeliveryFailureException", _) => Self::CodeNotDelivered,
            ("RefreshTokenReuseException", _) => Self::TokenReused,
            ("UserLambdaValidationException", _) => Self::RejectedByTrigger,
            (
                "UnsupportedOperationException"
                | "OperationNotEnabledException"
                | "UnknownOperationException",
                _,
            ) => Self::Unsupported,
            // The last is reported by a web application firewall in front of the pool.
            ("TooManyRequestsException" | "ThrottlingException" | "ForbiddenException", _) => {
                Self::Throttled
            }
            _ if status == 429 => Self::Throttled,
            _ if status >= 500 => Self::Unavailable("server error"),
            _ => misconfigured(name, message),
        }
    }
}

// === impl PoolFault ===

impl PoolFault {
    pub(crate) fn misconfigured(reason: &str) -> Self {
        Self {
            operation: Op::DescribeUserPool,
            error: PoolError::Misconfigured(reason.to_owned()),
        }
    }

    /// Returns the fault as one of a call that the client did not ask for.
    pub(crate) fn of_operator(self) -> Self {
        Self {
            operation: Op::AdminGetUser,
            ..self
        }
    }

    /// Returns whether the pool does not accept a call of this kind, whatever its parameters are.
    pub(super) fn is_refused_call(&self) -> bool {
        matches!(
            self.error,
            PoolError::Unsupported | PoolError::Misconfigured(_)
        )
    }

    /// Returns the problem code for the client. The match is exhaustive, so that a new error does not
    /// compile without a mapping.
    pub(crate) fn code(&self) -> Code {
        let operation = self.operation;
        match self.error {
            PoolError::Misconfigured(_) | PoolError::Unsupported => Code::IdpMisconfigured,
            PoolError::Throttled => Code::RateLimited,
            PoolError::Unavailable(_) | PoolError::CodeNotDelivered | PoolError::QuotaExceeded => {
                Code::Unavailable
            }
            PoolError::UserNotConfirmed | PoolError::PasswordResetRequired
                if matches!(
                    operation,
                    Op::InitiateAuth | Op::RespondToAuthChallenge | Op::ForgotPassword
                ) =>
            {
                Code::ChallengeRequired
            }
            PoolError::UserExists => Code::EmailNotAvailable,
            PoolError::WeakPassword(_) => Code::WeakPassword,
            PoolError::CodeMismatch if operation == Op::InitiateAuth => Code::InvalidChallenge,
            // The pool counts attempts per user. Before any proof of identity, the limit must not be
            // reported, because it would reveal that the user exists.
            PoolError::TooManyAttempts
                if !matches!(operation, Op::InitiateAuth | Op::ConfirmForgotPassword) =>
            {
                Code::RateLimited
            }
            PoolError::TokenReused => Code::InvalidRefreshToken,
            PoolError::InvalidParameter(pointer)
                if operation != Op::InitiateAuth && pointer != "/code" =>
            {
                Code::ValidationFailed
            }
            PoolError::RejectedByTrigger
                if matches!(
                    operation,
                    Op::SignUp | Op::ConfirmSignUp | Op::ResendConfirmationCode
                ) =>
            {
                Code::ValidationFailed
            }
            PoolError::NotAuthorized
            | PoolError::UserNotFound
            | PoolError::UserNotConfirmed
            | PoolError::PasswordResetRequired
            | PoolError::CodeMismatch
            | PoolError::TooManyAttempts
            | PoolError::InvalidParameter(_)
            | PoolError::RejectedByTrigger => {
                let mut codes = FAILURE_CODES.iter();
                let found = codes.find(|(known, _)| *known == operation);
                found.map_or(Code::IdpMisconfigured, |(_, code)| *code)
            }
        }
    }

    fn log(&self) {
        let call = self.operation.name();
        if let PoolError::Misconfigured(reason) = &self.error {
            if let Some(suppressed) = admit_cause("identity_pool misconfigured") {
                tracing::error!(suppressed, call, reason, "identity pool misconfigured");
            }
            return;
        }
        let is_outage = matches!(self.error, PoolError::Unavailable(_));
        let cause = if is_outage {
            "identity_pool"
        } else {
            "identity_pool throttled"
        };
        log_outage!(cause, call, error = %self, "identity pool call failed");
    }
}

impl From<PoolFault> for Problem {
    fn from(fault: PoolFault) -> Self {
        let code = fault.code();
        let is_throttled = fault.error == PoolError::Throttled;
        if is_throttled || matches!(code, Code::Unavailable | Code::IdpMisconfigured) {
            fault.log();
        }
        let problem = Self::new(code);
        let is_sign_up = fault.operation == Op::SignUp;
        let (pointer, detail) = match (fault.error, code) {
            // A quota of mails is one of a day; a user is locked out for up to 15 minutes.
            (PoolError::QuotaExceeded, _) => return problem.retry_after(3600),
            (PoolError::TooManyAttempts, Code::RateLimited) => return problem.retry_after(900),
            (_, Code::RateLimited) => return problem.retry_after(2),
            (PoolError::WeakPassword(advice), _) if is_sign_up => ("/password", advice),
            (PoolError::WeakPassword(advice), _) => ("/newPassword", advice),
            (PoolError::InvalidParameter(pointer), Code::ValidationFailed) => {
                (pointer, "the identity pool does not accept this value")
            }
            (_, Code::ValidationFailed) => ("", "a rule of the identity pool refuses the request"),
            _ => return problem,
        };
        problem
            .detail(detail)
            .error(pointer, "not_acceptable", detail)
    }
}

fn misconfigured(name: &str, message: &str) -> PoolError {
    PoolError::Misconfigured(format!("{name}: {message}"))
}

/// Returns whether a message of `NotAuthorizedException` is about the app client, its secret or its
/// permissions, not about the user.
fn is_about_app_client(message: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "A client attempted to write unauthorized attribute",
        "Client ",
        "SecretHash does not match",
        "Unable to verify secret hash",
        "User pool client",
    ];
    BEGINNINGS.iter().any(|it| message.starts_with(it))
}

/// Returns the field of a client's request to which `InvalidParameterException` objects; `None` if
/// the operator has to change something. Messages about the form of a parameter name it.
fn mistaken_field(operation: Op, message: &str) -> Option<&'static str> {
    let named = message.split_once("Value at '").map(|(_, rest)| rest);
    match (operation, named.and_then(|rest| rest.split('\'').next())) {
        (Op::SignUp, Some("password")) => Some("/password"),
        (Op::SignUp, None) if message.starts_with("Invalid email address format") => Some("/email"),
        (_, Some("username")) => Some("/email"),
        (Op::ConfirmForgotPassword, Some("password")) => Some("/newPassword"),
        (Op::ConfirmSignUp | Op::ConfirmForgotPassword, _) => Some("/code"),
        (Op::RespondToAuthChallenge, _) => Some("/responses"),
        (Op::InitiateAuth, Some(_)) => Some(""),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
