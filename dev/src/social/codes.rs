//! Authorization codes, in memory.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::clock::Timestamp;

use super::persons::SocialPerson;

/// Lifetime of a code. RFC 6749 section 4.1.2 permits ten minutes; clients need seconds.
const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// What a code stands for, and the values that the token request must match.
#[derive(Debug)]
pub(super) struct IssuedCode {
    pub(super) person: SocialPerson,
    /// Granted scope, space-separated.
    pub(super) scope: String,
    pub(super) redirect_uri: String,
    /// `code_challenge`, S256.
    pub(super) challenge: String,
    pub(super) nonce: Option<String>,
    /// Time at which the person was chosen.
    pub(super) issued_at: Timestamp,
}

/// The codes that have not been redeemed.
#[derive(Debug)]
pub(super) struct CodeStore {
    codes: Mutex<HashMap<String, IssuedCode>>,
    clock: Clock,
}

// === impl CodeStore ===

impl CodeStore {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            codes: Mutex::default(),
            clock,
        }
    }

    pub(super) fn issue(&self, issued: IssuedCode) -> String {
        let code = random_token();
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

/// Returns 32 random bytes in base64url.
pub(super) fn random_token() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system's random generator is available");
    URL_SAFE_NO_PAD.encode(bytes)
}
