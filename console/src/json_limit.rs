//! A limit of the values in a JSON text, because a parsed value can need a thousand times the memory
//! of its text: 8 MiB of `{"":0},` become more than 2 GiB.
//!
//! Input: a text. Output: whether it may be parsed. Depends on nothing.

/// Maximum number of objects and arrays: ten times those in the routes of a gateway with 10,000.
const MAX_CONTAINERS: usize = 200_000;
/// Maximum number of members and items.
const MAX_MEMBERS: usize = 1_000_000;

/// Returns whether a text has few enough values. Others than objects and arrays have one, or are not
/// JSON, such as metrics.
pub(crate) fn is_within_limit(text: &[u8]) -> bool {
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if !matches!(first, Some(b'{' | b'[')) {
        return true;
    }
    let (mut containers, mut members) = (0_usize, 0_usize);
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'{' | b'[' if !is_string => containers += 1,
            b',' if !is_string => members += 1,
            _ => {}
        }
    }
    containers <= MAX_CONTAINERS && members <= MAX_MEMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        let objects = |count: usize| format!("[{}0]", "{\"\":0},".repeat(count));
        assert!(is_within_limit(objects(MAX_CONTAINERS - 1).as_bytes()));
        assert!(!is_within_limit(objects(MAX_CONTAINERS).as_bytes()));
        let items = |count: usize| format!("[0{}]", ",0".repeat(count));
        assert!(is_within_limit(items(MAX_MEMBERS).as_bytes()));
        assert!(!is_within_limit(items(MAX_MEMBERS + 1).as_bytes()));
        let text = "{[,\\\"".repeat(MAX_MEMBERS + 1);
        assert!(is_within_limit(format!(" [\"{text}\"]").as_bytes()));
        let metrics = "requests{a=\"b\",c=\"d\"} 1\n".repeat(MAX_MEMBERS + 1);
        assert!(is_within_limit(metrics.as_bytes()));
    }
}
