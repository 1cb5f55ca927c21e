//! What goes wrong, in Amazon Cognito's own names.

use http::StatusCode;
use postern_common::database;

/// A refusal: the exception's name and a sentence that a client may read. The names and, where
/// clients match on them, the sentences are those of Amazon Cognito's API reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", kind.name())]
pub(crate) struct Fault {
    kind: Kind,
    message: String,
}

/// An exception of the Cognito API or of AWS's common errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AliasExists,
    CodeDeliveryFailure,
    CodeMismatch,
    ExpiredCode,
    GroupExists,
    IncompleteSignature,
    InternalError,
    InvalidParameter,
    InvalidPassword,
    InvalidSignature,
    LimitExceeded,
    MissingAuthenticationToken,
    NotAuthorized,
    PasswordResetRequired,
    RefreshTokenReuse,
    ResourceNotFound,
    Serialization,
    ServiceUnavailable,
    TooManyRequests,
    UnknownOperation,
    UnrecognizedClient,
    UnsupportedTokenType,
    UserNotConfirmed,
    UserNotFound,
    UsernameExists,
}

// === impl Kind ===

impl Kind {
    /// The name on the wire, in `__type` and `x-amzn-errortype`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AliasExists => "AliasExistsException",
            Self::CodeDeliveryFailure => "CodeDeliveryFailureException",
            Self::CodeMismatch => "CodeMismatchException",
            Self::ExpiredCode => "ExpiredCodeException",
            Self::GroupExists => "GroupExistsException",
            Self::IncompleteSignature => "IncompleteSignatureException",
            Self::InternalError => "InternalErrorException",
            Self::InvalidParameter => "InvalidParameterException",
            Self::InvalidPassword => "InvalidPasswordException",
            Self::InvalidSignature => "InvalidSignatureException",
            Self::LimitExceeded => "LimitExceededException",
            Self::MissingAuthenticationToken => "MissingAuthenticationTokenException",
            Self::NotAuthorized => "NotAuthorizedException",
            Self::PasswordResetRequired => "PasswordResetRequiredException",
            Self::RefreshTokenReuse => "RefreshTokenReuseException",
            Self::ResourceNotFound => "ResourceNotFoundException",
            Self::Serialization => "SerializationException",
            Self::ServiceUnavailable => "ServiceUnavailableException",
            Self::TooManyRequests => "TooManyRequestsException",
            Self::UnknownOperation => "UnknownOperationException",
            Self::UnrecognizedClient => "UnrecognizedClientException",
            Self::UnsupportedTokenType => "UnsupportedTokenTypeException",
            Self::UserNotConfirmed => "UserNotConfirmedException",
            Self::UserNotFound => "UserNotFoundException",
            Self::UsernameExists => "UsernameExistsException",
        }
    }

    /// Cognito answers every fault of the client with 400, throttling included.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::AliasExists
            | Self::CodeDeliveryFailure
            | Self::CodeMismatch
            | Self::ExpiredCode
            | Self::GroupExists
            | Self::IncompleteSignature
            | Self::InvalidParameter
            | Self::InvalidPassword
            | Self::InvalidSignature
            | Self::LimitExceeded
            | Self::MissingAuthenticationToken
            | Self::NotAuthorized
            | Self::PasswordResetRequired
            | Self::RefreshTokenReuse
            | Self::ResourceNotFound
            | Self::Serialization
            | Self::TooManyRequests
            | Self::UnknownOperation
            | Self::UnrecognizedClient
            | Self::UnsupportedTokenType
            | Self::UserNotConfirmed
            | Self::UserNotFound
            | Self::UsernameExists => StatusCode::BAD_REQUEST,
        }
    }
}

// === impl Fault ===

impl Fault {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidParameter, message)
    }

    pub(crate) fn not_authorized(message: impl Into<String>) -> Self {
        Self::new(Kind::NotAuthorized, message)
    }

    /// A parameter that must be there and is not, in the words of AWS's model validation.
    pub(crate) fn missing(member: &str) -> Self {
        Self::invalid(format!(
            "1 validation error detected: Value null at '{member}' failed to satisfy constraint: Member must \
             not be null"
        ))
    }

    /// One answer for a wrong password and, where the client prevents it, for an unknown user.
    pub(crate) fn wrong_password() -> Self {
        Self::not_authorized("Incorrect username or password.")
    }

    pub(crate) fn user_not_found() -> Self {
        Self::new(Kind::UserNotFound, "User does not exist.")
    }

    pub(crate) fn user_disabled() -> Self {
        Self::not_authorized("User is disabled.")
    }

    pub(crate) fn code_mismatch() -> Self {
        Self::new(
            Kind::CodeMismatch,
            "Invalid verification code provided, please try again.",
        )
    }

    pub(crate) fn code_expired() -> Self {
        Self::new(
            Kind::ExpiredCode,
            "Invalid code provided, please request a code again.",
        )
    }

    pub(crate) fn attempts_exceeded() -> Self {
        Self::new(
            Kind::LimitExceeded,
            "Attempt limit exceeded, please try after some time.",
        )
    }

    /// The cause goes to the log, never to the client.
    pub(crate) fn internal(cause: &(impl std::fmt::Display + ?Sized)) -> Self {
        tracing::error!(%cause, "the identity pool failed");
        Self::new(Kind::InternalError, "Something went wrong")
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        if database::is_unavailable(&error) {
            tracing::warn!(%error, "the identity pool's store is away");
            return Self::new(
                Kind::ServiceUnavailable,
                "The store is away, try again later",
            );
        }
        Self::internal(&error)
    }
}
