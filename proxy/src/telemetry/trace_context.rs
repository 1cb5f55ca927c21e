//! W3C Trace Context: propagation of traces.

use postern_core::trace::SpanContext;

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
    pub(crate) fn follow(caller: &SpanContext, span: u64) -> Self {
        Self {
            id: u128::from_be_bytes(caller.trace_id().to_bytes()),
            span,
            parent: Some(u64::from_be_bytes(caller.span_id().to_bytes())),
            flags: caller.trace_flags().to_u8(),
            is_recorded: false,
        }
    }

    /// Formats the outgoing `traceparent` without `write!`, because every request has one.
    pub(crate) fn to_text(self) -> [u8; 55] {
        let mut text = *b"00-................................-................-..";
        let _fits = hex::encode_to_slice(self.id.to_be_bytes(), &mut text[3..35]);
        let _fits = hex::encode_to_slice(self.span.to_be_bytes(), &mut text[36..52]);
        let _fits = hex::encode_to_slice([self.flags], &mut text[53..]);
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
}

/// The difference between the ids of the client span and of the server span of a request.
const CLIENT_SPAN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use postern_core::trace::parse_traceparent;

    use super::*;

    #[test]
    fn traceparent_round_trips() {
        for text in [
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000001-00000000000000ff-00",
        ] {
            let caller = parse_traceparent(text).expect("well-formed");
            let span = u64::from_str_radix(&text[36..52], 16).expect("hexadecimal");
            let trace = TraceContext::follow(&caller, span);
            assert_eq!(trace.to_text(), text.as_bytes());
            assert_eq!(trace.parent, Some(span));
        }
    }
}
