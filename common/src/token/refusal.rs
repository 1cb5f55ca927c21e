use crate::problem::{Code, Problem};

/// Why a token was refused. [`Refusal::code`] is what a client and the metrics see; the variants
/// are finer, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// More than [`super::MAX_TOKEN_BYTES`].
    #[error("the token is longer than 8 KiB")]
    TooLong,
    /// Not header, payload and signature.
    #[error("the token does not have exactly three parts")]
    NotThreeParts,
    /// Five parts: JWE.
    #[error("the token is encrypted")]
    Encrypted,
    /// Padding, stray bits, or another alphabet (RFC 7515 section 2).
    #[error("a part of the token is not canonical base64url")]
    NotBase64Url,
    /// Header or payload is not a JSON object in UTF-8.
    #[error("the header or payload of the token is not a JSON object")]
    NotJson,
    /// A name stands twice in an object of header or payload.
    #[error("the header or payload of the token has a name twice")]
    DuplicateName,
    /// `kid` is missing, empty or not a string.
    #[error("the header of the token has no kid that is a string")]
    KeyIdMissing,
    /// A header parameter has the wrong type.
    #[error("a parameter in the header of the token has the wrong type")]
    HeaderType,
    /// `crit`, `jku`, `x5u`, `x5c`, `jwk`, `b64` or `zip` is in the header.
    #[error("the header of the token has one of crit, jku, x5u, x5c, jwk, b64, zip")]
    HeaderParameter,
    /// `alg` is none of RS256, ES256, EdDSA.
    #[error("the alg of the token is none of RS256, ES256, EdDSA")]
    Algorithm,
    /// `alg` is not the one that the key has.
    #[error("the alg of the token is not the one of its key")]
    AlgorithmOfKey,
    /// A registered claim has the wrong type, such as a fraction in `exp`.
    #[error("a claim of the token has the wrong type")]
    ClaimType,
    /// `exp`, `iss`, `sub`, `token_use` or the client is missing.
    #[error("the token lacks exp, iss, sub, token_use or its client")]
    ClaimMissing,
    /// No pool that is trusted has this issuer.
    #[error("the issuer of the token is not trusted")]
    Issuer,
    /// The issuer has no key with this `kid` (whether or not another issuer has).
    #[error("the issuer of the token has no such key")]
    KeyUnknown,
    /// The signature does not verify.
    #[error("the signature of the token does not verify")]
    Signature,
    /// `exp` has come.
    #[error("the token has expired")]
    Expired,
    /// `nbf` or `iat` is in the future beyond the leeway.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// `token_use` is not accepted from this issuer.
    #[error("this token_use is not accepted from this issuer")]
    TokenUse,
    /// The client or audience is not one of ours.
    #[error("the client of the token is not accepted")]
    Client,
    /// A user pool's token with `custom:service_id`, or a service pool's token without.
    #[error("the kind of the token is not the one of its issuer")]
    Kind,
    /// The service name belongs to another issuer.
    #[error("the issuer of the token may not name this service")]
    ServiceName,
    /// The `nonce` of an ID token is not the one that was sent.
    #[error("the nonce of the ID token is not the one that was sent")]
    Nonce,
    /// The keys of the issuer could not be had in time; says nothing about the token.
    #[error("the keys of the issuer are not available")]
    KeysUnavailable {
        /// When to come back, in seconds.
        retry_after_s: u32,
    },
}

impl Refusal {
    /// Whether the same token would be refused for the same reason a little later.
    pub(super) const fn lasts(self) -> bool {
        !matches!(self, Self::NotYetValid | Self::KeysUnavailable { .. })
    }

    /// The stable code for body, access event and metric label.
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
            | Self::ClaimType => Code::TokenMalformed,
            Self::HeaderParameter => Code::TokenHeaderNotAccepted,
            Self::Algorithm | Self::AlgorithmOfKey => Code::TokenAlgorithmNotAccepted,
            Self::ClaimMissing | Self::Nonce => Code::TokenClaimMissing,
            Self::Issuer | Self::ServiceName => Code::IssuerNotAccepted,
            Self::KeyUnknown => Code::TokenKeyUnknown,
            Self::Signature => Code::TokenSignatureInvalid,
            Self::Expired => Code::TokenExpired,
            Self::NotYetValid => Code::TokenNotYetValid,
            Self::TokenUse => Code::TokenUseNotAccepted,
            Self::Client => Code::ClientNotAccepted,
            Self::Kind => Code::TokenKindMismatch,
            Self::KeysUnavailable { .. } => Code::KeysUnavailable,
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let problem = Self::new(refusal.code()).detail(refusal.to_string());
        if let Refusal::KeysUnavailable { retry_after_s } = refusal {
            return problem.retry_after(retry_after_s);
        }
        problem
    }
}
