//! The sealed state of a challenge, and the problems that ask a client for the next step.
//!
//! The pool's session and user name travel to the client and back in a sealed text, so that this
//! service stores nothing between the steps of a sign-in. What ends a challenge is a stamp in the cache
//! (`security_stamps`).

use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::security_stamps::StampSnapshot;
use super::social::AuthorizedUser;
use crate::crypto::KeyRing;
use crate::pool::PoolChallenge;

/// Validity of a challenge session. The pool's own session is shorter (3 to 15 minutes) and
/// decides.
pub(super) const CHALLENGE_TTL: Duration = Duration::from_secs(15 * 60);
/// Validity of a confirmation session, its code and its profile: as long as a code of Cognito, 24
/// hours.
pub(super) const CONFIRMATION_TTL: Duration = Duration::from_secs(24 * 3600);

/// The challenge that `POST /auth/register/confirm` answers.
const CONFIRM_SIGN_UP: &str = "CONFIRM_SIGN_UP";
/// The challenge of a social sign-in whose address the provider does not prove.
const CONFIRM_ADDRESS: &str = "CONFIRM_ADDRESS";

/// The sealing context of challenge sessions.
const CHALLENGE_CONTEXT: [&str; 1] = ["postern challenge session"];

/// Issuer and subject of the social identity with which a sign-in began.
pub(crate) type SocialLink = (String, String);

/// The content of a challenge session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ChallengeSession {
    /// A challenge of the pool.
    Pool {
        /// Cognito's challenge name.
        name: String,
        session: String,
        /// The pool's user name.
        username: String,
        /// The address of the account, if it is known.
        email: Option<String>,
        /// The link of a social sign-in.
        link: Option<SocialLink>,
        /// `requiredAttributes` of NEW_PASSWORD_REQUIRED, such as `userAttributes.given_name`: the only
        /// ones that the answer may set.
        attributes: Vec<String>,
        stamps: StampSnapshot,
        expires_at: i64,
    },
    /// The proof of a social identity's address with a code.
    Address {
        user: AuthorizedUser,
        stamps: StampSnapshot,
        expires_at: i64,
    },
    /// The confirmation of an address with a code.
    Confirm {
        email: String,
        /// The id of the pending registration, which has the profile.
        id: String,
        expires_at: i64,
    },
}

// === impl ChallengeSession ===

impl ChallengeSession {
    pub(super) fn for_challenge(
        challenge: &PoolChallenge,
        email: Option<&EmailAddress>,
        link: Option<&SocialLink>,
        stamps: StampSnapshot,
        expires_at: Timestamp,
    ) -> Self {
        let required = challenge.parameters.get("requiredAttributes");
        let required = required.and_then(|text| serde_json::from_str(text).ok());
        Self::Pool {
            name: challenge.name.clone(),
            session: challenge.session.clone(),
            username: challenge.username.clone(),
            email: email.map(|email| email.as_str().to_owned()),
            link: link.cloned(),
            attributes: required.unwrap_or_default(),
            stamps,
            expires_at: expires_at.0,
        }
    }

    pub(super) fn for_address(
        user: &AuthorizedUser,
        email: &EmailAddress,
        stamps: StampSnapshot,
        expires_at: Timestamp,
    ) -> Self {
        let mut user = user.clone();
        let id = &mut user.id_token;
        (id.email, id.picture) = (Some(email.as_str().to_owned()), None);
        let names = ["given_name", "family_name"];
        id.claims.retain(|name, _| names.contains(&name.as_str()));
        Self::Address {
            user,
            stamps,
            expires_at: expires_at.0,
        }
    }

    pub(super) fn for_confirmation(email: &EmailAddress, id: &str, expires_at: Timestamp) -> Self {
        Self::Confirm {
            email: email.as_str().to_owned(),
            id: id.to_owned(),
            expires_at: expires_at.0,
        }
    }

    pub(super) fn seal(&self, key_ring: &KeyRing) -> String {
        let plain = serde_json::to_vec(self).expect("the enum serializes to JSON");
        key_ring.seal(&CHALLENGE_CONTEXT, &plain)
    }

    /// Opens a session. Returns `None` if it was not sealed with one of the keys, or has expired.
    pub(super) fn open(key_ring: &KeyRing, text: &str, now: Timestamp) -> Option<Self> {
        let session: Self =
            serde_json::from_slice(&key_ring.open(&CHALLENGE_CONTEXT, text)?).ok()?;
        let (Self::Pool { expires_at, .. }
        | Self::Address { expires_at, .. }
        | Self::Confirm { expires_at, .. }) = &session;
        (now.0 < *expires_at).then_some(session)
    }
}

/// Returns the problem that asks for the response to a challenge of the pool.
pub(super) fn challenge_required(challenge: &PoolChallenge, session: &str) -> Problem {
    let mut parameters = challenge.parameters.clone();
    parameters.retain(|name, _| {
        !matches!(
            name.as_str(),
            "USER_ID_FOR_SRP" | "USERNAME" | "SECRET_HASH"
        )
    });
    problem(&challenge.name, session, &json!(parameters))
}

/// Returns the problem that asks for the code that was sent to the address of a social identity.
pub(super) fn address_unproven(email: &EmailAddress, session: &str) -> Problem {
    let parameters = json!({ "CODE_DELIVERY_DESTINATION": email.as_str() });
    problem(CONFIRM_ADDRESS, session, &parameters)
}

/// Returns the problem that asks for the code that was sent to the address.
pub(super) fn confirmation_required(session: &str) -> Problem {
    problem(CONFIRM_SIGN_UP, session, &json!({})).detail(
        "confirm the address with the code that was sent to it, at POST /auth/register/confirm",
    )
}

/// Returns the problem that asks for a password reset. It has no session.
pub(super) fn password_reset_required() -> Problem {
    problem("PASSWORD_RESET_REQUIRED", "", &json!({})).detail(
        "ask for a code at POST /auth/password/forgot and set a new password at POST /auth/password/reset",
    )
}

fn problem(name: &str, session: &str, parameters: &Value) -> Problem {
    let challenge = json!({ "name": name, "session": session, "parameters": parameters });
    Problem::new(Code::ChallengeRequired).member("challenge", challenge)
}

#[cfg(test)]
mod tests {
    use super::super::grant::RefreshGrant;
    use super::*;
    use crate::crypto::{SealingKey, random};

    #[test]
    fn session_expires_and_is_no_refresh_token() {
        let keys = KeyRing::new(SealingKey::new(&random::bytes()), Vec::new());
        let email = EmailAddress::parse("ada@example.com").expect("address");
        let session = ChallengeSession::for_confirmation(&email, "r-1", Timestamp(1000));
        let text = session.seal(&keys);
        assert!(ChallengeSession::open(&keys, &text, Timestamp(999)).is_some());
        assert!(ChallengeSession::open(&keys, &text, Timestamp(1000)).is_none());
        assert!(RefreshGrant::open(&keys, &text).is_none());
    }

    #[test]
    fn required_password_reset_is_a_challenge() {
        let body = password_reset_required().to_json("id-1");
        assert_eq!(
            (&body["status"], &body["code"]),
            (&json!(401), &json!("challenge_required"))
        );
        assert_eq!(body["challenge"]["name"], "PASSWORD_RESET_REQUIRED");
    }
}
