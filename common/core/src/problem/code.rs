//! The codes of error responses, with their statuses and headers.

use http::StatusCode;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $title:literal;)*) => {
        /// The stable reason of an error response. `docs/reference/problem-codes.md` documents every code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $title] $(#[$doc])* $name,)* }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name used in bodies, logs and metric labels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns a one-sentence description.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            const fn number(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
        }
    };
}

codes! {
    InvalidRequest = "invalid_request", 400, "The request cannot be read";
    InvalidHeader = "invalid_header", 400, "A header of the request is not valid";
    InvalidTarget = "invalid_target", 400, "The request target is ambiguous or malformed";
    RequestTimeout = "request_timeout", 400, "The request did not arrive in time";
    AuthenticationRequired = "authentication_required", 401, "A Bearer token is required";
    TokenMalformed = "token_malformed", 401, "The access token is not a well-formed signed JWT";
    TokenAlgorithmNotAccepted = "token_algorithm_not_accepted", 401, "The signature algorithm of the access token is not accepted";
    TokenHeaderNotAccepted = "token_header_not_accepted", 401, "The header of the access token carries a parameter that is not accepted";
    TokenKeyUnknown = "token_key_unknown", 401, "The key of the access token is not known";
    TokenSignatureInvalid = "token_signature_invalid", 401, "The signature of the access token is not valid";
    TokenExpired = "token_expired", 401, "The access token has expired";
    TokenNotYetValid = "token_not_yet_valid", 401, "The access token is not valid yet";
    TokenClaimMissing = "token_claim_missing", 401, "The access token lacks a claim that is required";
    IssuerNotAccepted = "issuer_not_accepted", 401, "The issuer of the access token is not accepted";
    ClientNotAccepted = "client_not_accepted", 401, "The client of the access token is not accepted";
    TokenUseNotAccepted = "token_use_not_accepted", 401, "This use of token is not accepted here";
    TokenKindMismatch = "token_kind_mismatch", 401, "The access token claims to be of another kind than its issuer gives";
    InvalidApiKey = "invalid_api_key", 401, "The API key is not accepted";
    UserRequired = "user_required", 401, "A user token is required here";
    ServiceRequired = "service_required", 401, "A service token is required here";
    ServiceNotAllowed = "service_not_allowed", 401, "The calling service is not allowed here";
    InvalidCredentials = "invalid_credentials", 401, "The e-mail address or the password is wrong";
    InvalidRefreshToken = "invalid_refresh_token", 401, "The refresh token is invalid, used or expired";
    InvalidTemporaryToken = "invalid_temporary_token", 401, "The temporary token is invalid, used or expired";
    InvalidChallenge = "invalid_challenge", 401, "The answer to the challenge is wrong or too late";
    AuthorizationRequired = "authorization_required", 401, "The authorization service requires other credentials";
    ChallengeRequired = "challenge_required", 401, "Another step is required to sign in";
    InvalidWebhookSignature = "invalid_webhook_signature", 401, "The signature of the webhook is not valid";
    InsufficientScope = "insufficient_scope", 403, "The access token does not grant what this needs";
    RecipientNotAllowed = "recipient_not_allowed", 403, "The caller may not address this recipient";
    PriorityNotAllowed = "priority_not_allowed", 403, "The caller may not send notifications of this priority";
    AuthorizationDenied = "authorization_denied", 403, "The authorization service denies the request";
    AddressNotAllowed = "address_not_allowed", 403, "The address of the client is not allowed here";
    NotFound = "not_found", 404, "There is nothing here";
    MethodNotAllowed = "method_not_allowed", 405, "The method is not allowed here";
    IdempotencyKeyReused = "idempotency_key_reused", 409, "The idempotency key was used with another body";
    AlreadyAttempted = "already_attempted", 409, "The notification can no longer be cancelled";
    ConfigurationChanged = "configuration_changed", 409, "The configuration has changed since it was read";
    ConfigurationReadOnly = "configuration_read_only", 409, "The configuration file cannot be written here";
    BodyTooLarge = "body_too_large", 413, "The body of the request is too large";
    TargetTooLong = "target_too_long", 414, "The request target is too long";
    UnsupportedMediaType = "unsupported_media_type", 415, "The content type is not supported here";
    MisdirectedRequest = "misdirected_request", 421, "The connection does not serve this host";
    ValidationFailed = "validation_failed", 422, "The request is not acceptable";
    WeakPassword = "weak_password", 422, "The password does not meet the policy";
    EmailNotAvailable = "email_not_available", 422, "The e-mail address cannot be registered";
    InvalidCode = "invalid_code", 422, "The confirmation code is wrong or has expired";
    UnknownTemplate = "unknown_template", 422, "The template does not exist for this channel";
    RateLimited = "rate_limited", 429, "Too many requests";
    HeadTooLarge = "head_too_large", 431, "The head of the request is too large";
    Internal = "internal_error", 500, "The server failed";
    IdpMisconfigured = "idp_misconfigured", 500, "The identity pool is not configured as this service needs it";
    UpstreamFailed = "upstream_failed", 502, "The service behind the gateway failed";
    Unavailable = "unavailable", 503, "The service is not available now";
    AuthorizationUnavailable = "authorization_unavailable", 503, "The authorization service is not available now";
    KeysUnavailable = "keys_unavailable", 503, "The keys that verify tokens are not available now";
    UpstreamUnavailable = "upstream_unavailable", 503, "The service behind the gateway is not available now";
    UpstreamTimeout = "upstream_timeout", 504, "The service behind the gateway did not answer in time";
    HttpVersionNotSupported = "http_version_not_supported", 505, "The version of HTTP is not supported";
}

impl Code {
    /// Returns the HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.number()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the `WWW-Authenticate` value (RFC 6750 section 3): every 401 has one, with `error`
    /// only if a token was sent; 403 has one if a scope is missing.
    #[must_use]
    pub fn challenge(self) -> Option<&'static str> {
        match self.number() {
            401 if TOKEN_ERRORS.contains(&self) => Some("Bearer error=\"invalid_token\""),
            401 => Some("Bearer"),
            403 if self == Self::InsufficientScope => Some("Bearer error=\"insufficient_scope\""),
            _ => None,
        }
    }

    /// Returns the code with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }

    /// Returns the default `Retry-After`, which every 429 and 503 has.
    pub(super) fn default_retry_after_s(self) -> Option<u32> {
        match self.number() {
            429 => Some(1),
            503 => Some(2),
            _ => None,
        }
    }
}

/// The 401 codes that say that a token was sent and is not accepted. The other 401 codes are listed
/// by a test, so that a new one is put into either list deliberately.
const TOKEN_ERRORS: &[Code] = &[
    Code::TokenMalformed,
    Code::TokenAlgorithmNotAccepted,
    Code::TokenHeaderNotAccepted,
    Code::TokenKeyUnknown,
    Code::TokenSignatureInvalid,
    Code::TokenExpired,
    Code::TokenNotYetValid,
    Code::TokenClaimMissing,
    Code::IssuerNotAccepted,
    Code::ClientNotAccepted,
    Code::TokenUseNotAccepted,
    Code::TokenKindMismatch,
    Code::InvalidApiKey,
    Code::ServiceNotAllowed,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The 401 codes without the `error` parameter of RFC 6750 section 3.1.
    const OTHER_UNAUTHORIZED: &[Code] = &[
        Code::AuthenticationRequired,
        Code::InvalidCredentials,
        Code::InvalidRefreshToken,
        Code::InvalidTemporaryToken,
        Code::InvalidChallenge,
        Code::AuthorizationRequired,
        Code::ChallengeRequired,
        Code::InvalidWebhookSignature,
        // The token is valid; another one of the same kind would be rejected as well.
        Code::UserRequired,
        Code::ServiceRequired,
    ];

    #[test]
    fn each_401_is_a_token_error_or_not() {
        for code in Code::ALL {
            let lists = [TOKEN_ERRORS, OTHER_UNAUTHORIZED].map(|list| list.contains(code));
            let is_listed_once = lists[0] != lists[1];
            let is_unauthorized = code.status() == StatusCode::UNAUTHORIZED;
            assert_eq!(is_listed_once, is_unauthorized, "{code:?}: {lists:?}");
        }
    }
}
