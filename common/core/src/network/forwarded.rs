//! The header field `Forwarded` (RFC 7239), in which proxies report the client.

use std::fmt::Write;
use std::net::IpAddr;

/// The parameters of one proxy that the gateway uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ForwardedElement {
    /// The address in `for`; `None` if it is absent, `unknown` or obfuscated (section 6.3).
    pub(super) client: Option<IpAddr>,
    /// Whether `proto` is `https`.
    pub(super) is_https: bool,
}

/// Parses a field value. Returns `None` if any of it is malformed: which element a proxy has
/// appended is then ambiguous.
pub(super) fn parse(value: &[u8]) -> Option<Vec<ForwardedElement>> {
    let mut rest = std::str::from_utf8(value).ok()?;
    let mut elements = Vec::new();
    loop {
        let (element, after) = parse_element(rest)?;
        elements.push(element);
        match after.strip_prefix(',') {
            Some(after) => rest = after,
            None => return after.is_empty().then_some(elements),
        }
    }
}

/// Maximum parameters of an element. Four are registered (RFC 7239 section 5), each may occur once,
/// and every name is compared with those before it.
const MAX_PARAMETERS: usize = 16;

/// Parses `name=value;name=value` up to a comma or the end, with white space around it.
fn parse_element(text: &str) -> Option<(ForwardedElement, &str)> {
    let mut element = ForwardedElement::default();
    let mut seen: Vec<String> = Vec::new();
    let mut rest = text.trim_start_matches(OWS);
    loop {
        let (name, after) = rest.split_at(token_length(rest)?);
        let (value, after) = parse_value(after.strip_prefix('=')?)?;
        let name = name.to_ascii_lowercase();
        if seen.contains(&name) || seen.len() == MAX_PARAMETERS {
            return None;
        }
        match name.as_str() {
            "for" => element.client = parse_node(&value)?,
            "proto" => element.is_https = value.eq_ignore_ascii_case("https"),
            _ => {}
        }
        seen.push(name);
        match after.strip_prefix(';') {
            Some(after) => rest = after,
            None => return Some((element, after.trim_start_matches(OWS))),
        }
    }
}

/// Optional white space (RFC 9110 section 5.6.3).
const OWS: [char; 2] = [' ', '\t'];

/// Returns the length of the token at the beginning (RFC 9110 section 5.6.2); `None` without one.
fn token_length(text: &str) -> Option<usize> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let length = text.bytes().take_while(|byte| is_token(*byte)).count();
    (length > 0).then_some(length)
}

/// Parses a token or a quoted string (RFC 9110 section 5.6.4).
fn parse_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, rest) = text.split_at(token_length(text)?);
        return Some((token.to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            character if character.is_control() && character != '\t' => return None,
            character => value.push(character),
        }
    }
    None
}

/// Parses a node (section 6): an address with an optional port, `unknown`, or an obfuscated
/// identifier. Returns `None` if it is none of them.
pub(super) fn parse_node(text: &str) -> Option<Option<IpAddr>> {
    if text.eq_ignore_ascii_case("unknown") || is_obfuscated(text) {
        return Some(None);
    }
    let (host, port) = match text.rfind(']') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = match port.strip_prefix(':') {
        Some(port) => is_obfuscated(port) || port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    let bracketed = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = match bracketed {
        Some(host) => host.parse().map(IpAddr::V6).ok(),
        None => host.parse().map(IpAddr::V4).ok(),
    };
    match host.to_ascii_lowercase().as_str() {
        "unknown" if is_port => Some(None),
        _ if is_obfuscated(host) && is_port => Some(None),
        _ => address.filter(|_| is_port).map(Some),
    }
}

/// Returns whether the text is an obfuscated identifier: `_` and letters, digits, `.`, `_`, `-`.
fn is_obfuscated(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() > 1 && text.starts_with('_') && text.bytes().all(allowed)
}

/// Appends an element: the address of the client with `unknown` if there is none, the host and the
/// scheme. An IPv6 address and the host are quoted (section 4).
pub fn write_element(
    out: &mut impl Write,
    client: Option<IpAddr>,
    host: Option<&str>,
    is_https: bool,
) -> std::fmt::Result {
    match client.map(|client| client.to_canonical()) {
        None => out.write_str("for=unknown")?,
        Some(IpAddr::V4(client)) => write!(out, "for={client}")?,
        Some(IpAddr::V6(client)) => write!(out, "for=\"[{client}]\"")?,
    }
    if let Some(host) = host {
        out.write_str(";host=\"")?;
        for character in host.chars() {
            if matches!(character, '"' | '\\') {
                out.write_char('\\')?;
            }
            out.write_char(character)?;
        }
        out.write_char('"')?;
    }
    out.write_str(if is_https {
        ";proto=https"
    } else {
        ";proto=http"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(value: &str) -> Option<Vec<Option<String>>> {
        let elements = parse(value.as_bytes())?;
        let shown = |it: &ForwardedElement| it.client.map(|client| client.to_string());
        Some(elements.iter().map(shown).collect())
    }

    #[test]
    fn elements_are_parsed() {
        for (value, expected) in [
            ("for=192.0.2.1", &[Some("192.0.2.1")][..]),
            ("For=\"192.0.2.1:80\";proto=http", &[Some("192.0.2.1")]),
            ("for=\"[2001:db8::1]\"", &[Some("2001:db8::1")]),
            ("for=\"[2001:db8::1]:8080\"", &[Some("2001:db8::1")]),
            ("for=\"[2001:db8::1]:_x\"", &[Some("2001:db8::1")]),
            ("for=\"192.0.2\\.1\"", &[Some("192.0.2.1")]),
            ("for=unknown", &[None]),
            ("for=_hidden", &[None]),
            ("for=\"unknown:80\"", &[None]),
            ("proto=https", &[None]),
            (
                "for=192.0.2.1, for=198.51.100.1;by=_a , for=unknown",
                &[Some("192.0.2.1"), Some("198.51.100.1"), None],
            ),
            ("by=\"a,b;for=1.1.1.1\";for=192.0.2.1", &[Some("192.0.2.1")]),
        ] {
            let expected = expected.iter().map(|it| it.map(str::to_owned)).collect();
            assert_eq!(clients(value), Some(expected), "{value}");
        }
    }

    #[test]
    fn malformed_value_is_rejected_as_a_whole() {
        for value in [
            "",
            ",",
            "for=192.0.2.1,",
            "for=192.0.2.1;",
            "for",
            "for=",
            "for =192.0.2.1",
            "for= 192.0.2.1",
            "for=2001:db8::1",
            "for=[2001:db8::1]",
            "for=\"2001:db8::1\"",
            "for=\"[192.0.2.1]\"",
            "for=\"[2001:db8::1\"",
            "for=\"192.0.2.1:99999\"",
            "for=\"192.0.2.1",
            "for=\"192.0.2.1\\",
            "for=192.0.2.1;for=192.0.2.2",
            "for=192.0.2.1;FOR=192.0.2.2",
            "for=host.example",
            "for=\"\"",
            "for=_",
            "for=\"x\", for=192.0.2.1",
            "for=\"unterminated, for=192.0.2.1",
            "for=192.0.2.1 for=192.0.2.2",
            "for=192.0.2.1;a=1;b=1;c=1;d=1;e=1;f=1;g=1;h=1;i=1;j=1;k=1;l=1;m=1;n=1;o=1;p=1",
        ] {
            assert_eq!(clients(value), None, "{value}");
        }
        assert_eq!(parse(b"for=\"\xff\""), None);
    }

    #[test]
    fn scheme_is_parsed() {
        let is_https = |value: &str| parse(value.as_bytes()).map(|all| all[0].is_https);
        assert_eq!(is_https("for=192.0.2.1;proto=HTTPS"), Some(true));
        assert_eq!(is_https("for=192.0.2.1;proto=\"https\""), Some(true));
        assert_eq!(is_https("for=192.0.2.1;proto=http"), Some(false));
        assert_eq!(is_https("for=192.0.2.1"), Some(false));
    }

    #[test]
    fn written_element_is_quoted_as_it_must_be() {
        let write = |client: Option<&str>, host, is_https| {
            let client = client.map(|client| client.parse().expect("an address"));
            let mut text = String::new();
            write_element(&mut text, client, host, is_https).expect("memory only");
            text
        };
        for (client, host, is_https, expected) in [
            (
                Some("192.0.2.1"),
                Some("a.example:8500"),
                true,
                "for=192.0.2.1;host=\"a.example:8500\";proto=https",
            ),
            (
                Some("2001:db8::1"),
                Some("[::1]:80"),
                false,
                "for=\"[2001:db8::1]\";host=\"[::1]:80\";proto=http",
            ),
            (
                Some("::ffff:192.0.2.1"),
                None,
                false,
                "for=192.0.2.1;proto=http",
            ),
            (
                None,
                Some("a\"\\b"),
                true,
                "for=unknown;host=\"a\\\"\\\\b\";proto=https",
            ),
        ] {
            let text = write(client, host, is_https);
            assert_eq!(text, expected);
            let expected = client.map(|client| client.parse::<IpAddr>().expect("an address"));
            let parsed = parse(text.as_bytes()).expect("well-formed");
            assert_eq!(parsed[0].client, expected.map(|ip| ip.to_canonical()));
        }
    }
}
