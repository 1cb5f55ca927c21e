//! E-mail addresses.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::decode::Field;

/// Maximum bytes of an address (RFC 5321 section 4.5.3.1.3, without the angle brackets).
pub const MAX_ADDRESS_BYTES: usize = 254;

/// Maximum bytes before the `@` (RFC 5321 section 4.5.3.1.1).
pub const MAX_LOCAL_PART_BYTES: usize = 64;

/// An e-mail address that every mail server accepts: a dot-atom (RFC 5322 section 3.2.3), `@` and
/// an ASCII host name of at least two labels, the last of which is not a number. Quoted strings,
/// address literals, comments and control characters are rejected, which prevents header injection.
/// Another host name is converted to its A-labels (RFC 5891, UTS 46); a local part outside ASCII is
/// rejected, because it needs servers with SMTPUTF8 (RFC 6531).
///
/// The host is in lower case; the local part is unchanged, because its server decides whether its
/// case matters. `Debug` prints no address, since addresses are personal data.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EmailAddress(String);

impl EmailAddress {
    /// Parses an address. Returns `None` if the text is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (local, host) = text.rsplit_once('@')?;
        let host = match host.is_ascii() {
            true => host.to_ascii_lowercase(),
            false => url::Host::parse(host).ok()?.to_string(),
        };
        let length = local.len() + 1 + host.len();
        let is_valid = length <= MAX_ADDRESS_BYTES && is_dot_atom(local) && is_host_name(&host);
        is_valid.then(|| Self(format!("{local}@{host}")))
    }

    /// Reads an address from a field.
    pub fn read(field: Field<'_>) -> Option<Self> {
        let text = field.string()?;
        Self::parse(text).or_else(|| field.fail("invalid_format", "must be an e-mail address"))
    }

    /// Returns the whole address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the local part and the host.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        self.0.rsplit_once('@').unwrap_or((&self.0, ""))
    }

    /// Returns the part after the `@`, in lower case.
    #[must_use]
    pub fn host(&self) -> &str {
        self.parts().1
    }
}

impl fmt::Debug for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[EmailAddress]")
    }
}

fn is_dot_atom(local: &str) -> bool {
    let is_atext =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    let is_atom = |atom: &str| !atom.is_empty() && atom.bytes().all(is_atext);
    local.len() <= MAX_LOCAL_PART_BYTES && local.split('.').all(is_atom)
}

fn is_host_name(host: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_allowed)
            && label.trim_matches('-') == label
    };
    // A host whose last label is a number is read as an IPv4 address (WHATWG URL, section 3.5).
    let is_top_level = |label: &str| !label.bytes().all(|byte| byte.is_ascii_digit());
    let last = host.rsplit_once('.').map(|(_, label)| label);
    host.split('.').all(is_label) && last.is_some_and(is_top_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_dot_atom_and_a_host_name() {
        let valid = "ada@example.com a.b+c@x-y.example.co o'neil@example.com ada@123.example ada@example.x1";
        for valid in valid.split(' ') {
            assert!(EmailAddress::parse(valid).is_some(), "{valid}");
        }
        let long_local = format!("{}@example.com", "a".repeat(65));
        let long_label = format!("ada@{}.com", "a".repeat(64));
        let long_host = format!("ada@{}com", "a.".repeat(125));
        let of_ascii = "|@|ada|ada@|@example.com|a b@example.com|a..b@example.com|.a@example.com|\
            a.@example.com|a,b@example.com|ada@host|ada@localhost|ada@example.123|ada@127.0.0.1|\
            ada@[::1]|ada@-x.com|ada@x-.com|ada@x..com|ada@example.com.|ada@example.com>|\
            <ada@example.com>|\"a\"@example.com";
        for invalid in [
            "a@b@c\n",
            "ada@example.com\n",
            "ada@example.com\0",
            "ada@example.com\r\nRCPT TO:<b@example.com>",
            "a@\u{ff11}\u{ff12}\u{ff17}.0.0.1",
            &long_local,
            &long_label,
            &long_host,
        ]
        .into_iter()
        .chain(of_ascii.split('|'))
        .chain(["ä@example.com", "a@ü", "a@ü..com", "a@ü com"])
        .chain(["a@ü.com:25", "a@ü/.com"])
        {
            assert!(EmailAddress::parse(invalid).is_none(), "{invalid:?}");
        }
        for (entered, stored) in [
            ("a@ü.com", "a@xn--tda.com"),
            ("a@BÜCHER.example", "a@xn--bcher-kva.example"),
            ("a@bu\u{308}cher.example", "a@xn--bcher-kva.example"),
            ("a@例え。jp", "a@xn--r8jz45g.jp"),
        ] {
            let address = EmailAddress::parse(entered);
            assert_eq!(address.expect(entered).as_str(), stored);
        }
        let mixed = EmailAddress::parse("Ada@Example.COM").expect("an address");
        let parts = (mixed.as_str(), mixed.host());
        assert_eq!(parts, ("Ada@example.com", "example.com"));
        assert_eq!(format!("{mixed:?}"), "[EmailAddress]");
    }
}
