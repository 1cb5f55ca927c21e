//! Reasons for rejecting a token.

use crate::problem::{Code, Problem};

/// The reason why a token is rejected. Clients and metrics see [`TokenError::code`]; the variants
/// are more specific, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TokenError {
    /// Longer than [`super::TokenLimits::bytes`].
    #[error("the token is longer than the limit")]
    TooLong,
    /// Not of the form header, payload, signature.
    #[error("the token does not have exactly three parts")]
    NotThreeParts,
    /// Five parts, which is a JWE.
    #[error("the token is encrypted")]
    Encrypted,
    /// Padding, non-zero trailing bits, or another alphabet (RFC 7515 section 2).
    #[error("a part of the token is not canonical base64url")]
    NotBase64Url,
    /// The header or payload is not a JSON object in UTF-8.
    #[error("the header or payload of the token is not a JSON object")]
    NotJson,
    /// A name occurs twice in an object of the header or payload.
    #[error("the header or payload of the token has a name twice")]
    DuplicateName,
    /// `kid` is missing, empty or not a string.
    #[error("the header of the token has no kid that is a string")]
    KeyIdMissing,
    /// A header parameter has the wrong type.
    #[error("a parameter in the header of the token has the wrong type")]
    HeaderType,
    /// The header contains `crit`, `jku`, `x5u`, `x5c`, `jwk`, `b64` or `zip`.
    #[error("the header of the token has one of crit, jku, x5u, x5c, jwk, b64, zip")]
    HeaderParameter,
    /// `alg` is not RS256, ES256 or EdDSA.
    #[error("the alg of the token is none of RS256, ES256, EdDSA")]
    Algorithm,
    /// `alg` differs from the key's algorithm.
    #[error("the alg of the token is not the one of its key")]
    AlgorithmOfKey,
    /// A registered claim has the wrong type, such as text in `exp`.
    #[error("{0} of the token has the wrong type")]
    ClaimType(&'static str),
    /// A required claim is missing or empty.
    #[error("the token has no {0}")]
    ClaimMissing(&'static str),
    /// `iss` is not a trusted issuer.
    #[error("the issuer of the token is not trusted")]
    Issuer,
    /// The issuer has no key with this `kid`, even if another issuer has one.
    #[error("the issuer of the token has no such key")]
    KeyUnknown,
    /// The signature is invalid.
    #[error("the signature of the token does not verify")]
    Signature,
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` or `iat` is in the future beyond the leeway.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// `token_use` is not accepted for this issuer.
    #[error("this token_use is not accepted from this issuer")]
    TokenUse,
    /// The client or audience is not accepted.
    #[error("the client of the token is not accepted")]
    Client,
    /// A token of a user pool with `custom:service_id`, or of a service pool without it.
    #[error("the kind of the token is not the one of its issuer")]
    Kind,
    /// The service name belongs to another issuer.
    #[error("the issuer of the token may not name this service")]
    ServiceName,
    /// `azp` of an ID token is another client, or is missing beside several audiences.
    #[error("the azp of the ID token is not this client")]
    AuthorizedParty,
    /// `nonce` of an ID token differs from the one that was sent.
    #[error("the nonce of the ID token is not the one that was sent")]
    Nonce,
    /// The keys of the issuer could not be fetched in time. Says nothing about the token.
    #[error("the keys of the issuer are not available")]
    KeysUnavailable,
}

/// `Retry-After` of requests that cannot be decided, in seconds.
const RETRY_AFTER_S: u32 = 1;

impl TokenError {
    /// Returns whether the token would be rejected for the same reason later.
    pub(super) const fn is_permanent(self) -> bool {
        !matches!(self, Self::NotYetValid | Self::KeysUnavailable)
    }

    /// Returns the stable code for body, access event and metric label.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::TooLong
            | Self::NotThreeParts
            | Self::Encrypted
            | Self::NotBase64Url
            | Self::NotJson
            | Self::DuplicateName
            | Self::KeyIdMissing
            | Self::HeaderType
            | Self::ClaimType(_) => Code::TokenMalformed,
            Self::HeaderParameter => Code::TokenHeaderNotAccepted,
            Self::Algorithm | Self::AlgorithmOfKey => Code::TokenAlgorithmNotAccepted,
            Self::ClaimMissing(_) | Self::Nonce => Code::TokenClaimMissing,
            Self::Issuer | Self::ServiceName => Code::IssuerNotAccepted,
            Self::KeyUnknown => Code::TokenKeyUnknown,
            Self::Signature => Code::TokenSignatureInvalid,
            Self::Expired => Code::TokenExpired,
            Self::NotYetValid => Code::TokenNotYetValid,
            Self::TokenUse => Code::TokenUseNotAccepted,
            Self::Client | Self::AuthorizedParty => Code::ClientNotAccepted,
            Self::Kind => Code::TokenKindMismatch,
            Self::KeysUnavailable => Code::KeysUnavailable,
        }
    }
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        let problem = Self::new(error.code()).detail(error.to_string());
        match error == TokenError::KeysUnavailable {
            true => problem.retry_after(RETRY_AFTER_S),
            false => problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_error_renders_as_a_problem() {
        let problem = Problem::from(TokenError::KeysUnavailable).render("r");
        assert_eq!(problem.status, 503);
        assert_eq!(problem.headers["retry-after"], "1");
        let problem = Problem::from(TokenError::Expired).render("r");
        assert_eq!(problem.status, 401);
        let challenge = &problem.headers["www-authenticate"];
        assert_eq!(challenge, "Bearer error=\"invalid_token\"");
    }
}
