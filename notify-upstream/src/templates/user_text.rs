//! Text that users wrote: short, and never a link in what a mail program or telephone shows.

use serde_json::{Map, Value};

use super::Found;

/// Longest text of a variable that a user wrote.
pub(crate) const MAX_USER_TEXT_CHARS: usize = 100;

/// Who gave the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// A user: every variable is its own text.
    User,
    /// A service: the variables that the template marks are some user's text.
    Service,
}

/// What is wrong with a variable of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserTextMistake {
    /// Its name.
    pub(crate) name: String,
    /// For programs.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) detail: String,
}

// === impl Found ===

impl Found<'_> {
    /// What is wrong with the variables that users wrote: each is one value, and a text is short.
    #[must_use]
    pub(crate) fn user_text_mistakes(
        &self,
        variables: &Map<String, Value>,
        author: Author,
    ) -> Vec<UserTextMistake> {
        let of_users = variables
            .iter()
            .filter(|(name, _)| self.is_user_text(name, author));
        of_users
            .filter_map(|(name, value)| mistake(name, value))
            .collect()
    }

    pub(super) fn is_user_text(&self, name: &str, author: Author) -> bool {
        author == Author::User || self.settings.user_variables.contains(name)
    }
}

fn mistake(name: &str, value: &Value) -> Option<UserTextMistake> {
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
    Some(UserTextMistake {
        name: name.to_owned(),
        code,
        detail,
    })
}

/// The text in one line, without invisible characters, and with a space wherever a mail program or
/// telephone would see a link: after the `.` of a domain or an IPv4 address, the `:` of a scheme,
/// and between slashes. `{{ name | url }}` refuses what is left of a URL.
pub(super) fn without_links(text: &str) -> String {
    let visible = text.chars().filter(|c| !is_invisible(*c));
    let chars: Vec<char> = visible
        .map(|c| if is_line_break(c) { ' ' } else { c })
        .collect();
    let mut plain = String::with_capacity(text.len() + 8);
    for (at, c) in chars.iter().enumerate() {
        plain.push(*c);
        let before = at.checked_sub(1).map(|before| chars[before]);
        let is_joint = chars
            .get(at + 1)
            .is_some_and(|next| joins(before, *c, *next));
        if is_joint || (is_dot(*c) && is_in_ipv4(&chars, at)) {
            plain.push(' ');
        }
    }
    plain
}

/// Whether a character has no shape of its own: soft hyphen, joiners, directional marks, variation
/// selectors, tags. Between a dot and a domain it hides the link from a filter, and not from every
/// mail program.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

fn is_line_break(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The last three are full stops to a browser, too (UTS #46).
fn is_dot(c: char) -> bool {
    matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}')
}

/// Whether a dot is one of three or more between numbers. A date or a version such as 20.11.2026
/// has two.
fn is_in_ipv4(chars: &[char], dot: usize) -> bool {
    let is_part = |c: &&char| c.is_numeric() || is_dot(**c);
    let begin = dot - chars[..dot].iter().rev().take_while(is_part).count();
    let end = dot + chars[dot..].iter().take_while(is_part).count();
    let numbers = chars[begin..end].split(|c| is_dot(*c));
    numbers.filter(|number| !number.is_empty()).count() > 3
        && chars.get(dot + 1).is_some_and(|c| c.is_numeric())
}

fn joins(before: Option<char>, c: char, next: char) -> bool {
    match c {
        // A label may begin with a digit: `www.4chan`.
        _ if is_dot(c) => {
            next.is_alphabetic() || (next.is_numeric() && before.is_some_and(char::is_alphabetic))
        }
        // Not of a time such as 12:30.
        ':' => {
            let is_time =
                next.is_ascii_digit() && before.is_some_and(|before| before.is_ascii_digit());
            !next.is_whitespace() && !is_time
        }
        '/' | '\\' => matches!(next, '/' | '\\'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::provider::injection::naughty;

    #[test]
    fn nothing_that_looks_like_a_link_is_left() {
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
        ] {
            assert_eq!(without_links(text), plain);
        }
    }

    #[test]
    fn ipv4_address_is_broken_like_a_domain() {
        for (text, plain) in [
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
    fn invisible_character_hides_no_link() {
        let invisible = "\u{ad}\u{34f}\u{61c}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{202e}\u{2060}\u{2066}\
            \u{206f}\u{fe00}\u{fe0f}\u{feff}\u{e0000}\u{e0041}\u{e0fff}";
        for c in invisible.chars() {
            for hidden in [
                format!("evil{c}.example"),
                format!("evil.{c}example"),
                format!("evil.{c}{c}example"),
                format!("ev{c}il.ex{c}ample"),
            ] {
                assert_eq!(without_links(&hidden), "evil. example", "{hidden:?}");
            }
            assert_eq!(
                without_links(&format!("https:{c}/{c}/x")),
                "https: / /x",
                "{c:?}"
            );
        }
    }

    #[test]
    fn naughty_string_keeps_no_joint_of_a_link() {
        for text in naughty() {
            let plain = without_links(&text);
            let chars: Vec<char> = plain.chars().collect();
            for pair in chars.windows(2) {
                let [c, next] = *pair else {
                    unreachable!("windows of two")
                };
                assert!(!(is_dot(c) && next.is_alphabetic()), "{text:?}");
                assert!(
                    !(matches!(c, '/' | '\\') && matches!(next, '/' | '\\')),
                    "{text:?}"
                );
            }
            assert!(
                !chars.iter().any(|c| is_invisible(*c) || c.is_control()),
                "{text:?}"
            );
            assert_eq!(without_links(&plain), plain, "nothing is left to break");
        }
    }
}
