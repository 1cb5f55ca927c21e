//! HTML of messages for sandboxed frames. A frame cannot send a token: its address is a secret that
//! is valid once. Depends on `sessions`.

use std::collections::VecDeque;

use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use parking_lot::Mutex;
use postern_core::Code;

use crate::sessions::random_secret;

/// An origin of its own, without scripts, forms and requests.
const POLICY: &str =
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";
/// Maximum number of documents that wait for their frames.
const MAX_FRAMES: usize = 32;
/// Maximum bytes of a document.
const MAX_FRAME_BYTES: usize = 512 << 10;

/// Documents by their secret, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Frames(Mutex<VecDeque<(String, String)>>);

impl Frames {
    /// Returns a frame that shows a document; none for a large one.
    pub(crate) fn frame(&self, document: &str) -> Markup {
        let secret = random_secret().ok();
        let secret = secret.filter(|_| document.len() <= MAX_FRAME_BYTES);
        let Some(secret) = secret else {
            return html! {};
        };
        let mut frames = self.0.lock();
        frames.push_back((secret.expose().to_owned(), document.to_owned()));
        let surplus = frames.len().saturating_sub(MAX_FRAMES);
        frames.drain(..surplus);
        html! { iframe.message src={ "/frames/" (secret.expose()) } title="The message as HTML" sandbox="" {} }
    }

    /// Returns a document once.
    pub(crate) fn take(&self, secret: &str) -> Response {
        let mut frames = self.0.lock();
        let found = frames.iter().position(|(known, _)| known == secret);
        match found.and_then(|at| frames.remove(at)) {
            Some((_, document)) => {
                let headers = [
                    ("content-security-policy", POLICY),
                    ("x-frame-options", "SAMEORIGIN"),
                ];
                (headers, Html(document)).into_response()
            }
            None => Code::NotFound.into_response(),
        }
    }
}
