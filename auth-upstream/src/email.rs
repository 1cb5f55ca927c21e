//! What a person types to sign in, parsed at the door into types that cannot be wrong.

use postern_common::Secret;
use postern_common::decode::Field;

/// An e-mail address as RFC 5321 section 4.1.2 has it in practice: one `@`, a dot-atom before it
/// and a host name behind it, at most 254 bytes. The host is in lower case; the local part is as it
/// was typed, because the pool decides whether case matters there.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Email(String);

// === impl Email ===

impl Email {
    /// `None` when the text is not an address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (local, host) = text.rsplit_once('@')?;
        let well_formed = text.len() <= 254 && is_dot_atom(local) && is_host_name(host);
        well_formed.then(|| Self(format!("{local}@{}", host.to_ascii_lowercase())))
    }

    /// Reads a field that holds an address.
    pub(crate) fn read(field: Field<'_>) -> Option<Self> {
        let text = field.string()?;
        Self::parse(text).or_else(|| field.fail("invalid_format", "must be an e-mail address"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The part behind the `@`, in lower case.
    pub(crate) fn host(&self) -> &str {
        self.0.rsplit_once('@').map_or("", |(_, host)| host)
    }
}

/// An address is personal data: it does not stand in a log, not even by accident.
impl std::fmt::Debug for Email {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[address]")
    }
}

fn is_dot_atom(local: &str) -> bool {
    let is_atom = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    (1..=64).contains(&local.len())
        && local
            .split('.')
            .all(|atom| !atom.is_empty() && atom.bytes().all(is_atom))
}

fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.contains('.') && host.split('.').all(is_label)
}

/// Reads a password of 1 to 256 bytes. The pool's policy decides whether it is strong enough; the
/// bound keeps a client from buying hashing time with long ones (Cognito's own limit is 256).
pub(crate) fn password(field: Field<'_>) -> Option<Secret> {
    let text = field.string()?;
    if (1..=256).contains(&text.len()) {
        return Some(Secret::from(text));
    }
    field.fail("invalid_length", "must be 1 to 256 bytes long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_at_sign_between_a_dot_atom_and_a_host() {
        for good in [
            "ada@example.com",
            "a.b+c@x-y.example.co",
            "o'neil@example.com",
        ] {
            assert!(Email::parse(good).is_some(), "{good}");
        }
        let long = format!("{}@example.com", "a".repeat(65));
        for bad in [
            "",
            "@",
            "ada",
            "ada@",
            "@example.com",
            "a b@example.com",
            "a..b@example.com",
            "ada@host",
            "ada@-x.com",
            "ada@x..com",
            "ada@example.com\n",
            "\"a\"@example.com",
            "ä@example.com",
            &long,
        ] {
            assert!(Email::parse(bad).is_none(), "{bad}");
        }
        let mixed = Email::parse("Ada@Example.COM").expect("an address");
        assert_eq!(
            (mixed.as_str(), mixed.host()),
            ("Ada@example.com", "example.com")
        );
        assert_eq!(format!("{mixed:?}"), "[address]");
    }
}
