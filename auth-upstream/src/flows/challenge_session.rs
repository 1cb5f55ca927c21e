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

use super::Flows;
use super::security_stamps::{StampSnapshot, stamped_names};
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

const CHALLENGE_CONTEXT: [&str; 1] = ["postern challenge session"];

/// Issuer and subject of the social identity with which a sign-in began.
pub(crate) type SocialLink = (String, String);

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ChallengeSession {
    Pool {
        name: String,
        session: String,
        username: String,
        email: Option<String>,
        link: Option<SocialLink>,
        /// `requiredAttributes` of NEW_PASSWORD_REQUIRED, such as `userAttributes.given_name`: the only
        /// ones that the answer may set.
        attributes: Vec<String>,
        stamps: StampSnapshot,
    },
    Address {
        user: AuthorizedUser,
        stamps: StampSnapshot,
    },
    Confirm {
        email: String,
        /// The id of the pending registration, which has the profile.
        id: String,
    },
}

// === impl ChallengeSession ===

impl ChallengeSession {
    fn seal(&self, key_ring: &KeyRing, expires_at: Timestamp) -> String {
        key_ring.seal_json(&CHALLENGE_CONTEXT, &(self, expires_at.0))
    }

    /// Opens a session. Returns `None` if it was not sealed with one of the keys, or has expired.
    pub(super) fn open(key_ring: &KeyRing, text: &str, now: Timestamp) -> Option<Self> {
        let (session, expires_at) = key_ring.open_json(&CHALLENGE_CONTEXT, text)?;
        (now.0 < expires_at).then_some(session)
    }
}

// === impl Flows ===

impl Flows {
    /// Returns the problem that asks for the response to a challenge of the pool. The stamps that are
    /// missing, as that of the user name, which the pool has told, are those of the present.
    pub(crate) async fn challenge_required(
        &self,
        challenge: &PoolChallenge,
        email: Option<&EmailAddress>,
        link: Option<&SocialLink>,
        mut stamps: StampSnapshot,
    ) -> Problem {
        let names = stamped_names(Some(&challenge.username), email);
        if let Err(problem) = self.add_stamps(&mut stamps, &names).await {
            return problem;
        }
        let required = challenge.parameters.get("requiredAttributes");
        let required = required.and_then(|text| serde_json::from_str(text).ok());
        let session = ChallengeSession::Pool {
            name: challenge.name.clone(),
            session: challenge.session.clone(),
            username: challenge.username.clone(),
            email: email.map(|email| email.as_str().to_owned()),
            link: link.cloned(),
            attributes: required.unwrap_or_default(),
            stamps,
        };
        let mut parameters = challenge.parameters.clone();
        for internal in ["USER_ID_FOR_SRP", "USERNAME", "SECRET_HASH"] {
            parameters.remove(internal);
        }
        self.ask(&challenge.name, &session, CHALLENGE_TTL, &json!(parameters))
    }

    pub(super) fn address_unproven(
        &self,
        user: &AuthorizedUser,
        email: &EmailAddress,
        stamps: StampSnapshot,
    ) -> Problem {
        let mut user = user.clone();
        let id = &mut user.id_token;
        (id.email, id.picture) = (Some(email.as_str().to_owned()), None);
        let names = ["given_name", "family_name"];
        id.claims.retain(|name, _| names.contains(&name.as_str()));
        let parameters = json!({ "CODE_DELIVERY_DESTINATION": email.as_str() });
        let session = ChallengeSession::Address { user, stamps };
        self.ask(CONFIRM_ADDRESS, &session, CHALLENGE_TTL, &parameters)
    }

    pub(super) fn confirmation_required(
        &self,
        email: &EmailAddress,
        registration: &str,
    ) -> Problem {
        let session = ChallengeSession::Confirm {
            email: email.as_str().to_owned(),
            id: registration.to_owned(),
        };
        let problem = self.ask(CONFIRM_SIGN_UP, &session, CONFIRMATION_TTL, &json!({}));
        problem.detail(
            "confirm the address with the code that was sent to it, at POST /auth/register/confirm",
        )
    }

    fn ask(
        &self,
        name: &str,
        session: &ChallengeSession,
        ttl: Duration,
        parameters: &Value,
    ) -> Problem {
        let session = session.seal(&self.key_ring, self.clock.now().plus(ttl));
        problem(name, &session, parameters)
    }
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
        let session = ChallengeSession::Confirm {
            email: "ada@example.com".to_owned(),
            id: "r-1".to_owned(),
        };
        let text = session.seal(&keys, Timestamp(1000));
        assert!(ChallengeSession::open(&keys, &text, Timestamp(999)).is_some());
        assert!(ChallengeSession::open(&keys, &text, Timestamp(1000)).is_none());
        assert!(RefreshGrant::open(&keys, &text).is_none());
    }
}
