//! Parameters of header values: `multipart/form-data; boundary="x"` (RFC 2045 section 5.1).

/// Returns the value without parameters.
pub(crate) fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

/// Returns a parameter such as `boundary` of `multipart/mixed; boundary="x"`.
pub(crate) fn parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value;
    while let Some((_, after)) = rest.split_once(';') {
        rest = after.trim_start();
        let (key, after) = rest.split_once('=')?;
        let (found, left) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if key.trim().eq_ignore_ascii_case(name) {
            return Some(found);
        }
        rest = left;
    }
    None
}

fn unquote(text: &str) -> (String, &str) {
    let (mut value, mut escaped) = (String::new(), false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => {
                value.push(character);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &text[at + 1..]),
            _ => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_and_plain_parameters_are_parsed() {
        let value = "a/b; x=1; Y = \"2;\\\"3\" ; z=4";
        assert_eq!(parameter(value, "x").as_deref(), Some("1"));
        assert_eq!(parameter(value, "y").as_deref(), Some("2;\"3"));
        assert_eq!(parameter(value, "z").as_deref(), Some("4"));
        assert_eq!(parameter(value, "w"), None);
        assert_eq!(parameter("a/b; x", "x"), None);
        assert_eq!(essence(value), "a/b");
    }
}
