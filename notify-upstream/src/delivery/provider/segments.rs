//! The number of segments of a text message. Each is charged.

use super::ProviderRefusal;
use crate::templates::MessageContent;

/// The size of a text message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SmsSegments {
    /// The encoding.
    pub(super) encoding: &'static str,
    /// The number of segments.
    pub(super) count: usize,
}

/// Maximum number of segments: the limit of Twilio, applied to all providers. More indicates a
/// faulty template.
pub(super) const MAX_SEGMENTS: usize = 10;

/// Seven bits per character (3GPP TS 23.038 section 6.2.1).
const GSM_7: &str = "GSM-7";
/// Two bytes per unit, if any character is not in the seven-bit alphabet.
const UCS_2: &str = "UCS-2";
const GSM7: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿\
                    abcdefghijklmnopqrstuvwxyzäöñüà";
/// Characters that take two units.
const GSM7_EXTENSION: &str = "\u{c}^{}\\[~]|€";

impl SmsSegments {
    /// Returns the size of a text message, or `None` for other content.
    ///
    /// # Errors
    /// The text has too many segments. No provider is called.
    pub(super) fn of(content: &MessageContent) -> Result<Option<Self>, ProviderRefusal> {
        let MessageContent::Sms { text } = content else {
            return Ok(None);
        };
        let (encoding, count) = segments(text);
        if count > MAX_SEGMENTS {
            return Err(ProviderRefusal::message_too_long());
        }
        Ok(Some(Self { encoding, count }))
    }
}

impl std::fmt::Display for SmsSegments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} segment(s)", self.count, self.encoding)
    }
}

/// Returns the number of segments of a text message, however many there are.
pub(crate) fn segment_count(text: &str) -> usize {
    segments(text).1
}

/// Returns the encoding and the number of segments: one of 160 units or several of 153; 70 and 67
/// in UCS-2.
fn segments(text: &str) -> (&'static str, usize) {
    let place = |c: char| match c {
        c if GSM7.contains(c) => Some(1),
        c if GSM7_EXTENSION.contains(c) => Some(2),
        _ => None,
    };
    let (encoding, lengths, one, many) =
        match text.chars().map(place).collect::<Option<Vec<usize>>>() {
            Some(lengths) => (GSM_7, lengths, 160, 153),
            None => (UCS_2, text.chars().map(char::len_utf16).collect(), 70, 67),
        };
    let total: usize = lengths.iter().sum();
    if total <= one {
        return (encoding, 1);
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
    (encoding, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_by_encoding() {
        let count = |text: &str, times| segments(&text.repeat(times));
        assert_eq!(count("a", 160), (GSM_7, 1));
        assert_eq!(count("a", 161), (GSM_7, 2));
        assert_eq!(count("€", 80), (GSM_7, 1));
        assert_eq!(count("€", 153), (GSM_7, 3));
        assert_eq!(count("ж", 70), (UCS_2, 1));
        assert_eq!(count("ж", 71), (UCS_2, 2));
        assert_eq!(count("😀", 35), (UCS_2, 1));
        assert_eq!(count("😀", 67), (UCS_2, 3));
        assert_eq!(segments(""), (GSM_7, 1));
    }
}
