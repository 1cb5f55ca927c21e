//! Reverse and forward paths (RFC 5321 section 4.1.2) with their parameters.

/// The argument of `MAIL FROM:` or `RCPT TO:`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SmtpPath<'a> {
    /// Mailbox; empty for the null reverse path `<>`.
    pub(super) mailbox: &'a str,
    /// Parameters as sent, `KEY` or `KEY=VALUE`.
    pub(super) parameters: Vec<&'a str>,
}

/// Maximum length of a mailbox in bytes: 64 for the local part, `@`, 255 for the domain (RFC 5321
/// section 4.5.3.1).
const MAX_MAILBOX_BYTES: usize = 320;

/// Parses `<mailbox> [parameters]`. A source route (`@a,@b:`) is ignored, as the RFC requires.
pub(super) fn parse(text: &str) -> Option<SmtpPath<'_>> {
    let inside = text.trim_start_matches(' ').strip_prefix('<')?;
    let end = closing_bracket(inside)?;
    let (mailbox, rest) = (&inside[..end], &inside[end + 1..]);
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let mailbox = match mailbox.strip_prefix('@') {
        Some(route) => route.split_once(':')?.1,
        None => mailbox,
    };
    is_mailbox(mailbox).then(|| SmtpPath {
        mailbox,
        parameters: rest.split_ascii_whitespace().collect(),
    })
}

/// Returns the index of the `>` that ends the path and is not in a quoted local part.
fn closing_bracket(text: &str) -> Option<usize> {
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

/// Returns whether the mailbox is empty, `postmaster`, or a local part and a domain: at most 320
/// bytes without control characters, and without separators except in a quoted local part.
fn is_mailbox(mailbox: &str) -> bool {
    if mailbox.is_empty() || mailbox.eq_ignore_ascii_case("postmaster") {
        return true;
    }
    let has_valid_characters =
        mailbox.len() <= MAX_MAILBOX_BYTES && !mailbox.chars().any(char::is_control);
    let Some((local, domain)) = mailbox.rsplit_once('@') else {
        return false;
    };
    let is_quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let has_separator = |text: &str| text.contains([' ', '<', '>', '@']);
    has_valid_characters
        && !local.is_empty()
        && !domain.is_empty()
        && (is_quoted || !has_separator(local))
        && !has_separator(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox(text: &str) -> Option<&str> {
        parse(text).map(|path| path.mailbox)
    }

    #[test]
    fn paths_are_parsed_per_rfc_5321() {
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
    fn malformed_paths_are_rejected() {
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
