//! Reverse and forward paths (RFC 5321 section 4.1.2) with their parameters.

/// What stands after `MAIL FROM:` or `RCPT TO:`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Path<'a> {
    /// The mailbox; empty for the null reverse path `<>`.
    pub(super) mailbox: &'a str,
    /// `KEY` or `KEY=VALUE`, as sent.
    pub(super) parameters: Vec<&'a str>,
}

/// Longest mailbox: 64 for the local part, `@`, 255 for the domain (RFC 5321 section 4.5.3.1).
const MAX_MAILBOX: usize = 320;

/// Reads `<mailbox> [parameters]`. A source route (`@a,@b:`) is dropped, as the RFC asks.
pub(super) fn parse(text: &str) -> Option<Path<'_>> {
    let inside = text.trim_start_matches(' ').strip_prefix('<')?;
    let end = closing(inside)?;
    let (mailbox, rest) = (&inside[..end], &inside[end + 1..]);
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let mailbox = match mailbox.strip_prefix('@') {
        Some(route) => route.split_once(':')?.1,
        None => mailbox,
    };
    is_mailbox(mailbox).then(|| Path {
        mailbox,
        parameters: rest.split_ascii_whitespace().collect(),
    })
}

/// Where the `>` stands that is not inside a quoted local part.
fn closing(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'>' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Empty, `postmaster`, or something on both sides of the last `@`.
fn is_mailbox(mailbox: &str) -> bool {
    if mailbox.is_empty() || mailbox.eq_ignore_ascii_case("postmaster") {
        return true;
    }
    let plain = mailbox.len() <= MAX_MAILBOX && !mailbox.chars().any(char::is_control);
    let Some((local, domain)) = mailbox.rsplit_once('@') else {
        return false;
    };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let spaced = |text: &str| text.contains([' ', '<', '>', '@']);
    plain
        && !local.is_empty()
        && !domain.is_empty()
        && (quoted || !spaced(local))
        && !spaced(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox(text: &str) -> Option<&str> {
        parse(text).map(|path| path.mailbox)
    }

    #[test]
    fn paths_are_read_as_rfc_5321_writes_them() {
        assert_eq!(mailbox("<ada@example.com>"), Some("ada@example.com"));
        assert_eq!(mailbox(" <>"), Some(""));
        assert_eq!(mailbox("<Postmaster>"), Some("Postmaster"));
        assert_eq!(
            mailbox("<@a.test,@b.test:ada@example.com>"),
            Some("ada@example.com")
        );
        assert_eq!(
            mailbox("<\"a>b@c\"@example.com>"),
            Some("\"a>b@c\"@example.com")
        );
        let path = parse("<a@b> SIZE=10 BODY=8BITMIME").expect("path");
        assert_eq!(path.parameters, ["SIZE=10", "BODY=8BITMIME"]);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "ada@example.com",
            "<ada@example.com",
            "<ada>",
            "<@b>",
            "<a@>",
            "<a b@c>",
            "<a@b>x",
            "",
        ] {
            assert_eq!(mailbox(text), None, "{text}");
        }
    }
}
