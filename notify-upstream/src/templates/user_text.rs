//! Restrictions on text written by users: limited in length, and without anything that a mail
//! client or telephone displays as a link.

use serde_json::{Map, Value};

use super::FoundTemplate;

/// Maximum length of a variable written by a user, in characters.
pub(crate) const MAX_USER_TEXT_CHARS: usize = 100;

/// The author of a notification's variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableAuthor {
    /// A user, who wrote all variables.
    User,
    /// A service. The variables marked in the template were written by a user.
    Service,
}

/// A violation of the restrictions on user text: the variable, a code, and a description.
pub(crate) type TextMistake = (String, &'static str, String);

impl FoundTemplate<'_> {
    /// Returns the violations among the variables written by users: each must be a scalar, and
    /// strings are limited in length.
    pub(crate) fn user_text_mistakes(
        &self,
        variables: &Map<String, Value>,
        author: VariableAuthor,
    ) -> Vec<TextMistake> {
        let variables = variables.iter();
        let from_users = variables.filter(|(name, _)| self.is_user_text(name, author));
        let mistakes = from_users.filter_map(|(name, value)| mistake(name, value));
        mistakes.collect()
    }

    pub(super) fn is_user_text(&self, name: &str, author: VariableAuthor) -> bool {
        author == VariableAuthor::User || self.settings.user_variables.contains(name)
    }
}

fn mistake(name: &str, value: &Value) -> Option<TextMistake> {
    let (code, detail) = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return None,
        Value::String(text) if text.chars().count() <= MAX_USER_TEXT_CHARS => return None,
        Value::String(_) => (
            "too_long",
            format!("a user's text must be at most {MAX_USER_TEXT_CHARS} characters"),
        ),
        Value::Array(_) | Value::Object(_) => (
            "invalid_type",
            "a user's variable must be a string, a number or a boolean".to_owned(),
        ),
    };
    Some((name.to_owned(), code, detail))
}

/// Returns the text on one line, without invisible characters, and with a space wherever a mail
/// client or telephone would recognize a link: after the `.` of a domain or an IPv4 address, the
/// `:` of a scheme, between slashes, and in the `=?` that begins an encoded word. `{{ name | url }}` rejects the result of a changed URL.
pub(super) fn without_links(text: &str) -> String {
    let visible = text.chars().filter(|c| !is_invisible(*c));
    let chars: Vec<char> = visible
        .map(|c| if is_line_break(c) { ' ' } else { c })
        .collect();
    let mut plain = String::with_capacity(text.len() + 8);
    for (at, c) in chars.iter().enumerate() {
        plain.push(*c);
        let before = at.checked_sub(1).map(|before| chars[before]);
        let next = chars.get(at + 1);
        let is_joint = next.is_some_and(|next| is_link_joint(before, *c, *next));
        if is_joint || (is_dot(*c) && is_in_ipv4(&chars, at)) {
            plain.push(' ');
        }
    }
    plain
}

/// Returns whether a character is invisible (`Default_Ignorable_Code_Point` of Unicode without its
/// letters): soft hyphen, joiners, directional marks, variation selectors, tags. Between a dot and a domain it would hide the link from this filter, but not
/// from every mail client.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{17b4}' | '\u{17b5}' | '\u{feff}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

fn is_line_break(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The last three are treated as full stops by browsers (UTS #46).
fn is_dot(c: char) -> bool {
    matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}')
}

/// Returns whether a dot is one of at least three between numbers. Dates and versions such as
/// 20.11.2026 have two.
fn is_in_ipv4(chars: &[char], dot: usize) -> bool {
    let is_part = |c: &&char| c.is_numeric() || is_dot(**c);
    let begin = dot - chars[..dot].iter().rev().take_while(is_part).count();
    let end = dot + chars[dot..].iter().take_while(is_part).count();
    let numbers = chars[begin..end].split(|c| is_dot(*c));
    numbers.filter(|number| !number.is_empty()).count() > 3
        && chars.get(dot + 1).is_some_and(|c| c.is_numeric())
}

fn is_link_joint(before: Option<char>, c: char, next: char) -> bool {
    match c {
        // A label may start with a digit: `www.4chan`.
        _ if is_dot(c) => {
            next.is_alphabetic() || (next.is_numeric() && before.is_some_and(char::is_alphabetic))
        }
        // Times such as 12:30 are excluded.
        ':' => {
            let is_time =
                next.is_ascii_digit() && before.is_some_and(|before| before.is_ascii_digit());
            !next.is_whitespace() && !is_time
        }
        '/' | '\\' => matches!(next, '/' | '\\'),
        // The beginning of an encoded word (RFC 2047).
        '=' => next == '?',
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::injection::naughty;

    #[test]
    fn links_and_ipv4_addresses_in_user_text_are_broken() {
        for (text, plain) in [
            ("Ada Lovelace", "Ada Lovelace"),
            (
                "Dr. O'Neill-Smith, 12:30, 3.50",
                "Dr. O'Neill-Smith, 12:30, 3.50",
            ),
            ("St.Petersburg", "St. Petersburg"),
            ("https://evil.example/x", "https: / /evil. example/x"),
            ("HTTP:\\\\evil.example", "HTTP: \\ \\evil. example"),
            ("www.evil.example", "www. evil. example"),
            ("evil\u{3002}example", "evil\u{3002} example"),
            ("mailto:a@b.example", "mailto: a@b. example"),
            ("tel:+4917012345", "tel: +4917012345"),
            ("a\r\nb", "a  b"),
            ("a\u{2028}b", "a b"),
            ("www.4evil", "www. 4evil"),
            ("=?utf-8?q?pay_now=3A?=", "= ?utf-8?q?pay_now=3A?="),
            ("=\u{200b}?utf-8?b?eA==?=", "= ?utf-8?b?eA== ?="),
            ("192.0.2.1", "192. 0. 2. 1"),
            (
                "http://192.0.2.1:8080/login",
                "http: / /192. 0. 2. 1:8080/login",
            ),
            ("call 192.0.2.1, now", "call 192. 0. 2. 1, now"),
            ("x192.0.2.1.", "x192. 0. 2. 1."),
            ("192.0.2.1.5", "192. 0. 2. 1. 5"),
            (
                "192\u{3002}0\u{ff0e}2\u{ff61}1",
                "192\u{3002} 0\u{ff0e} 2\u{ff61} 1",
            ),
            ("\u{ff11}\u{ff19}2.0.2.1", "\u{ff11}\u{ff19}2. 0. 2. 1"),
            ("192.\u{200b}0.2.1", "192. 0. 2. 1"),
            (
                "20.11.2026, 1.2.3, 3.50, 12:30",
                "20.11.2026, 1.2.3, 3.50, 12:30",
            ),
            ("1...2...3...4...", "1... 2... 3... 4..."),
        ] {
            assert_eq!(without_links(text), plain);
        }
    }

    #[test]
    fn invisible_characters_do_not_hide_links() {
        let invisible = "\u{ad}\u{34f}\u{61c}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{202e}\u{2060}\u{2066}\
            \u{206f}\u{fe00}\u{fe0f}\u{feff}\u{17b4}\u{180b}\u{180f}\u{fff9}\u{1bca0}\u{1d173}\u{e0000}\u{e0041}\u{e0fff}";
        for c in invisible.chars() {
            for hidden in [
                format!("evil{c}.example"),
                format!("evil.{c}example"),
                format!("evil.{c}{c}example"),
                format!("ev{c}il.ex{c}ample"),
            ] {
                assert_eq!(without_links(&hidden), "evil. example", "{hidden:?}");
            }
            let plain = without_links(&format!("https:{c}/{c}/x"));
            assert_eq!(plain, "https: / /x", "{c:?}");
        }
    }

    #[test]
    fn adversarial_strings_contain_no_link_afterwards() {
        for text in naughty() {
            let plain = without_links(&text);
            let chars: Vec<char> = plain.chars().collect();
            for pair in chars.windows(2) {
                let is_domain = is_dot(pair[0]) && pair[1].is_alphabetic();
                let is_authority = pair.iter().all(|c| matches!(c, '/' | '\\'));
                assert!(!is_domain && !is_authority, "{text:?}");
            }
            let hides = chars.iter().any(|c| is_invisible(*c) || c.is_control());
            assert!(!hides, "{text:?}");
            assert_eq!(without_links(&plain), plain, "the conversion is idempotent");
        }
    }
}
