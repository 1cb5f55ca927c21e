//! The canonical request target.
//!
//! A path that an upstream interprets differently could bypass the policy of its route. Targets are
//! therefore not normalized: a target that is not in canonical form is rejected, and the same bytes
//! are matched, authorized, logged and forwarded. A route can accept ambiguous paths: those with
//! encoded slashes and semicolons, empty segments, parameters, double encoding and needless escapes. No upstream reads
//! a query as a path: it may have any escapes.

mod readings;

use readings::check_readings;

/// The reason for rejecting a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetFault {
    /// The target does not begin with `/`.
    Form,
    /// A backslash, or an encoded slash or backslash.
    Separator,
    /// A segment `.` or `..`.
    DotSegment,
    /// An empty segment (`//`).
    EmptySegment,
    /// A semicolon, plain or encoded: some servers treat it as the start of path parameters.
    Parameter,
    /// A fragment (`#`).
    Fragment,
    /// A control character, plain or encoded, or a byte that is not allowed in a URI.
    Character,
    /// A `%` without two hexadecimal digits in the path.
    Escape,
    /// An escape that is encoded once more, such as `%252F`.
    NestedEscape,
    /// An encoded letter, digit, `-`, `.`, `_` or `~`, which is equivalent to the plain character.
    NeedlessEscape,
    /// Escapes of the path that do not decode to UTF-8.
    Utf8,
    /// An ambiguous path that may be one of another route or owner.
    OtherRoute,
}

/// A canonical request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    /// The path, including the leading slash.
    pub path: &'a str,
    /// The query without the `?`, if there is one.
    pub query: Option<&'a str>,
    /// What upstreams may read in several ways, if the path is ambiguous.
    pub ambiguity: Option<TargetFault>,
}

impl TargetFault {
    /// Returns a sentence that describes the fault.
    #[must_use]
    pub fn detail(self) -> &'static str {
        match self {
            Self::Form => "The target must be a path that begins with a slash.",
            Self::Separator => "The path must not contain a backslash or an encoded slash.",
            Self::DotSegment => "The path must not contain the segments . and ..",
            Self::EmptySegment => "The path must not contain two slashes in a row.",
            Self::Parameter => "The path must not contain a semicolon.",
            Self::Fragment => "The target must not contain a fragment.",
            Self::Character => {
                "The target must not contain control characters or characters outside of URIs."
            }
            Self::Escape => "Every % of the path must be followed by two hexadecimal digits.",
            Self::NestedEscape => "The path must not encode the escapes of other characters.",
            Self::NeedlessEscape => "The path must not encode letters, digits and - . _ ~",
            Self::Utf8 => "The encoded characters of the path must be UTF-8.",
            Self::OtherRoute => "The path is ambiguous: it may be one of another route or owner.",
        }
    }
}

/// Returns whether a byte may be in a query: those that browsers leave as they are (WHATWG URL, query
/// percent-encode set), and `%`.
fn is_query_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'#' | b'"' | b'<' | b'>')
}

impl<'a> RequestTarget<'a> {
    /// Parses a canonical target in origin form (RFC 9112 section 3.2.1).
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(target: &'a [u8]) -> Result<Self, TargetFault> {
        let parsed = Self::parse_ambiguous(target)?;
        parsed.ambiguity.map_or(Ok(parsed), Err)
    }

    /// Parses a target whose path may be ambiguous. No reading of it has the segments . and ..
    ///
    /// # Errors
    /// The first fault.
    pub fn parse_ambiguous(target: &'a [u8]) -> Result<Self, TargetFault> {
        let target = std::str::from_utf8(target).map_err(|_| TargetFault::Character)?;
        if !target.starts_with('/') {
            return Err(TargetFault::Form);
        }
        if target.contains('#') {
            return Err(TargetFault::Fragment);
        }
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let ambiguity = check_path(path)?;
        if !query.unwrap_or_default().bytes().all(is_query_byte) {
            return Err(TargetFault::Character);
        }
        Ok(Self {
            path,
            query,
            ambiguity,
        })
    }
}

/// Returns what makes a path ambiguous, if anything does.
fn check_path(path: &str) -> Result<Option<TargetFault>, TargetFault> {
    let bytes = path.as_bytes();
    let (mut escaped, mut ambiguity) = (false, None);
    let mut previous = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let fault = match byte {
            b'/' if previous == b'/' => Some(TargetFault::EmptySegment),
            b'/' | b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => None,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@' => {
                None
            }
            // Browsers leave these as they are (WHATWG URL, path percent-encode set).
            b'[' | b']' | b'|' => None,
            b'%' => {
                escaped = true;
                check_path_escape(&bytes[at..])?
            }
            b'\\' => return Err(TargetFault::Separator),
            b';' => Some(TargetFault::Parameter),
            _ => return Err(TargetFault::Character),
        };
        ambiguity = ambiguity.or(fault);
        if previous == b'/' && *byte == b'.' && is_dot_segment(&bytes[at..]) {
            return Err(TargetFault::DotSegment);
        }
        previous = *byte;
    }
    if escaped {
        check_utf8(bytes)?;
    }
    if ambiguity.is_some() {
        check_readings(bytes)?;
    }
    Ok(ambiguity)
}

/// Returns whether the segment that begins here is `.` or `..`.
fn is_dot_segment(rest: &[u8]) -> bool {
    matches!(
        rest,
        [b'.'] | [b'.', b'.'] | [b'.', b'/', ..] | [b'.', b'.', b'/', ..]
    )
}

/// Checks the escape at the beginning of `rest`. Returns what it makes ambiguous.
fn check_path_escape(rest: &[u8]) -> Result<Option<TargetFault>, TargetFault> {
    match decode(rest).ok_or(TargetFault::Escape)? {
        b'/' => Ok(Some(TargetFault::Separator)),
        b'\\' => Err(TargetFault::Separator),
        b';' => Ok(Some(TargetFault::Parameter)),
        0..0x20 | 0x7f => Err(TargetFault::Character),
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => {
            Ok(Some(TargetFault::NeedlessEscape))
        }
        // Some upstreams decode twice: `/%252e` could be read as `/.`, `/50%2520off` as itself only.
        b'%' if decode(&rest[2..]).is_some() => {
            let is_plain = check_path_escape(&rest[2..]) == Ok(None);
            Ok((!is_plain).then_some(TargetFault::NestedEscape))
        }
        _ => Ok(None),
    }
}

/// Decodes the escape at the beginning of `rest`.
fn decode(rest: &[u8]) -> Option<u8> {
    let digit = |at: usize| rest.get(at).and_then(|byte| (*byte as char).to_digit(16));
    u8::try_from(digit(1)? * 16 + digit(2)?).ok()
}

/// Checks that the decoded bytes are UTF-8. Called for targets with escapes only, so that copies
/// are rare.
fn check_utf8(bytes: &[u8]) -> Result<(), TargetFault> {
    std::str::from_utf8(&decoded(bytes))
        .map(|_| ())
        .map_err(|_| TargetFault::Utf8)
}

/// Returns the bytes with each escape decoded once.
fn decoded(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        let escaped = decode(rest).filter(|_| *first == b'%');
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[3..] } else { after };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canonical_target_is_unchanged() {
        let targets = "/ /a /a/ /a/b.c/d~e /a:b@c /%C3%A9 /a%20b /img/[id]|x /... /.a /100%25 /a%25z1 \
            /50%2520off /%25C3%25A9 /%25ff /%2525";
        for target in targets.split(' ') {
            let actual = RequestTarget::parse(target.as_bytes()).map(|target| target.path);
            assert_eq!(actual, Ok(target));
        }
        let queries = "b=//../;%2f[x]{y}| caf%E9 info_hash=%124Vx%9A%ff %00%0a%7f 100% %zz \
            q=^a&r=`b`&s=a\\b&t=' a?b";
        for query in queries.split(' ').chain([""]) {
            let target = format!("/a?{query}");
            let parsed = RequestTarget::parse(target.as_bytes());
            let actual = parsed.map(|it| (it.path, it.query));
            assert_eq!(actual, Ok(("/a", Some(query))));
        }
    }

    #[test]
    fn ambiguous_targets_are_rejected() {
        use TargetFault as F;
        for (fault, targets) in [
            (F::Form, "a||*"),
            (F::Separator, "/a%2fb|/a%2Fb|/a%5cb|/a\\b"),
            (
                F::DotSegment,
                "/.|/..|/a/./b|/a/../b|/a/..|/%2e%2e/a|/.%2e/a|/%252e",
            ),
            (F::EmptySegment, "//a|/a//b|/a//"),
            (F::Parameter, "/a;b|/a%3bb"),
            (F::Fragment, "/a#b|/a?b#c"),
            (F::Character, "/a%00|/a%0a|/a%7f|/a\u{e9}|/a\"|/%2500"),
            (F::Character, "/a?b c|/a?b\t|/a?\u{e9}|/a?\"|/a?<|/a?>"),
            (F::Escape, "/%|/%4|/%zz|/%252525252e"),
            (F::NestedEscape, "/%2561|/%252F|/%255c|/%253b"),
            (F::NeedlessEscape, "/%61"),
            (F::Utf8, "/%ff|/%c3|/%c0%af"),
        ] {
            for target in targets.split('|') {
                let actual = RequestTarget::parse(target.as_bytes());
                assert_eq!(actual, Err(fault), "{target}");
            }
        }
    }

    /// Decodes what a lenient upstream would.
    fn unescape(path: &str) -> String {
        let mut decoded = String::new();
        let mut rest = path;
        while let Some(at) = rest.find('%') {
            decoded.push_str(&rest[..at]);
            let byte = decode(&rest.as_bytes()[at..]);
            decoded.push(byte.map_or('%', char::from));
            rest = &rest[at + byte.map_or(1, |_| 3)..];
        }
        decoded + rest
    }

    proptest! {
        /// An accepted path decodes, resolves and splits to exactly the segments that it shows, also if it
        /// is decoded more than once.
        #[test]
        fn accepted_path_has_one_interpretation(path in "/[a-c./%250-9A-Fef;\\\\]{0,16}") {
            if let Ok(target) = RequestTarget::parse(path.as_bytes()) {
                let resolved = url::Url::parse("http://h").and_then(|base| base.join(target.path)).expect("a URL");
                prop_assert_eq!(resolved.path(), target.path);
                let mut decoded = target.path.to_owned();
                for _ in 0..3 {
                    decoded = unescape(&decoded);
                    prop_assert_eq!(decoded.matches('/').count(), target.path.matches('/').count());
                    prop_assert!(!decoded.contains(['\\', ';', '\0']));
                    prop_assert!(!decoded.split('/').any(|segment| segment == "." || segment == ".."));
                }
            }
        }
    }
}
