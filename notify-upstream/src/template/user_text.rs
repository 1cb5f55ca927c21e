//! Text that users wrote: short, and never a link in what a mail program or telephone shows.

use serde_json::{Map, Value};

use super::Found;

/// Longest text of a variable that a user wrote.
pub const MAX_USER_TEXT_CHARS: usize = 100;

/// Who gave the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// A user: every variable is its own text.
    User,
    /// A service: the variables that the template marks are some user's text.
    Service,
}

/// What is wrong with a variable of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTextMistake {
    /// Its name.
    pub name: String,
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub detail: String,
}

// === impl Found ===

impl Found<'_> {
    /// What is wrong with the variables that users wrote: each is one value, and a text is short.
    #[must_use]
    pub fn user_text_mistakes(&self, variables: &Map<String, Value>, author: Author) -> Vec<UserTextMistake> {
        let of_users = variables.iter().filter(|(name, _)| self.is_user_text(name, author));
        of_users.filter_map(|(name, value)| mistake(name, value)).collect()
    }

    pub(super) fn is_user_text(&self, name: &str, author: Author) -> bool {
        author == Author::User || self.settings.user_variables.contains(name)
    }
}

fn mistake(name: &str, value: &Value) -> Option<UserTextMistake> {
    let (code, detail) = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return None,
        Value::String(text) if text.chars().count() <= MAX_USER_TEXT_CHARS => return None,
        Value::String(_) => {
            ("too_long", format!("a user's text must be at most {MAX_USER_TEXT_CHARS} characters"))
        }
        Value::Array(_) | Value::Object(_) => {
            ("invalid_type", "a user's variable must be a string, a number or a boolean".to_owned())
        }
    };
    Some(UserTextMistake { name: name.to_owned(), code, detail })
}

/// The text in one line, with a space wherever a mail program or telephone would see a link: after the `.` of a domain,
/// the `:` of a scheme, and between slashes. `{{ name | url }}` refuses what is left of a URL.
pub(super) fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len() + 8);
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        plain.push(if c.is_control() { ' ' } else { c });
        if rest.peek().is_some_and(|next| joins(before, c, *next)) {
            plain.push(' ');
        }
        before = Some(c);
    }
    plain
}

fn joins(before: Option<char>, c: char, next: char) -> bool {
    match c {
        // The last three are full stops to a browser, too (UTS #46).
        '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}' => next.is_alphabetic(),
        // Not of a time such as 12:30.
        ':' => {
            let is_time = next.is_ascii_digit() && before.is_some_and(|before| before.is_ascii_digit());
            !next.is_whitespace() && !is_time
        }
        '/' | '\\' => matches!(next, '/' | '\\'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_looks_like_a_link_is_left() {
        for (text, plain) in [
            ("Ada Lovelace", "Ada Lovelace"),
            ("Dr. O'Neill-Smith, 12:30, 3.50", "Dr. O'Neill-Smith, 12:30, 3.50"),
            ("St.Petersburg", "St. Petersburg"),
            ("https://evil.example/x", "https: / /evil. example/x"),
            ("HTTP:\\\\evil.example", "HTTP: \\ \\evil. example"),
            ("www.evil.example", "www. evil. example"),
            ("evil\u{3002}example", "evil\u{3002} example"),
            ("mailto:a@b.example", "mailto: a@b. example"),
            ("tel:+4917012345", "tel: +4917012345"),
            ("a\r\nb", "a  b"),
        ] {
            assert_eq!(without_links(text), plain);
        }
    }
}
