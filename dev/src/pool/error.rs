//! API errors, under the names that Amazon Cognito gives them.

use http::StatusCode;

/// An error response: the name of the exception and a message for the client. The names, and the
/// messages that clients match on, are those of Amazon Cognito's API reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", kind.name())]
pub(crate) struct ApiError {
    kind: ExceptionKind,
    message: String,
}

/// The result of what may end with an error response.
pub(crate) type ApiResult<T = ()> = Result<T, ApiError>;

/// An exception of the Cognito API or of AWS's common errors. The variants are named as these are,
/// without `Exception`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceptionKind {
    GroupExists,
    InternalError,
    InvalidParameter,
    InvalidPassword,
    MissingAuthenticationToken,
    NotAuthorized,
    RefreshTokenReuse,
    ResourceNotFound,
    Serialization,
    UnknownOperation,
    UnrecognizedClient,
    UnsupportedTokenType,
    UserLambdaValidation,
    UserNotConfirmed,
    UserNotFound,
    UsernameExists,
}

// === impl ExceptionKind ===

impl ExceptionKind {
    /// Returns the name on the wire, in `__type` and `x-amzn-errortype`.
    pub(crate) fn name(self) -> String {
        format!("{self:?}Exception")
    }

    /// Returns the HTTP status. As in Cognito, every client error is 400, including throttling.
    pub(crate) fn status(self) -> StatusCode {
        if self == Self::InternalError {
            StatusCode::INTERNAL_SERVER_ERROR
        } else {
            StatusCode::BAD_REQUEST
        }
    }
}

// === impl ApiError ===

impl ApiError {
    pub(crate) fn new(kind: ExceptionKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn kind(&self) -> ExceptionKind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ExceptionKind::InvalidParameter, message)
    }

    pub(crate) fn not_authorized(message: impl Into<String>) -> Self {
        Self::new(ExceptionKind::NotAuthorized, message)
    }

    /// Returns the error for a missing parameter, in the wording of AWS's model validation.
    pub(crate) fn missing(member: &str) -> Self {
        Self::invalid(format!(
            "1 validation error detected: Value null at '{member}' failed to satisfy constraint: Member must \
             not be null"
        ))
    }

    /// Returns the error for a wrong password, and for an unknown user where the client prevents
    /// user existence errors.
    pub(crate) fn wrong_password() -> Self {
        Self::not_authorized("Incorrect username or password.")
    }

    pub(crate) fn user_not_found() -> Self {
        Self::new(ExceptionKind::UserNotFound, "User does not exist.")
    }

    pub(crate) fn user_not_confirmed() -> Self {
        Self::new(ExceptionKind::UserNotConfirmed, "User is not confirmed.")
    }

    pub(crate) fn user_disabled() -> Self {
        Self::not_authorized("User is disabled.")
    }

    /// Logs the cause and returns an error that does not reveal it.
    pub(crate) fn internal(cause: &(impl std::fmt::Display + ?Sized)) -> Self {
        tracing::error!(error = %cause, "identity pool call failed");
        Self::new(ExceptionKind::InternalError, "Something went wrong")
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::internal(&error)
    }
}
