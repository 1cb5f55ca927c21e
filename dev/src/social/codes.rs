//! Authorization codes, in memory.

use std::time::Duration;

use postern_core::clock::Timestamp;

use super::SocialProvider;
use super::persons::SocialPerson;
use crate::random;

/// Lifetime of a code. RFC 6749 section 4.1.2 permits ten minutes; clients need seconds.
const CODE_LIFETIME: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct AuthorizationRequest {
    pub(super) redirect_uri: String,
    /// Granted scope, space-separated.
    pub(super) scope: String,
    pub(super) state: Option<String>,
    /// `code_challenge`, S256.
    pub(super) challenge: String,
    pub(super) nonce: Option<String>,
}

/// What a code stands for, and the request whose values the token request must match.
#[derive(Debug)]
pub(super) struct IssuedCode {
    pub(super) person: SocialPerson,
    pub(super) request: AuthorizationRequest,
    /// Time at which the person was chosen.
    issued_at: Timestamp,
}

// === impl AuthorizationRequest ===

impl AuthorizationRequest {
    pub(super) fn has_scope(&self, wanted: &str) -> bool {
        self.scope.split(' ').any(|scope| scope == wanted)
    }
}

// === impl SocialProvider ===

impl SocialProvider {
    pub(super) fn issue(&self, person: SocialPerson, request: AuthorizationRequest) -> String {
        let (code, issued_at) = (random::token(), self.clock.now());
        let issued = IssuedCode {
            person,
            request,
            issued_at,
        };
        let mut codes = self.codes.lock();
        codes.retain(|_, issued| self.is_valid(issued));
        codes.insert(code.clone(), issued);
        code
    }

    /// Redeems a code, which is valid once.
    pub(super) fn redeem(&self, code: &str) -> Option<IssuedCode> {
        let issued = self.codes.lock().remove(code);
        issued.filter(|issued| self.is_valid(issued))
    }

    fn is_valid(&self, issued: &IssuedCode) -> bool {
        issued.issued_at.plus(CODE_LIFETIME) > self.clock.now()
    }
}
