//! Removal of personal data from the responses of providers before they are logged.

/// Maximum length of a logged response, in characters.
const MAX_LOGGED_CHARS: usize = 200;
/// Number of digits from which a word may be a telephone number.
const PHONE_DIGITS: usize = 7;
/// Length from which a word may be a device token or a signed URL.
const TOKEN_CHARS: usize = 48;

/// Returns a response on one line, with placeholders for words that may be an e-mail address, a
/// telephone number or a token. Reply codes such as `550 5.1.1` are kept.
pub(crate) fn redact(response: &str) -> String {
    let mut text = String::new();
    for word in response.split(|c: char| c.is_whitespace() || c.is_control()) {
        if word.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(redact_word(word));
        if text.chars().count() > MAX_LOGGED_CHARS {
            return text.chars().take(MAX_LOGGED_CHARS).collect();
        }
    }
    text
}

fn redact_word(word: &str) -> &str {
    if word.contains('@') || word.contains("%40") || word.contains('＠') {
        "<address>"
    } else if word.chars().filter(char::is_ascii_digit).count() >= PHONE_DIGITS {
        "<number>"
    } else if word.chars().count() >= TOKEN_CHARS {
        "<token>"
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_numbers_and_tokens_are_replaced() {
        let token = "a".repeat(48);
        let rows = [
            (
                "550 5.1.1 <ada@example.com>: no such user",
                "550 5.1.1 <address> no such user",
            ),
            ("call\n+49-170-1234567 failed", "call <number> failed"),
            ("https://h.test/?to=ada%40example.com", "<address>"),
            (&*format!("token {token}"), "token <token>"),
            (
                "Connection refused (os error 111)",
                "Connection refused (os error 111)",
            ),
        ];
        for (response, expected) in rows {
            assert_eq!(redact(response), expected);
        }
        assert_eq!(redact(&"word ".repeat(1000)).chars().count(), 200);
    }
}
