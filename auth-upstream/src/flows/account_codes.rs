//! One-time codes that this service makes and the notification service sends.
//!
//! A code has eight digits. A code of an account can be guessed from many networks at once, each
//! with the free attempts of the attempt limits; six digits would leave such an attacker one chance
//! in ten thousand for each code, eight leave one in a million ([`MAX_GUESSES`] of 10^8).
//!
//! The cache has, under purpose and address, a keyed digest of both and the code: an AES-GCM tag
//! over them, with the epoch of the cache as the text. It therefore reveals no code, and a copy that
//! a fail-over restores is void, as with temporary tokens (`exchange`).

use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem};
use serde::{Deserialize, Serialize};

use super::challenge_session::{CHALLENGE_TTL, CONFIRMATION_TTL};
use super::{Flows, cache_unavailable};
use crate::client::ClientContext;
use crate::crypto::{random, sha256_hex};
use crate::pool::admin::PoolAdmin;
use crate::protection::AttemptKind;

/// Validity of a reset code: as in Cognito.
const RESET_TTL: Duration = Duration::from_secs(3600);
/// Guesses at one code from all networks together, after which it is void (NIST SP 800-63B section
/// 3.2.2). Each network may make only a few, so that it takes many of them to void a code.
const MAX_GUESSES: u64 = 100;
const CONTEXT: &str = "postern account code";

named! {
    CodePurpose {
        Confirmation = "confirmation",
        Reset = "reset",
        /// The address of a social identity whose provider is not authoritative for it.
        SocialLink = "social-link",
    }
}

/// A code that was redeemed by this caller and by no other. Dropping it is right; a caller whose
/// operation was refused for a reason other than the code gives it back.
#[derive(Debug)]
pub(crate) struct RedeemedCode {
    key: String,
    sealed: Vec<u8>,
    content: CodeContent,
}

#[derive(Debug, Serialize, Deserialize)]
struct CodeContent {
    epoch: String,
    expires_at: i64,
}

// === impl CodePurpose ===

impl CodePurpose {
    fn request(self) -> AttemptKind {
        match self {
            Self::Confirmation => AttemptKind::ConfirmationRequest,
            Self::Reset => AttemptKind::ResetRequest,
            Self::SocialLink => AttemptKind::LinkRequest,
        }
    }

    fn template(self) -> &'static str {
        match self {
            Self::Confirmation | Self::SocialLink => "account-confirm",
            Self::Reset => "account-reset",
        }
    }

    /// Returns the validity of a code: that of the session in which it is entered, if there is one.
    fn ttl(self) -> Duration {
        match self {
            Self::Confirmation => CONFIRMATION_TTL,
            Self::Reset => RESET_TTL,
            Self::SocialLink => CHALLENGE_TTL,
        }
    }
}

// === impl Flows ===

impl Flows {
    /// Returns the client with which this service confirms and resets by codes of its own, unless the
    /// pool makes the codes.
    pub(crate) fn own_codes(&self) -> Option<&PoolAdmin> {
        self.pool.admin.as_ref().filter(|_| self.makes_codes)
    }

    /// Sends a code as [`Flows::issue_code`], unless many were requested for the address.
    pub(super) async fn send_code(
        &self,
        purpose: CodePurpose,
        address: &EmailAddress,
        client: &ClientContext,
    ) -> Result<(), Problem> {
        let issued = Box::pin(self.issue_code(purpose, address, client));
        let sent = self.limit_codes(purpose.request(), client, address, issued);
        sent.await.unwrap_or(Ok(()))
    }

    /// Makes a code, which replaces the one before of the same purpose and address, and sends it to the
    /// address, in the locale of the client. The caller limits the calls. Returns when the notification
    /// service has stored the message, so that a caller whose response must not depend on the outcome
    /// runs it in a background task.
    pub(crate) async fn issue_code(
        &self,
        purpose: CodePurpose,
        address: &EmailAddress,
        client: &ClientContext,
    ) -> Result<(), Problem> {
        let (key, code) = (cache_key(purpose, address), random::digits());
        let epoch = self.cache.epoch(&key).await.map_err(cache_unavailable)?;
        let expires_at = self.clock.now().plus(purpose.ttl());
        let content = CodeContent {
            epoch,
            expires_at: expires_at.0,
        };
        let sealed = self.key_ring.seal_json(&[CONTEXT, &key, &code], &content);
        let set = self.cache.set(&key, sealed.as_bytes(), purpose.ttl());
        set.await.map_err(cache_unavailable)?;
        let guesses = self.cache.delete(&guesses_key(&key)).await;
        guesses.map_err(cache_unavailable)?;
        let template = purpose.template();
        self.messages
            .code(template, address, &code, expires_at, client)
            .await
    }

    pub(super) async fn void_code(
        &self,
        purpose: CodePurpose,
        address: &EmailAddress,
    ) -> Result<(), Problem> {
        let deleted = self.cache.delete(&cache_key(purpose, address)).await;
        deleted.map(drop).map_err(cache_unavailable)
    }

    /// Uses a code up. Of concurrent callers with the right code one succeeds, also over a fail-over
    /// of the cache. A wrong code uses nothing up; the caller limits the guesses, and a code ends after
    /// [`MAX_GUESSES`].
    pub(crate) async fn redeem_code(
        &self,
        purpose: CodePurpose,
        address: &EmailAddress,
        code: &str,
    ) -> Result<RedeemedCode, Problem> {
        let key = cache_key(purpose, address);
        let counter = guesses_key(&key);
        let guesses = self.cache.increment(&counter, purpose.ttl());
        if guesses.await.map_err(cache_unavailable)? > MAX_GUESSES {
            return Err(Code::InvalidCode.into());
        }
        let open = |sealed: &[u8]| -> Option<CodeContent> {
            let sealed = std::str::from_utf8(sealed).ok()?;
            self.key_ring.open_json(&[CONTEXT, &key, code], sealed)
        };
        let stored = self.cache.get(&key).await.map_err(cache_unavailable)?;
        if stored.and_then(|sealed| open(&sealed)).is_none() {
            return Err(Code::InvalidCode.into());
        }
        let taken = self.cache.take_with_epoch(&key).await;
        let (taken, epoch) = taken.map_err(cache_unavailable)?;
        let sealed = taken.ok_or(Code::InvalidCode)?;
        let content = open(&sealed).ok_or(Code::InvalidCode)?;
        if content.epoch != epoch || self.clock.now().0 >= content.expires_at {
            return Err(Code::InvalidCode.into());
        }
        Ok(RedeemedCode {
            key,
            sealed,
            content,
        })
    }

    /// Makes a redeemed code valid again, unless there is a newer one. Best effort.
    pub(super) async fn give_back(&self, code: RedeemedCode) {
        let RedeemedCode {
            key,
            sealed,
            content,
        } = code;
        let left = Timestamp(content.expires_at).since(self.clock.now());
        let restored = self
            .cache
            .set_if_absent_in(&content.epoch, &key, &sealed, left);
        let _ = restored.await;
    }
}

/// Returns the cache key of an address, in which its case does not count, as in the pool.
fn cache_key(purpose: CodePurpose, address: &EmailAddress) -> String {
    let address = sha256_hex(address.as_str().to_ascii_lowercase());
    format!("postern:auth:code:{}:{address}", purpose.name())
}

fn guesses_key(key: &str) -> String {
    format!("{key}:guesses")
}
