//! Sessions without a gateway: a one-time link signs its holder in as operator.
//!
//! Links and sessions are 256 random bits, of which this process keeps SHA-256 digests in memory.
//! A session token is accepted by this console only and is sent to no other process.
//!
//! Input: secrets. Output: tokens, or the code of a rejection. Depends on nothing.

use std::collections::HashMap;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use parking_lot::Mutex;
use postern_core::clock::Period;
use postern_core::{Clock, Code, Secret};
use sha2::{Digest, Sha256};

/// Time for which the link that is printed at a start can be used.
pub(crate) const FIRST_LINK_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Time for which a link that was requested later can be used.
const REQUESTED_LINK_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Time for which a session is valid.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions. A further one ends the oldest.
const MAX_SESSIONS: usize = 100;
/// Prefix of session tokens, by which they differ from the tokens of issuers.
const SESSION_PREFIX: &str = "postern-console-";

pub(crate) type TokenDigest = [u8; 32];

/// The one-time link and the sessions.
#[derive(Debug)]
pub(crate) struct ConsoleSessions {
    clock: Clock,
    /// Whom the processes log with the changes of a session.
    pub(crate) holder: &'static str,
    /// Digest of the secret with which a program of this machine requests links; `None` if there
    /// are no links.
    issuer: Option<TokenDigest>,
    /// Digest of its secret, and when it is valid.
    link: Mutex<Option<(TokenDigest, Period)>>,
    /// The end of each session by the digest of its token.
    sessions: Mutex<HashMap<TokenDigest, Period>>,
}

// === impl ConsoleSessions ===

impl ConsoleSessions {
    pub(crate) fn new(issuer: Option<&Secret>, holder: &'static str, clock: Clock) -> Self {
        Self {
            clock,
            holder,
            issuer: issuer.map(|secret| digest(secret.expose())),
            link: Mutex::default(),
            sessions: Mutex::default(),
        }
    }

    /// Returns the command that prints a link; `None` without links.
    pub(crate) fn link_command(&self) -> Option<&'static str> {
        self.issuer.map(|_| match self.holder {
            "standalone" => "postern console-link",
            _ => "sudo postern-console link",
        })
    }

    /// Creates a link for a program of this machine, which has to know the secret.
    ///
    /// # Errors
    /// `token_signature_invalid` for another secret.
    pub(crate) fn request_link(&self, secret: &str) -> Result<Secret, Code> {
        let is_equal =
            |known: &TokenDigest| verify_slices_are_equal(known, &digest(secret)).is_ok();
        match self.issuer.as_ref().is_some_and(is_equal) {
            true => self
                .create_link(REQUESTED_LINK_LIFETIME)
                .map_err(|_| Code::Internal),
            false => Err(Code::TokenSignatureInvalid),
        }
    }

    /// Creates the secret of a link, which is valid once. An unused earlier link is no longer valid.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(crate) fn create_link(&self, lifetime: Duration) -> Result<Secret, getrandom::Error> {
        let secret = random_secret()?;
        let period = Period::new(self.clock.now(), lifetime);
        *self.link.lock() = Some((digest(secret.expose()), period));
        tracing::info!(
            holder = self.holder,
            lifetime_s = lifetime.as_secs(),
            "console link created"
        );
        Ok(secret)
    }

    /// Exchanges the secret of a link for the token of a session of 12 hours.
    ///
    /// # Errors
    /// `invalid_temporary_token` for a secret that is wrong, used, replaced or too old.
    pub(crate) fn exchange(&self, secret: &str) -> Result<Secret, Code> {
        let now = self.clock.now();
        let is_valid = |(link, period): &mut (TokenDigest, Period)| {
            let is_equal = verify_slices_are_equal(link, &digest(secret)).is_ok();
            is_equal && period.contains(now)
        };
        let link = self.link.lock().take_if(is_valid);
        link.ok_or(Code::InvalidTemporaryToken)?;
        let token = random_secret().map_err(|_| Code::Internal)?;
        let token = format!("{SESSION_PREFIX}{}", token.expose());
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, period| period.contains(now));
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, period)| period.until());
            if let Some(oldest) = oldest.map(|(digest, _)| *digest) {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(digest(&token), Period::new(now, SESSION_LIFETIME));
        tracing::info!(holder = self.holder, "console session started");
        Ok(Secret::new(token))
    }

    /// Checks the token of a session.
    ///
    /// # Errors
    /// `token_expired` after 12 hours, `token_signature_invalid` for any other token.
    pub(crate) fn check(&self, token: &str) -> Result<(), Code> {
        let period = self.sessions.lock().get(&digest(token)).copied();
        match period {
            Some(period) if period.contains(self.clock.now()) => Ok(()),
            Some(_) => Err(Code::TokenExpired),
            None => Err(Code::TokenSignatureInvalid),
        }
    }

    /// Ends a session.
    pub(crate) fn end(&self, token: &str) {
        self.sessions.lock().remove(&digest(token));
    }
}

/// Returns whether a token has the form of a session token, valid or not.
pub(crate) fn is_session_token(token: &str) -> bool {
    token.starts_with(SESSION_PREFIX)
}

fn digest(text: &str) -> TokenDigest {
    Sha256::digest(text).into()
}

/// Returns 256 random bits in hexadecimal digits.
pub(crate) fn random_secret() -> Result<Secret, getrandom::Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)?;
    Ok(Secret::new(hex::encode(bytes)))
}

#[cfg(test)]
mod tests {
    use postern_core::clock::Timestamp;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn sessions() -> (ConsoleSessions, Clock) {
        let clock = Clock::manual(NOW);
        let issuer = Secret::from("0123456789abcdef0123456789abcdef");
        let sessions = ConsoleSessions::new(Some(&issuer), "host", clock.clone());
        (sessions, clock)
    }

    fn start(sessions: &ConsoleSessions) -> Secret {
        let link = sessions.create_link(REQUESTED_LINK_LIFETIME);
        let token = sessions.exchange(link.expect("randomness").expose());
        token.expect("valid")
    }

    #[test]
    fn unused_link_expires() {
        let (sessions, clock) = sessions();
        for (lifetime, minutes) in [
            (REQUESTED_LINK_LIFETIME, 10),
            (FIRST_LINK_LIFETIME, 24 * 60),
        ] {
            assert_eq!(lifetime, Duration::from_secs(minutes * 60));
            for (age, is_valid) in [
                (lifetime - Duration::from_millis(1), true),
                (lifetime, false),
            ] {
                let link = sessions.create_link(lifetime).expect("randomness");
                clock.advance(age);
                assert_eq!(
                    sessions.exchange(link.expose()).is_ok(),
                    is_valid,
                    "{age:?}"
                );
            }
        }
    }

    #[test]
    fn session_ends_after_12_hours_by_sign_out_or_by_100_later_ones() {
        let (sessions, clock) = sessions();
        let (first, second) = (start(&sessions), start(&sessions));
        sessions.end(first.expose());
        let ended = Err(Code::TokenSignatureInvalid);
        assert_eq!(sessions.check(first.expose()), ended);
        clock.advance(SESSION_LIFETIME - Duration::from_millis(1));
        assert_eq!(sessions.check(second.expose()), Ok(()));
        clock.advance(Duration::from_millis(1));
        assert_eq!(sessions.check(second.expose()), Err(Code::TokenExpired));
        let oldest = start(&sessions);
        clock.advance(Duration::from_millis(1));
        for _ in 1..MAX_SESSIONS {
            start(&sessions);
        }
        assert_eq!(sessions.check(oldest.expose()), Ok(()));
        start(&sessions);
        assert_eq!(sessions.check(oldest.expose()), ended);
        assert_eq!(sessions.sessions.lock().len(), MAX_SESSIONS);
    }

    #[test]
    fn session_of_a_clock_that_was_ahead_ends_when_it_is_right() {
        let (sessions, clock) = sessions();
        clock.set(NOW.plus(Duration::from_secs(86_400)));
        let token = start(&sessions);
        assert_eq!(sessions.check(token.expose()), Ok(()));
        clock.set(NOW);
        assert_eq!(sessions.check(token.expose()), Err(Code::TokenExpired));
    }
}
