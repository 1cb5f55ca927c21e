//! The proofs with which the authentication service signs social users in without a password.
//!
//! The pool's triggers (`conf/cognito/triggers`) and the local pool verify them. Both sides have a
//! key of 32 bytes. A proof is `SECONDS.TAG`: the time, and HMAC-SHA256 in base64url over the lines
//! context, statement, user, app client, nonce and time. The pool chooses the nonce of each sign-in.

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::clock::Timestamp;
use crate::email::EmailAddress;
use crate::seal::{KeyTextError, Seal, parse_key};

/// The variable with the key: 32 bytes in Base64.
pub const SOCIAL_PROOF_KEY: &str = "SOCIAL_PROOF_KEY";

/// The name of a proof in the `ClientMetadata` of SignUp.
pub const SOCIAL_PROOF: &str = "social_proof";

const CONTEXT: &str = "postern social proof v1";
/// The purpose of the seal of accounts.
const ACCOUNT_CONTEXT: &str = "postern social account v1";

/// The largest difference between the time of a proof and the clock of its verifier, in seconds:
/// the lifetime of a proof and the tolerance for clocks in one.
const MAX_AGE_S: u64 = 60;

/// The lengths of a subject, which is a UUID at Cognito, and of a digest in a sealed account.
const SUBJECT_BYTES: usize = 36;
const DIGEST_BYTES: usize = 43;

/// The key that the service and the pool share.
pub struct SocialProofKey(Zeroizing<[u8; 32]>);

/// What a proof states.
#[derive(Clone, Copy, Debug)]
pub enum SocialStatement<'a> {
    /// The user with this subject is signed in.
    SignIn {
        /// The pool's subject of the user.
        subject: &'a str,
        /// The nonce of the challenge.
        nonce: &'a str,
    },
    /// The address belongs to the user who is created.
    SignUp {
        /// The address, compared in lower case.
        email: &'a str,
    },
}

/// The account that a challenge is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocialAccount {
    /// The pool's subject of the user.
    pub subject: String,
    /// Whether the address was verified.
    pub is_verified: bool,
    email_digest: String,
}

// === impl SocialProofKey ===

impl SocialProofKey {
    /// Parses the key: 32 random bytes in Base64.
    pub fn parse(text: &str) -> Result<Self, KeyTextError> {
        parse_key(text).map(Self)
    }

    /// Returns the proof of a statement for an app client.
    #[must_use]
    pub fn prove(&self, statement: SocialStatement<'_>, client_id: &str, now: Timestamp) -> String {
        let time = now.unix_seconds().to_string();
        let tag = hmac::sign(&self.mac(), &statement.text(client_id, &time));
        format!("{time}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Returns whether a text proves a statement now.
    #[must_use]
    pub fn verify(
        &self,
        proof: &str,
        statement: SocialStatement<'_>,
        client_id: &str,
        now: Timestamp,
    ) -> bool {
        let Some((time, tag)) = proof.split_once('.') else {
            return false;
        };
        let at = time.parse::<i64>();
        let age = at.map(|at| now.unix_seconds().abs_diff(at));
        let Ok(tag) = URL_SAFE_NO_PAD.decode(tag) else {
            return false;
        };
        age.is_ok_and(|age| age <= MAX_AGE_S)
            && hmac::verify(&self.mac(), &statement.text(client_id, time), &tag).is_ok()
    }

    /// Seals the account of a challenge. The text has one length, also if there is no account, so
    /// that it shows nobody else whether an address is registered.
    #[must_use]
    pub fn seal_account(&self, account: Option<&SocialAccount>, nonce: &str) -> String {
        let (flag, subject, digest) = account.map_or((0, "", ""), |account| {
            let flag = u8::from(account.is_verified);
            (flag, &*account.subject, &*account.email_digest)
        });
        let plain = format!("{flag}{subject:<SUBJECT_BYTES$}{digest:<DIGEST_BYTES$}");
        URL_SAFE_NO_PAD.encode(self.account_seal(nonce).close(&plain))
    }

    /// Opens the account of a challenge. The outer `None` means that it was sealed with another key
    /// or for another nonce, the inner one that there is no account.
    #[must_use]
    pub fn open_account(&self, sealed: &str, nonce: &str) -> Option<Option<SocialAccount>> {
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let plain = self.account_seal(nonce).open(&sealed)?;
        let (flag, rest) = plain.split_at_checked(1)?;
        let (subject, digest) = rest.split_at_checked(SUBJECT_BYTES)?;
        let subject = subject.trim_end();
        Some((!subject.is_empty()).then(|| SocialAccount {
            subject: subject.to_owned(),
            is_verified: flag == "1",
            email_digest: digest.trim_end().to_owned(),
        }))
    }

    fn mac(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, self.0.as_ref())
    }

    fn account_seal(&self, nonce: &str) -> Seal {
        Seal::new(ACCOUNT_CONTEXT, self.0.as_ref(), nonce)
    }
}

impl std::fmt::Debug for SocialProofKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SocialProofKey")
    }
}

// === impl SocialAccount ===

impl SocialAccount {
    /// Creates the account of a user of the pool.
    #[must_use]
    pub fn new(subject: String, email: Option<&str>, is_verified: bool) -> Self {
        Self {
            subject,
            is_verified,
            email_digest: email.map(email_digest).unwrap_or_default(),
        }
    }

    /// Returns whether this is the address of the account. A pool without `UsernameAttributes` finds
    /// users by a name, which may look like an address of somebody else.
    #[must_use]
    pub fn has_email(&self, email: &EmailAddress) -> bool {
        self.email_digest == email_digest(email.as_str())
    }
}

fn email_digest(email: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(email.to_lowercase()))
}

// === impl SocialStatement ===

impl SocialStatement<'_> {
    /// Returns the text under the tag. No part contains a line break.
    fn text(self, client_id: &str, time: &str) -> Vec<u8> {
        let (name, user, nonce) = match self {
            Self::SignIn { subject, nonce } => ("sign-in", subject.to_owned(), nonce),
            Self::SignUp { email } => ("sign-up", email.to_lowercase(), ""),
        };
        let lines = [CONTEXT, name, &user, client_id, nonce, time];
        lines.join("\n").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGN_IN: SocialStatement<'_> = SocialStatement::SignIn {
        subject: "8a4f5c1e-2b6d-4c57-9a0f-3f1d7be6c002",
        nonce: "n-1",
    };
    const NOW: Timestamp = Timestamp(1_795_159_800_000);

    fn key(byte: u8) -> SocialProofKey {
        SocialProofKey(Zeroizing::new([byte; 32]))
    }

    #[test]
    fn proof_holds_for_its_statement_client_key_and_minute() {
        let proof = key(1).prove(SIGN_IN, "client", NOW);
        let holds = |statement, client, seconds: i64, key: SocialProofKey| {
            key.verify(&proof, statement, client, Timestamp(NOW.0 + 1000 * seconds))
        };
        assert!(holds(SIGN_IN, "client", 60, key(1)) && holds(SIGN_IN, "client", -60, key(1)));
        assert!(!holds(SIGN_IN, "client", 61, key(1)) && !holds(SIGN_IN, "client", -61, key(1)));
        assert!(!holds(SIGN_IN, "other", 0, key(1)) && !holds(SIGN_IN, "client", 0, key(2)));
        let subject = "8a4f5c1e-2b6d-4c57-9a0f-3f1d7be6c002";
        let sign_in = |subject, nonce| SocialStatement::SignIn { subject, nonce };
        for other in [
            sign_in(subject, "n-2"),
            sign_in("other", "n-1"),
            SocialStatement::SignUp { email: subject },
        ] {
            assert!(!holds(other, "client", 0, key(1)), "{other:?}");
        }
        for broken in [
            "",
            ".",
            "1795159800.",
            "x.y",
            &proof.replace("1795", "1796"),
        ] {
            assert!(!key(1).verify(broken, SIGN_IN, "client", NOW), "{broken}");
        }
    }

    /// The triggers' test (`tests/peers/cognito`) has the same texts.
    #[test]
    fn proof_is_the_one_that_the_triggers_expect() {
        let up = SocialStatement::SignUp {
            email: "Ada@example.com",
        };
        let proofs = [SIGN_IN, up].map(|it| key(1).prove(it, "client", NOW));
        let expected = [
            "1795159800.L15P3VYV_vVdrKWmYdvmHQEg_SGonYMcIbWLwcmk77k",
            "1795159800.ONF9Y5XQHEZ7DairSqbIX3OHKSKXDNvYcZKWPx31934",
        ];
        assert_eq!(proofs, expected);
        let sealed = "AgICAgICAgICAgICth1A0drsSqH8iK5_XLUTycaxyDb-A5Rf-wnBVg_3HDAe8xF2tgSCRi-EpQ6YvTpVqNmeKBYGRicyXThVFOW1cSrB3UvlUFvk9u3VU44J0tM_GVcMJHPVwSPczTGAwyrH";
        let account = key(1).open_account(sealed, "n-1");
        assert_eq!(
            account,
            Some(Some(account_of_ada())),
            "sealed by the triggers"
        );
    }

    fn account_of_ada() -> SocialAccount {
        let subject = "8a4f5c1e-2b6d-4c57-9a0f-3f1d7be6c002".to_owned();
        SocialAccount::new(subject, Some("Ada@Example.com"), true)
    }

    #[test]
    fn sealed_account_opens_with_its_key_and_nonce() {
        let ada = account_of_ada();
        let sealed = key(1).seal_account(Some(&ada), "n-1");
        assert_eq!(key(1).open_account(&sealed, "n-1"), Some(Some(ada.clone())));
        let email = |text| EmailAddress::parse(text).expect("an address");
        assert!(ada.has_email(&email("ada@example.com")));
        assert!(!ada.has_email(&email("eda@example.com")));
        assert_eq!(key(1).open_account(&sealed, "n-2"), None);
        assert_eq!(key(2).open_account(&sealed, "n-1"), None);
        let nobody = key(1).seal_account(None, "n-1");
        assert_eq!(nobody.len(), sealed.len());
        assert_eq!(key(1).open_account(&nobody, "n-1"), Some(None));
    }
}
