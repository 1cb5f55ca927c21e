//! What a user pool's refusals mean, in one exhaustive table.
//!
//! A refusal comes as the name of a Cognito exception and a sentence. [`Fault`] is what it says;
//! [`Fault::code`] is what our client reads, which depends on the [`Operation`]: a wrong code is one thing at
//! a challenge and another at a password reset.

use aws_sdk_cognitoidentityprovider::config::http::HttpResponse;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use postern_common::{Code, Problem};

use crate::log_limit::LogLimit;

/// Which call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
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
    /// Calls under the operator's own credentials, or on behalf of a user whom we just signed in.
    Admin,
}

/// What the pool means by a refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("not authorized")]
    NotAuthorized,
    #[error("no such user")]
    UserNotFound,
    #[error("user not confirmed")]
    UserNotConfirmed,
    #[error("password reset required")]
    PasswordResetRequired,
    #[error("user exists")]
    UserExists,
    #[error("another user has this address")]
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
    #[error("a parameter is not acceptable")]
    InvalidParameter,
    #[error("refused by the pool's own trigger")]
    RefusedByTrigger,
    #[error("the pool does not know this call")]
    Unsupported,
    #[error("throttled")]
    Throttled,
    #[error("the pool is not configured for this: {0}")]
    Misconfigured(String),
    #[error("the pool is away: {0}")]
    Unavailable(&'static str),
}

// === impl Operation ===

impl Operation {
    const COUNT: usize = Self::Admin as usize + 1;
}

// === impl Fault ===

impl Fault {
    /// From what the SDK reports.
    pub(crate) fn of<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Self {
        if let Some(service) = error.as_service_error() {
            let status = error
                .raw_response()
                .map_or(0, |response| response.status().as_u16());
            let name = service.code().unwrap_or_default();
            return Self::of_wire(name, service.message().unwrap_or_default(), status);
        }
        if matches!(error, SdkError::TimeoutError(_)) {
            return Self::Unavailable("no answer in time");
        }
        if matches!(error, SdkError::ConstructionFailure(_)) {
            return Self::Misconfigured(
                "the request cannot be built (region, endpoint or credentials)".into(),
            );
        }
        Self::Unavailable("cannot be reached")
    }

    /// From an exception's name, its sentence and the HTTP status. The sentence decides only
    /// between a user's mistake and an operator's, both of which Cognito calls
    /// `NotAuthorizedException`.
    pub(crate) fn of_wire(name: &str, message: &str, status: u16) -> Self {
        match name {
            // A client whose refresh tokens do not rotate: REFRESH_TOKEN_AUTH is for it.
            "NotAuthorizedException" | "InvalidParameterException"
                if message.contains("otation") =>
            {
                Self::Unsupported
            }
            "NotAuthorizedException" if blames_operator(message) => misconfigured(name, message),
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
            "InvalidParameterException" if blames_operator(message) => misconfigured(name, message),
            "InvalidParameterException" => Self::InvalidParameter,
            "UserLambdaValidationException" => Self::RefusedByTrigger,
            "UnsupportedOperationException"
            | "OperationNotEnabledException"
            | "UnknownOperationException" => Self::Unsupported,
            // A web firewall before the pool has had enough of us.
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

    /// What our client is told. Total: a new fault or operation does not compile until it stands
    /// here.
    pub(crate) fn code(&self, operation: Operation) -> Code {
        match self {
            Self::Misconfigured(_) | Self::Unsupported => Code::IdpMisconfigured,
            Self::Throttled => Code::RateLimited,
            Self::Unavailable(_) | Self::CodeNotDelivered => Code::Unavailable,
            Self::NotAuthorized | Self::UserNotFound => refused(operation),
            Self::UserNotConfirmed | Self::PasswordResetRequired => unfinished(operation),
            Self::UserExists | Self::AliasExists => Code::EmailNotAvailable,
            Self::WeakPassword => Code::WeakPassword,
            Self::CodeMismatch | Self::CodeExpired => wrong_code(operation),
            Self::TooManyAttempts => exhausted(operation),
            Self::TokenReused => Code::InvalidRefreshToken,
            Self::InvalidParameter => unacceptable(operation),
            Self::RefusedByTrigger => rejected(operation),
        }
    }

    /// The problem that our client reads; the pool's own words stay here.
    pub(crate) fn problem(&self, operation: Operation) -> Problem {
        let code = self.code(operation);
        if matches!(code, Code::Unavailable | Code::IdpMisconfigured) {
            self.log(operation);
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

    fn log(&self, operation: Operation) {
        let Some(suppressed) = LOG_LIMITS.get(operation as usize).and_then(LogLimit::admit) else {
            return;
        };
        if let Self::Misconfigured(reason) = self {
            tracing::error!(
                suppressed,
                ?operation,
                reason,
                "the identity pool is misconfigured"
            );
        } else {
            tracing::warn!(suppressed, ?operation, fault = %self, "the identity pool failed");
        }
    }
}

/// The limits on log events, one for each operation: what fails alike hides nothing else.
static LOG_LIMITS: [LogLimit; Operation::COUNT] = [const { LogLimit::new() }; Operation::COUNT];

fn misconfigured(name: &str, message: &str) -> Fault {
    Fault::Misconfigured(format!("{name}: {message}"))
}

/// Whether the sentence is about the client, its secret, its flows or our credentials.
fn blames_operator(message: &str) -> bool {
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

fn refused(operation: Operation) -> Code {
    match operation {
        Operation::SignIn => Code::InvalidCredentials,
        Operation::Confirm | Operation::ResetPassword | Operation::ForgotPassword => {
            Code::InvalidCode
        }
        Operation::Challenge => Code::InvalidChallenge,
        Operation::Refresh | Operation::Revoke => Code::InvalidRefreshToken,
        Operation::SignUp | Operation::Admin => Code::IdpMisconfigured,
    }
}

fn unfinished(operation: Operation) -> Code {
    match operation {
        Operation::SignIn | Operation::Challenge => Code::ChallengeRequired,
        Operation::Refresh | Operation::Revoke => Code::InvalidRefreshToken,
        Operation::SignUp | Operation::Admin => Code::IdpMisconfigured,
        Operation::Confirm | Operation::ResetPassword | Operation::ForgotPassword => {
            Code::InvalidCode
        }
    }
}

fn wrong_code(operation: Operation) -> Code {
    match operation {
        Operation::SignIn | Operation::Challenge => Code::InvalidChallenge,
        Operation::Confirm | Operation::ResetPassword | Operation::ForgotPassword => {
            Code::InvalidCode
        }
        Operation::Refresh | Operation::Revoke => Code::InvalidRefreshToken,
        Operation::SignUp | Operation::Admin => Code::IdpMisconfigured,
    }
}

/// Attempts are counted per user: where no proof of anything came before, saying so would tell that
/// the user exists.
fn exhausted(operation: Operation) -> Code {
    match operation {
        Operation::SignIn => Code::InvalidCredentials,
        Operation::ResetPassword => Code::InvalidCode,
        Operation::SignUp
        | Operation::Confirm
        | Operation::Challenge
        | Operation::Refresh
        | Operation::Revoke
        | Operation::ForgotPassword
        | Operation::Admin => Code::RateLimited,
    }
}

fn unacceptable(operation: Operation) -> Code {
    match operation {
        Operation::SignUp => Code::ValidationFailed,
        Operation::Confirm | Operation::ResetPassword | Operation::ForgotPassword => {
            Code::InvalidCode
        }
        Operation::Challenge => Code::InvalidChallenge,
        Operation::Refresh | Operation::Revoke => Code::InvalidRefreshToken,
        // Whatever a person can type is no fault of the operator's.
        Operation::SignIn => Code::InvalidCredentials,
        Operation::Admin => Code::IdpMisconfigured,
    }
}

fn rejected(operation: Operation) -> Code {
    match operation {
        Operation::SignUp | Operation::Confirm => Code::ValidationFailed,
        Operation::ResetPassword | Operation::ForgotPassword => Code::InvalidCode,
        Operation::SignIn => Code::InvalidCredentials,
        Operation::Challenge => Code::InvalidChallenge,
        Operation::Refresh | Operation::Revoke => Code::InvalidRefreshToken,
        Operation::Admin => Code::IdpMisconfigured,
    }
}

#[cfg(test)]
mod tests;
