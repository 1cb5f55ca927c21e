//! Accounts of the development social provider.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::email::EmailAddress;
use sha2::{Digest, Sha256};

/// A person with an account at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SocialPerson {
    /// Subject, stable and never reused for another person.
    pub(super) subject: String,
    pub(super) name: String,
    /// E-mail address, if the person has one.
    pub(super) email: Option<String>,
    pub(super) email_verified: bool,
}

// === impl SocialPerson ===

impl SocialPerson {
    pub(super) fn sample(short: &str) -> Option<Self> {
        let mut samples = Self::samples().into_iter();
        let found = samples.find(|(known, _)| *known == short);
        found.map(|(_, person)| person)
    }

    /// Returns all sample persons with their short names. The addresses are reserved by RFC 2606.
    pub(super) fn samples() -> [(&'static str, Self); 4] {
        let person = |short, name: &str, email: Option<&str>, email_verified| {
            let person = Self {
                subject: format!("dev-{short}"),
                name: name.to_owned(),
                email: email.map(str::to_owned),
                email_verified,
            };
            (short, person)
        };
        let (ada, grace) = ("ada.social@example.com", "grace.social@example.com");
        let una = "una.social@example.com";
        [
            person("ada", "Ada Lovelace", Some(ada), true),
            person("grace", "Grace Hopper", Some(grace), true),
            person("unverified", "Una Verified", Some(una), false),
            person("nomail", "Noor Without Mail", None, false),
        ]
    }

    /// Creates a person from form input, or returns `None` if the name or address is invalid. The
    /// same address, or the same name without an address, always yields the same subject.
    pub(super) fn from_form(name: &str, email: &str, email_verified: bool) -> Option<Self> {
        let (name, email) = (name.trim(), email.trim());
        let is_valid_name = name.len() <= 200 && !name.chars().any(char::is_control);
        let is_valid_email = email.is_empty() || EmailAddress::parse(email).is_some();
        if name.is_empty() || !is_valid_name || !is_valid_email {
            return None;
        }
        let identity = if email.is_empty() {
            format!("name:{name}")
        } else {
            email.to_lowercase()
        };
        let digest = Sha256::digest(identity.as_bytes());
        Some(Self {
            subject: format!("dev-{}", URL_SAFE_NO_PAD.encode(&digest[..12])),
            name: name.to_owned(),
            email: (!email.is_empty()).then(|| email.to_owned()),
            email_verified: email_verified && !email.is_empty(),
        })
    }

    /// Splits the name into given name and family name at the last space.
    pub(super) fn split_name(&self) -> (&str, Option<&str>) {
        self.name
            .rsplit_once(' ')
            .map_or((&self.name, None), |(given, family)| (given, Some(family)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn person_from_form_has_stable_subject() {
        let one = SocialPerson::from_form("Kim", "Kim@example.com", true).expect("person");
        let same = SocialPerson::from_form("Kim K", "kim@example.com", false).expect("person");
        assert_eq!(one.subject, same.subject);
        assert!(one.email_verified && !same.email_verified);
        assert!(
            !SocialPerson::from_form("Kim", "", true)
                .expect("person")
                .email_verified
        );
        for (name, email) in [
            ("", "a@b"),
            ("Kim", "kim"),
            ("Kim", "@b"),
            ("Kim", "kim@example.123"),
            ("K\nim", "a@b.example"),
        ] {
            assert_eq!(SocialPerson::from_form(name, email, true), None);
        }
    }
}
