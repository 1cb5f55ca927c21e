//! `redirect` and `respond` of a route: answers of the gateway itself, instead of an upstream.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use postern_core::decode::Object;
use postern_core::exit::Exit;
use postern_core::files::read_regular;

use crate::config::header_changes::read_fields;
use crate::config::{PathPattern, RedirectTarget, RoutePattern, Template};

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
    /// Header fields of this response, in addition to `response_headers` of the route.
    pub headers: Vec<(HeaderName, Template)>,
    /// `Content-Type`; `None` for a response without a body.
    pub content_type: Option<HeaderValue>,
    /// The body.
    pub body: FixedBody,
}

/// The body of a fixed response.
#[derive(Clone, Debug)]
pub enum FixedBody {
    /// A text of the configuration; empty for none.
    Text(Bytes),
    /// A file that is read when the configuration is prepared.
    File(BodyFile),
}

/// A file with the body of a fixed response.
#[derive(Clone, Debug)]
pub struct BodyFile {
    path: PathBuf,
    /// The contents and the modification time; `None` until the file is read.
    contents: Option<(Bytes, Option<SystemTime>)>,
}

/// Media types by the extension of a file.
const MEDIA_TYPES: [(&str, &str); 12] = [
    ("css", "text/css; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("xml", "application/xml"),
];

const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const BINARY_TYPE: &str = "application/octet-stream";

// === impl RouteAnswer ===

impl RouteAnswer {
    /// Reads `redirect` or `respond` of a route.
    pub(super) fn read(route: &Object<'_>, pattern: Option<&RoutePattern>) -> Option<Self> {
        let path = pattern.map(|pattern| &pattern.path);
        let redirect = route.section("redirect", |section| {
            RedirectAnswer::read(section, pattern).map(Self::Redirect)
        });
        let respond = route.section("respond", |section| {
            FixedResponse::read(section, path).map(Self::Respond)
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

    /// Returns the file with the body, if there is one.
    pub(crate) fn file(&self) -> Option<&BodyFile> {
        match self {
            Self::Redirect(_) => None,
            Self::Respond(response) => match &response.body {
                FixedBody::Text(_) => None,
                FixedBody::File(file) => Some(file),
            },
        }
    }

    /// Reads the file with the body, if there is one.
    ///
    /// # Errors
    /// Status 64 with the file that cannot be used.
    pub(crate) fn load(&mut self) -> Result<(), Exit> {
        match self {
            Self::Respond(FixedResponse {
                body: FixedBody::File(file),
                ..
            }) => file.load(),
            Self::Redirect(_) | Self::Respond(_) => Ok(()),
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
    fn read(section: &Object<'_>, path: Option<&PathPattern>) -> Option<Self> {
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
        let file = section.optional("file", |field| field.text(1..=4096));
        let content_type = section.optional("content_type", |field| {
            let text = field.text(1..=200)?;
            HeaderValue::from_str(&text)
                .ok()
                .filter(|_| text.contains('/'))
                .or_else(|| field.fail("invalid_format", "must be a media type such as text/html"))
        });
        let headers = section.section("headers", |section| Some(read_fields(section, path)));
        let headers = headers.unwrap_or_default();
        if section.has("body") && section.has("file") {
            section.fail("conflicting_fields", "must have body or file, not both");
        }
        let has_body = text.as_ref().is_some_and(|text| !text.is_empty()) || file.is_some();
        if has_body && matches!(status.as_u16(), 204 | 205 | 304) {
            section.fail(
                "conflicting_fields",
                "a response with this status has no body",
            );
        }
        let default_type = match &file {
            Some(file) => media_type(file),
            None => TEXT_TYPE,
        };
        let default_type = has_body.then_some(HeaderValue::from_static(default_type));
        Some(Self {
            status,
            headers,
            content_type: content_type.or(default_type),
            body: match file {
                Some(path) => FixedBody::File(BodyFile::new(path.into())),
                None => FixedBody::Text(text.unwrap_or_default().into()),
            },
        })
    }

    /// Returns the body.
    pub(crate) fn bytes(&self) -> Bytes {
        match &self.body {
            FixedBody::Text(text) => text.clone(),
            FixedBody::File(file) => file.bytes(),
        }
    }
}

fn media_type(path: &str) -> &'static str {
    let extension = Path::new(path).extension().and_then(|text| text.to_str());
    let extension = extension.unwrap_or_default().to_ascii_lowercase();
    MEDIA_TYPES
        .iter()
        .find(|(known, _)| *known == extension)
        .map_or(BINARY_TYPE, |(_, media_type)| media_type)
}

// === impl BodyFile ===

impl BodyFile {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            contents: None,
        }
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why the file cannot be used, if it cannot.
    pub(crate) fn fault(&self) -> Option<String> {
        self.read().err()
    }

    fn read(&self) -> Result<Bytes, String> {
        let name = self.path.display();
        let contents = read_regular(&self.path, MAX_BODY_BYTES);
        let contents = contents.map_err(|error| format!("{name}: cannot read: {error}"))?;
        Ok(contents.into())
    }

    fn load(&mut self) -> Result<(), Exit> {
        let modified = self.modified();
        self.contents = Some((self.read().map_err(Exit::usage)?, modified));
        Ok(())
    }

    fn modified(&self) -> Option<SystemTime> {
        std::fs::metadata(&self.path)
            .and_then(|file| file.modified())
            .ok()
    }

    /// Returns whether the file was modified since it was read.
    pub(crate) fn has_changed(&self) -> bool {
        let read = self.contents.as_ref();
        read.is_some_and(|(_, modified)| *modified != self.modified())
    }

    fn bytes(&self) -> Bytes {
        let read = self.contents.as_ref();
        read.map_or_else(Bytes::new, |(bytes, _)| bytes.clone())
    }
}
