//! Numbers with units.

use std::time::Duration;

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Parses a duration such as `250ms`, `30s`, `5m`, `1h` or `7d`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (count, unit) = split_number(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    count.checked_mul(millis).map(Duration::from_millis)
}

/// Parses a size such as `512`, `64KiB`, `10MiB` or `1GiB`.
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    let (count, unit) = split_number(text)?;
    let size = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    count.checked_mul(size)
}
