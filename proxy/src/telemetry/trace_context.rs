//! W3C Trace Context: propagation of traces.

/// The trace of a request. The gateway's span is the parent of the upstream's.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceContext {
    /// The trace id.
    pub id: u128,
    /// The span id of this request.
    pub span: u64,
    /// The span id of the caller.
    pub parent: Option<u64>,
    /// Trace flags; bit 0: sampled.
    pub flags: u8,
    /// Whether spans are recorded here.
    pub is_recorded: bool,
}

impl TraceContext {
    /// Continues the trace of a well-formed `traceparent`.
    pub(crate) fn follow(text: &str, span: u64) -> Self {
        let id = text
            .get(3..35)
            .and_then(|hex| u128::from_str_radix(hex, 16).ok())
            .unwrap_or_default();
        let parent = text
            .get(36..52)
            .and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let flags = text
            .get(53..55)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .unwrap_or_default();
        Self {
            id,
            span,
            parent,
            flags,
            is_recorded: false,
        }
    }

    /// Formats the outgoing `traceparent` without `write!`, because every request has one.
    pub(crate) fn to_text(self) -> [u8; 55] {
        let mut text = *b"00-................................-................-..";
        hexadecimal(self.id, &mut text[3..35]);
        hexadecimal(self.span.into(), &mut text[36..52]);
        hexadecimal(self.flags.into(), &mut text[53..55]);
        text
    }

    /// Returns the context for a call to an upstream: its parent is the client span of the request
    /// if spans are recorded, otherwise the span of the request.
    pub(crate) fn for_upstream(self) -> Self {
        let span = if self.is_recorded {
            self.client_span()
        } else {
            self.span
        };
        Self { span, ..self }
    }

    /// Returns the id of the client span, which includes all attempts to forward the request.
    pub(crate) fn client_span(self) -> u64 {
        (self.span ^ CLIENT_SPAN).max(1)
    }

    /// Returns whether the trace is sampled (W3C Trace Context section 3.2.2.5).
    pub(crate) fn is_sampled(self) -> bool {
        self.flags & 1 != 0
    }
}

/// The difference between the ids of the client span and of the server span of a request.
const CLIENT_SPAN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hexadecimal digits.
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes a number as hexadecimal digits that fill `space`.
fn hexadecimal(mut number: u128, space: &mut [u8]) {
    for digit in space.iter_mut().rev() {
        *digit = DIGITS[(number & 0xf) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_round_trips() {
        for text in [
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000001-00000000000000ff-00",
        ] {
            let span = u64::from_str_radix(&text[36..52], 16).expect("hexadecimal");
            assert_eq!(TraceContext::follow(text, span).to_text(), text.as_bytes());
        }
    }
}
