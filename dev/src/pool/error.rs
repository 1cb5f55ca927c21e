//! API errors, under the names that Amazon Cognito gives them.

use http::StatusCode;

/// An error response. The names of exceptions, and the messages that clients match on, are those of
/// Amazon Cognito's API reference.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// The name on the wire, in `__type` and `x-amzn-errortype`.
    pub(crate) exception: &'static str,
    pub(crate) message: String,
}

/// The result of what may end with an error response.
pub(crate) type ApiResult<T = ()> = Result<T, ApiError>;

const INTERNAL_ERROR: &str = "InternalErrorException";

// === impl ApiError ===

impl ApiError {
    pub(crate) fn new(exception: &'static str, message: impl Into<String>) -> Self {
        Self {
            exception,
            message: message.into(),
        }
    }

    /// Returns the HTTP status. As in Cognito, every client error is 400, including throttling.
    pub(crate) fn status(&self) -> StatusCode {
        if self.exception == INTERNAL_ERROR {
            StatusCode::INTERNAL_SERVER_ERROR
        } else {
            StatusCode::BAD_REQUEST
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterException", message)
    }

    pub(crate) fn not_authorized(message: impl Into<String>) -> Self {
        Self::new("NotAuthorizedException", message)
    }

    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self::new("SerializationException", message)
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
        Self::new("UserNotFoundException", "User does not exist.")
    }

    pub(crate) fn user_not_confirmed() -> Self {
        Self::new("UserNotConfirmedException", "User is not confirmed.")
    }

    pub(crate) fn user_disabled() -> Self {
        Self::not_authorized("User is disabled.")
    }

    /// Logs the cause and returns an error that does not reveal it.
    pub(crate) fn internal(cause: &(impl std::fmt::Display + ?Sized)) -> Self {
        tracing::error!(error = %cause, "identity pool call failed");
        Self::new(INTERNAL_ERROR, "Something went wrong")
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::internal(&error)
    }
}
