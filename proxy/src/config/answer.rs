//! `redirect` and `respond` of a route: answers of the gateway itself, instead of an upstream.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use postern_core::decode::Object;
use postern_core::settings;

use crate::config::{RedirectTarget, RoutePattern};

/// Maximum bytes of the body of a fixed response.
const MAX_BODY_BYTES: usize = 1 << 20;

/// An answer of the gateway itself.
#[derive(Clone, Debug)]
pub enum RouteAnswer {
    /// `redirect`: a redirection.
    Redirect(RedirectAnswer),
    /// `respond`: a fixed response.
    Respond(FixedResponse),
}

settings! {
    /// [Redirect](../manual/gateway.md#redirects-and-fixed-responses) instead of an upstream.
    #[derive(Clone, Debug)]
    pub struct RedirectAnswer(table, pattern: Option<&RoutePattern>) {
        /// `Location`, with variables; `{host}` needs `hosts`.
        pub to: RedirectTarget => |field| RedirectTarget::read(field, pattern),
        /// Status.
        pub status: StatusCode = 308 => |field| {
            let status: u16 = field.typed("301, 302, 303, 307, 308").integer(301..=308)?;
            match status {
                301..=303 | 307 | 308 => StatusCode::from_u16(status).ok(),
                _ => field.fail("invalid_choice", "must be 301, 302, 303, 307 or 308"),
            }
        },
    }
}

/// `respond = { status = 200, body = "…" }`.
#[derive(Clone, Debug)]
pub struct FixedResponse {
    /// The status, 200 to 599.
    pub status: StatusCode,
    /// `Content-Type`; `None` for a response without a body.
    pub content_type: Option<HeaderValue>,
    /// The body; empty for none.
    pub body: Bytes,
}

const TEXT_TYPE: &str = "text/plain; charset=utf-8";

impl RouteAnswer {
    /// Reads `redirect` or `respond` of a route.
    pub(super) fn read(route: &Object<'_>, pattern: Option<&RoutePattern>) -> Option<Self> {
        let redirect = route.section("redirect", |section| {
            RedirectAnswer::read(section, pattern).map(Self::Redirect)
        });
        let respond = route.section("respond", |section| {
            read_response(section).map(Self::Respond)
        });
        redirect.or(respond)
    }

    /// Returns the name of the decision in tests and in `explain`.
    pub(crate) fn decision(&self) -> &'static str {
        match self {
            Self::Redirect(_) => "redirect",
            Self::Respond(_) => "respond",
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Redirect(redirect) => redirect.status,
            Self::Respond(response) => response.status,
        }
    }
}

settings! {
    /// Reads a fixed response instead of an upstream.
    fn read_response(table) -> FixedResponse {
        /// Status.
        status = 200 => |field| StatusCode::from_u16(field.integer(200..=599)?).ok(),
        /// Body, at most 1 MiB.
        body = "" => |field| {
            let text = field.string()?;
            match text.len() <= MAX_BODY_BYTES {
                true => Some(text.to_owned()),
                false => field.fail("invalid_length", "must not be longer than 1 MiB"),
            }
        },
        /// Media type; none without a body.
        content_type = None ("`text/plain; charset=utf-8`") => |field| {
            let text = field.text(1..=200)?;
            HeaderValue::from_str(&text)
                .ok()
                .filter(|_| text.contains('/'))
                .or_else(|| field.fail("invalid_format", "must be a media type such as text/html"))
        },
    } => {
        let has_body = !body.is_empty();
        if has_body && matches!(status.as_u16(), 204 | 205 | 304) {
            table.fail(
                "conflicting_fields",
                "a response with this status has no body",
            );
        }
        let default_type = has_body.then_some(HeaderValue::from_static(TEXT_TYPE));
        FixedResponse {
            status,
            content_type: content_type.or(default_type),
            body: body.into(),
        }
    }
}
