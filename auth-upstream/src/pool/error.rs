//! Errors of the user pool and their mapping to problem codes.
//!
//! The pool reports the name of a Cognito exception and a message. [`PoolError`] is their meaning;
//! [`PoolError::code`] is the problem code for the client, which depends on the [`PoolCall`]: a wrong
//! code at a challenge has another problem code than one at a password reset.

use aws_sdk_cognitoidentityprovider::config::http::HttpResponse;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use postern_common::{Code, Problem};

use postern_common::log_limit::LogLimit;

/// The kind of a call to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolCall {
    /// InitiateAuth or AdminInitiateAuth with a password.
    SignIn,
    /// SignUp.
    SignUp,
    /// ConfirmSignUp and ResendConfirmationCode.
    Confirm,
    /// RespondToAuthChallenge.
    Challenge,
    /// GetTokensFromRefreshToken or REFRESH_TOKEN_AUTH.
    Refresh,
    /// RevokeToken.
    Revoke,
    /// ForgotPassword.
    ForgotPassword,
    /// ConfirmForgotPassword.
    ResetPassword,
    /// Calls under the operator's AWS credentials.
    Admin,
}

/// The meaning of an error response of the pool.
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
    #[error("another user has this e-mail address")]
    AliasExists,
    #[error("password does not meet the policy")]
    WeakPassword,
    #[error("code does not match")]
    CodeMismatch,
    #[error("code has expired")]
    CodeExpired,
    #[error("code could not be delivered")]
    CodeNotDelivered,
    #[error("too many attempts for this user")]
    TooManyAttempts,
    #[error("refresh token was used before")]
    TokenReused,
    #[error("parameter not acceptable")]
    InvalidParameter,
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

// === impl PoolCall ===

impl PoolCall {
    const COUNT: usize = Self::Admin as usize + 1;

    /// Returns the problem code of a call that the pool refuses because of its input, which is the
    /// client's but for administrative calls and SignUp.
    fn failure_code(self) -> Code {
        match self {
            Self::SignIn => Code::InvalidCredentials,
            Self::Confirm | Self::ResetPassword | Self::ForgotPassword => Code::InvalidCode,
            Self::Challenge => Code::InvalidChallenge,
            Self::Refresh | Self::Revoke => Code::InvalidRefreshToken,
            Self::SignUp | Self::Admin => Code::IdpMisconfigured,
        }
    }
}

// === impl PoolError ===

impl PoolError {
    /// Converts an error of the SDK.
    pub(crate) fn from_sdk<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Self {
        if let Some(service) = error.as_service_error() {
            let status = error
                .raw_response()
                .map_or(0, |response| response.status().as_u16());
            let name = service.code().unwrap_or_default();
            return Self::from_exception(name, service.message().unwrap_or_default(), status);
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

    /// Converts the name and the message of an exception and the HTTP status. The message only
    /// distinguishes errors of users from errors of operators, for both of which Cognito reports
    /// `NotAuthorizedException`.
    pub(crate) fn from_exception(name: &str, message: &str, status: u16) -> Self {
        match name {
            // Rotation is enabled or disabled for this app client, and the call is for the other case.
            "NotAuthorizedException" | "InvalidParameterException"
                if message.contains("otation") =>
            {
                Self::Unsupported
            }
            "NotAuthorizedException" if is_operator_error(message) => misconfigured(name, message),
            "NotAuthorizedException" | "UserDisabledException" => Self::NotAuthorized,
            "UserNotFoundException" => Self::UserNotFound,
            "UserNotConfirmedException" => Self::UserNotConfirmed,
            "PasswordResetRequiredException" => Self::PasswordResetRequired,
            "UsernameExistsException" => Self::UserExists,
            "AliasExistsException" => Self::AliasExists,
            "InvalidPasswordException" | "PasswordHistoryPolicyViolationException" => {
                Self::WeakPassword
            }
            "CodeMismatchException" | "EnableSoftwareTokenMFAException" => Self::CodeMismatch,
            "ExpiredCodeException" => Self::CodeExpired,
            "CodeDeliveryFailureException" => Self::CodeNotDelivered,
            "TooManyFailedAttemptsException" | "LimitExceededException" => Self::TooManyAttempts,
            "RefreshTokenReuseException" => Self::TokenReused,
            "InvalidParameterException" if is_operator_error(message) => {
                misconfigured(name, message)
            }
            "InvalidParameterException" => Self::InvalidParameter,
            "UserLambdaValidationException" => Self::RejectedByTrigger,
            "UnsupportedOperationException"
            | "OperationNotEnabledException"
            | "UnknownOperationException" => Self::Unsupported,
            // Reported by a web application firewall in front of the pool.
            "ForbiddenException" => Self::Throttled,
            "TooManyRequestsException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "SlowDown" => Self::Throttled,
            "InternalErrorException" | "InternalServerException" | "ServiceUnavailable" => {
                Self::Unavailable("internal error")
            }
            _ if status == 429 => Self::Throttled,
            _ if status >= 500 => Self::Unavailable("server error"),
            other => misconfigured(other, message),
        }
    }

    /// Returns whether the pool does not accept a call of this kind, whatever its parameters are.
    pub(super) fn is_refused_call(&self) -> bool {
        matches!(self, Self::Unsupported | Self::Misconfigured(_))
    }

    /// Returns the problem code for the client. The matches are exhaustive, so that a new error or
    /// call does not compile without a mapping.
    pub(crate) fn code(&self, call: PoolCall) -> Code {
        match self {
            Self::Misconfigured(_) | Self::Unsupported => Code::IdpMisconfigured,
            Self::Throttled => Code::RateLimited,
            Self::Unavailable(_) | Self::CodeNotDelivered => Code::Unavailable,
            Self::UserNotConfirmed | Self::PasswordResetRequired
                if matches!(call, PoolCall::SignIn | PoolCall::Challenge) =>
            {
                Code::ChallengeRequired
            }
            Self::UserExists | Self::AliasExists => Code::EmailNotAvailable,
            Self::WeakPassword => Code::WeakPassword,
            Self::CodeMismatch | Self::CodeExpired if call == PoolCall::SignIn => {
                Code::InvalidChallenge
            }
            // The pool counts attempts per user. Before any proof of identity, the limit must not be
            // reported, because it would reveal that the user exists.
            Self::TooManyAttempts
                if !matches!(call, PoolCall::SignIn | PoolCall::ResetPassword) =>
            {
                Code::RateLimited
            }
            Self::TokenReused => Code::InvalidRefreshToken,
            Self::InvalidParameter if call == PoolCall::SignUp => Code::ValidationFailed,
            Self::RejectedByTrigger if matches!(call, PoolCall::SignUp | PoolCall::Confirm) => {
                Code::ValidationFailed
            }
            Self::NotAuthorized
            | Self::UserNotFound
            | Self::UserNotConfirmed
            | Self::PasswordResetRequired
            | Self::CodeMismatch
            | Self::CodeExpired
            | Self::TooManyAttempts
            | Self::InvalidParameter
            | Self::RejectedByTrigger => call.failure_code(),
        }
    }

    /// Returns the problem for the client, without the pool's message.
    pub(crate) fn problem(&self, call: PoolCall) -> Problem {
        let code = self.code(call);
        let is_throttled = *self == Self::Throttled;
        if is_throttled || matches!(code, Code::Unavailable | Code::IdpMisconfigured) {
            self.log(call);
        }
        let problem = Problem::new(code);
        if code == Code::WeakPassword {
            return problem.detail(
                "choose a longer password with upper-case and lower-case letters, digits and symbols",
            );
        }
        if code == Code::RateLimited {
            problem.retry_after(2)
        } else {
            problem
        }
    }

    fn log(&self, call: PoolCall) {
        let Some(suppressed) = LOG_LIMITS.get(call as usize).and_then(LogLimit::admit) else {
            return;
        };
        if let Self::Misconfigured(reason) = self {
            tracing::error!(suppressed, ?call, reason, "identity pool misconfigured");
        } else {
            tracing::warn!(suppressed, ?call, error = %self, "identity pool call failed");
        }
    }
}

/// Log rate limits, one for each kind of call.
static LOG_LIMITS: [LogLimit; PoolCall::COUNT] = [const { LogLimit::new() }; PoolCall::COUNT];

fn misconfigured(name: &str, message: &str) -> PoolError {
    PoolError::Misconfigured(format!("{name}: {message}"))
}

/// Returns whether a message is about the app client, its secret, its flows or the AWS credentials.
fn is_operator_error(message: &str) -> bool {
    const OPERATOR: [&str; 7] = [
        "secret",
        "client",
        "flow",
        "not permitted",
        "not enabled",
        "not authorized to perform",
        "credentials",
    ];
    let message = message.to_ascii_lowercase();
    OPERATOR.iter().any(|word| message.contains(word))
}

#[cfg(test)]
mod tests;
