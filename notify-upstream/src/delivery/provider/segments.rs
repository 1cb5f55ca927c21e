//! The number of segments of a text message. Each is charged.

/// Maximum number of segments: the limit of Twilio, applied to all providers. More indicates a
/// faulty template.
pub(super) const MAX_SEGMENTS: usize = 10;

/// The seven-bit alphabet (3GPP TS 23.038 section 6.2.1).
const GSM7: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿\
                    abcdefghijklmnopqrstuvwxyzäöñüà";
/// Characters that take two units.
const GSM7_EXTENSION: &str = "\u{c}^{}\\[~]|€";

/// Returns the number of segments of a text message: one of 160 units or several of 153; 70 and 67 of
/// two bytes, if any character is not in the seven-bit alphabet.
pub(crate) fn segment_count(text: &str) -> usize {
    let place = |c: char| match c {
        c if GSM7.contains(c) => Some(1),
        c if GSM7_EXTENSION.contains(c) => Some(2),
        _ => None,
    };
    let (lengths, one, many) = match text.chars().map(place).collect::<Option<Vec<usize>>>() {
        Some(lengths) => (lengths, 160, 153),
        None => (text.chars().map(char::len_utf16).collect(), 70, 67),
    };
    let total: usize = lengths.iter().sum();
    if total <= one {
        return 1;
    }
    // A character of two units is not split over two segments.
    let (mut count, mut filled) = (1, 0);
    for length in lengths {
        if filled + length > many {
            count += 1;
            filled = 0;
        }
        filled += length;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_by_encoding() {
        for (text, times, expected) in [
            ("", 1, 1),
            ("a", 160, 1),
            ("a", 161, 2),
            ("€", 80, 1),
            ("€", 153, 3),
            ("ж", 70, 1),
            ("ж", 71, 2),
            ("😀", 35, 1),
            ("😀", 67, 3),
        ] {
            let count = segment_count(&text.repeat(times));
            assert_eq!(count, expected, "{times} of {text:?}");
        }
    }
}
