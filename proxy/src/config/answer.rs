//! `redirect` and `respond` of a route: answers of the gateway itself, instead of an upstream.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use postern_core::decode::Object;

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

/// `redirect = { to = "…", status = 308 }`.
#[derive(Clone, Debug)]
pub struct RedirectAnswer {
    /// The value of `Location`.
    pub to: RedirectTarget,
    /// 301, 302, 303, 307 or 308; default 308.
    pub status: StatusCode,
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

// === impl RouteAnswer ===

impl RouteAnswer {
    /// Reads `redirect` or `respond` of a route.
    pub(super) fn read(route: &Object<'_>, pattern: Option<&RoutePattern>) -> Option<Self> {
        let redirect = route.section("redirect", |section| {
            RedirectAnswer::read(section, pattern).map(Self::Redirect)
        });
        let respond = route.section("respond", |section| {
            FixedResponse::read(section).map(Self::Respond)
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

    /// Returns the status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Redirect(redirect) => redirect.status,
            Self::Respond(response) => response.status,
        }
    }
}

// === impl RedirectAnswer ===

impl RedirectAnswer {
    fn read(section: &Object<'_>, pattern: Option<&RoutePattern>) -> Option<Self> {
        let status = section.or("status", StatusCode::PERMANENT_REDIRECT, |field| {
            let status: u16 = field.integer(301..=308)?;
            match status {
                301..=303 | 307 | 308 => StatusCode::from_u16(status).ok(),
                _ => field.fail("invalid_choice", "must be 301, 302, 303, 307 or 308"),
            }
        });
        let to = section.required("to", |field| RedirectTarget::read(field, pattern));
        Some(Self { to: to?, status })
    }
}

// === impl FixedResponse ===

impl FixedResponse {
    fn read(section: &Object<'_>) -> Option<Self> {
        let status = section.or("status", StatusCode::OK, |field| {
            StatusCode::from_u16(field.integer(200..=599)?).ok()
        });
        let text = section.optional("body", |field| {
            let text = field.string()?;
            match text.len() <= MAX_BODY_BYTES {
                true => Some(text.to_owned()),
                false => field.fail("invalid_length", "must not be longer than 1 MiB"),
            }
        });
        let content_type = section.optional("content_type", |field| {
            let text = field.text(1..=200)?;
            HeaderValue::from_str(&text)
                .ok()
                .filter(|_| text.contains('/'))
                .or_else(|| field.fail("invalid_format", "must be a media type such as text/html"))
        });
        let has_body = text.as_ref().is_some_and(|text| !text.is_empty());
        if has_body && matches!(status.as_u16(), 204 | 205 | 304) {
            section.fail(
                "conflicting_fields",
                "a response with this status has no body",
            );
        }
        let default_type = has_body.then_some(HeaderValue::from_static(TEXT_TYPE));
        Some(Self {
            status,
            content_type: content_type.or(default_type),
            body: text.unwrap_or_default().into(),
        })
    }
}
