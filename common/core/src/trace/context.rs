//! The header fields of W3C Trace Context.

use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// `traceparent`: trace id, span id of the caller, and flags (W3C Trace Context section 3.2).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// `tracestate`: data of tracing systems (W3C Trace Context section 3.3).
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Returns the context of the caller, or an invalid one if `traceparent` is absent, occurs more
/// than once or is malformed. `tracestate` is ignored if it is malformed.
pub(super) fn extract(headers: &HeaderMap) -> SpanContext {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let (Some(parent), None) = (values.next(), values.next()) else {
        return SpanContext::NONE;
    };
    let Some(context) = parent.to_str().ok().and_then(parse_traceparent) else {
        return SpanContext::NONE;
    };
    if !headers.contains_key(TRACESTATE) {
        return context;
    }
    // Several fields are one list (section 3.3.1).
    let states = headers.get_all(TRACESTATE).iter();
    let states: Option<Vec<&str>> = states.map(|state| state.to_str().ok()).collect();
    let state = states.and_then(|states| TraceState::from_str(&states.join(",")).ok());
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
    SpanContext::new(trace, span, flags, true, state.unwrap_or_default())
}

/// Parses a `traceparent` of version 00 with non-zero ids.
#[must_use]
pub fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let is_expected = |(at, byte): (usize, u8)| match at {
        2 | 35 | 52 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    let has_form = text.len() == 55 && text.bytes().enumerate().all(is_expected);
    if !has_form || !text.starts_with("00") {
        return None;
    }
    let trace = TraceId::from_hex(&text[3..35]).ok()?;
    let span = SpanId::from_hex(&text[36..52]).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(&text[53..], 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// Formats a `traceparent`.
pub(super) fn format(context: &SpanContext) -> String {
    let (trace, span) = (context.trace_id(), context.span_id());
    format!("00-{trace}-{span}-{:02x}", context.trace_flags().to_u8())
}

/// Sets the fields of a valid context, and removes those of an invalid one.
pub(super) fn inject(context: &SpanContext, headers: &mut HeaderMap) {
    let state = context.trace_state().header();
    let fields = [(TRACEPARENT, format(context)), (TRACESTATE, state)];
    for (name, text) in fields {
        let value = HeaderValue::try_from(text).ok();
        match value.filter(|value| context.is_valid() && !value.is_empty()) {
            Some(value) => drop(headers.insert(name, value)),
            None => drop(headers.remove(name)),
        }
    }
}
