//! E-mail addresses of users.

use postern_common::decode::Field;

/// A valid e-mail address: a dot-atom, `@` and a host name with at least two labels (RFC 5321
/// section 4.1.2 without quoted strings and address literals), at most 254 bytes. The host is in
/// lower case; the local part is unchanged, because the pool decides whether its case matters.
///
/// `Debug` prints no address, since addresses are personal data.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EmailAddress(String);

// === impl EmailAddress ===

impl EmailAddress {
    /// Parses an address. Returns `None` if the text is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (local, host) = text.rsplit_once('@')?;
        let is_well_formed = text.len() <= 254 && is_dot_atom(local) && is_host_name(host);
        is_well_formed.then(|| Self(format!("{local}@{}", host.to_ascii_lowercase())))
    }

    /// Reads an address from a field of a request.
    pub(crate) fn read(field: Field<'_>) -> Option<Self> {
        let text = field.string()?;
        Self::parse(text).or_else(|| field.fail("invalid_format", "must be an e-mail address"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the part after the `@`, in lower case.
    pub(crate) fn host(&self) -> &str {
        self.0.rsplit_once('@').map_or("", |(_, host)| host)
    }
}

impl std::fmt::Debug for EmailAddress {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_dot_atom_and_a_host_name() {
        for valid in [
            "ada@example.com",
            "a.b+c@x-y.example.co",
            "o'neil@example.com",
        ] {
            assert!(EmailAddress::parse(valid).is_some(), "{valid}");
        }
        let long = format!("{}@example.com", "a".repeat(65));
        for invalid in [
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
            assert!(EmailAddress::parse(invalid).is_none(), "{invalid}");
        }
        let mixed = EmailAddress::parse("Ada@Example.COM").expect("an address");
        assert_eq!(
            (mixed.as_str(), mixed.host()),
            ("Ada@example.com", "example.com")
        );
        assert_eq!(format!("{mixed:?}"), "[address]");
    }
}
