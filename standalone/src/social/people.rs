//! Who one can be.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A person as the provider knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Person {
    /// Stable subject; never reused for another person.
    pub(super) subject: String,
    /// The whole name.
    pub(super) name: String,
    /// The address, if the person has one.
    pub(super) email: Option<String>,
    /// Whether the provider vouches for the address.
    pub(super) email_verified: bool,
}

/// The people whom the page offers: short name, name, address, verified. Addresses are of RFC 2606.
const SAMPLES: [(&str, &str, Option<&str>, bool); 4] = [
    ("ada", "Ada Lovelace", Some("ada.social@example.com"), true),
    (
        "grace",
        "Grace Hopper",
        Some("grace.social@example.com"),
        true,
    ),
    (
        "unverified",
        "Una Verified",
        Some("una.social@example.com"),
        false,
    ),
    ("nomail", "Noor Without Mail", None, false),
];

// === impl Person ===

impl Person {
    /// One of the samples by its short name.
    pub(super) fn sample(short: &str) -> Option<Self> {
        Self::samples()
            .find(|(known, _)| *known == short)
            .map(|(_, person)| person)
    }

    /// Every sample with its short name.
    pub(super) fn samples() -> impl Iterator<Item = (&'static str, Self)> {
        SAMPLES.iter().map(|(short, name, email, verified)| {
            let subject = format!("dev-{short}");
            let email = email.map(str::to_owned);
            (
                *short,
                Self {
                    subject,
                    name: (*name).to_owned(),
                    email,
                    email_verified: *verified,
                },
            )
        })
    }

    /// Someone made up; the same address, or the same name without one, is the same person again.
    pub(super) fn made_up(name: &str, email: &str, email_verified: bool) -> Option<Self> {
        let (name, email) = (name.trim(), email.trim());
        let plain =
            |text: &str, most: usize| text.len() <= most && !text.chars().any(char::is_control);
        if name.is_empty() || !plain(name, 200) || !plain(email, 254) {
            return None;
        }
        let parts = email.split_once('@');
        if !email.is_empty()
            && !parts.is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty())
        {
            return None;
        }
        let known_by = if email.is_empty() {
            format!("name:{name}")
        } else {
            email.to_lowercase()
        };
        let digest = Sha256::digest(known_by.as_bytes());
        Some(Self {
            subject: format!("dev-{}", URL_SAFE_NO_PAD.encode(&digest[..12])),
            name: name.to_owned(),
            email: (!email.is_empty()).then(|| email.to_owned()),
            email_verified: email_verified && !email.is_empty(),
        })
    }

    /// The given name and the family name, as far as one can tell.
    pub(super) fn names(&self) -> (&str, Option<&str>) {
        self.name
            .rsplit_once(' ')
            .map_or((&self.name, None), |(given, family)| (given, Some(family)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_up_person_keeps_its_subject() {
        let one = Person::made_up("Kim", "Kim@example.com", true).expect("person");
        let same = Person::made_up("Kim K", "kim@example.com", false).expect("person");
        assert_eq!(one.subject, same.subject);
        assert!(one.email_verified && !same.email_verified);
        assert!(
            !Person::made_up("Kim", "", true)
                .expect("person")
                .email_verified
        );
        for (name, email) in [("", "a@b"), ("Kim", "kim"), ("Kim", "@b"), ("K\nim", "a@b")] {
            assert_eq!(Person::made_up(name, email, true), None);
        }
    }
}
