//! `[route.compression]`: content coding of responses.

use postern_core::decode::{Field, Object, Value};
use postern_http::compression::ContentCoding;

/// The responses of a route that are compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionConfig {
    /// The codings, preferred first; default `zstd`, `br`, `gzip`.
    pub algorithms: Vec<ContentCoding>,
    /// Media types; default common text formats.
    pub types: Vec<MediaPattern>,
    /// Minimum `Content-Length` in bytes; default 1 KiB. A response of unknown length is always
    /// long enough.
    pub min_bytes: u64,
    /// The level of all codings, 1 (fastest) to 9; default gzip 5, brotli 4, zstd 3.
    pub level: Option<u32>,
    /// Whether responses to requests with credentials, and responses that set cookies, are
    /// compressed; default false, because the length of a compressed response that repeats a part of
    /// the request discloses secrets beside it (BREACH).
    pub authenticated: bool,
}

/// A pattern of media types, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaPattern {
    /// `application/json`.
    Exact(String),
    /// `text/*`: stored as `text/`.
    AnySubtype(String),
}

/// The codings by name; the default of [`CompressionConfig::algorithms`].
const CODINGS: [(&str, ContentCoding); 3] = [
    ("zstd", ContentCoding::Zstd),
    ("br", ContentCoding::Brotli),
    ("gzip", ContentCoding::Gzip),
];

/// Default of [`CompressionConfig::types`].
const DEFAULT_TYPES: [&str; 14] = [
    "application/atom+xml",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/problem+json",
    "application/rss+xml",
    "application/wasm",
    "application/xhtml+xml",
    "application/xml",
    "application/yaml",
    "image/svg+xml",
    "image/bmp",
    "text/*",
];

/// Default of [`CompressionConfig::min_bytes`].
const DEFAULT_MIN_BYTES: u64 = 1 << 10;

// === impl CompressionConfig ===

impl CompressionConfig {
    /// Reads `true`, `false` or a table. Returns `None` also for `false`.
    pub(super) fn read(field: Field<'_>) -> Option<Self> {
        if matches!(field.value(), Value::Bool(_)) {
            return field.boolean()?.then(Self::default);
        }
        field.object(Self::read_table)
    }

    fn read_table(section: &Object<'_>) -> Option<Self> {
        let default = Self::default();
        Some(Self {
            algorithms: section.or("algorithms", default.algorithms, read_algorithms),
            types: section.or("types", default.types, |field| {
                field.non_empty_array(MediaPattern::read)
            }),
            min_bytes: section.or("min_bytes", default.min_bytes, |field| field.bytes()),
            level: section.optional("level", |field| field.integer(1..=9)),
            authenticated: section.or("authenticated", false, |field| field.boolean()),
        })
    }

    /// Returns whether responses of this `Content-Type` are compressed. Event streams and gRPC never
    /// are: their messages must not wait for more data.
    #[must_use]
    pub fn compresses(&self, content_type: &str) -> bool {
        let media_type = content_type.split(';').next().unwrap_or_default();
        let media_type = media_type.trim_ascii().to_ascii_lowercase();
        !is_message_stream(&media_type)
            && self
                .types
                .iter()
                .any(|pattern| pattern.matches(&media_type))
    }
}

impl Default for CompressionConfig {
    fn default() -> Self {
        let types = DEFAULT_TYPES
            .iter()
            .filter_map(|text| MediaPattern::parse(text));
        Self {
            algorithms: CODINGS.map(|(_, coding)| coding).to_vec(),
            types: types.collect(),
            min_bytes: DEFAULT_MIN_BYTES,
            level: None,
            authenticated: false,
        }
    }
}

fn read_algorithms(field: Field<'_>) -> Option<Vec<ContentCoding>> {
    let mut algorithms = Vec::new();
    field.non_empty_array(|item| {
        let coding = item.one_of(&CODINGS)?;
        if algorithms.contains(&coding) {
            return item.fail("duplicate_value", "is listed twice");
        }
        algorithms.push(coding);
        Some(())
    })?;
    Some(algorithms)
}

/// Returns whether a media type is a sequence of messages that are sent one by one.
fn is_message_stream(media_type: &str) -> bool {
    media_type == "text/event-stream" || media_type.starts_with("application/grpc")
}

// === impl MediaPattern ===

impl MediaPattern {
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (kind, subtype) = text.split_once('/')?;
        let is_name = |name: &str| {
            let is_name_byte =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
            !name.is_empty() && name.bytes().all(is_name_byte)
        };
        match subtype {
            "*" if is_name(kind) => Some(Self::AnySubtype(format!("{kind}/"))),
            _ if is_name(kind) && is_name(subtype) => Some(Self::Exact(text)),
            _ => None,
        }
    }

    fn read(item: Field<'_>) -> Option<Self> {
        let text = item.text(3..=200)?;
        match Self::parse(&text) {
            Some(Self::Exact(name)) if is_message_stream(&name) => item.fail(
                "invalid_choice",
                "is never compressed, because its messages must not wait for more data",
            ),
            Some(pattern) => Some(pattern),
            None => item.fail(
                "invalid_format",
                "must be a media type such as application/json or text/*",
            ),
        }
    }

    fn matches(&self, media_type: &str) -> bool {
        match self {
            Self::Exact(name) => name == media_type,
            Self::AnySubtype(start) => media_type.starts_with(start.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_streams_are_never_compressed() {
        let config = CompressionConfig::default();
        for media_type in ["text/html", "Text/CSS; charset=utf-8", "application/json"] {
            assert!(config.compresses(media_type), "{media_type}");
        }
        for media_type in [
            "text/event-stream",
            "text/event-stream;charset=utf-8",
            "application/grpc+proto",
            "image/png",
            "textual/html",
            "text",
            "",
        ] {
            assert!(!config.compresses(media_type), "{media_type}");
        }
    }

    #[test]
    fn media_pattern_is_a_type_or_all_its_subtypes() {
        for text in [
            "*/*",
            "text",
            "text/",
            "/html",
            "text/html; q=1",
            "te*/x",
            "text/*ml",
        ] {
            assert_eq!(MediaPattern::parse(text), None, "{text}");
        }
        let types = CompressionConfig::default().types;
        assert_eq!(types.len(), DEFAULT_TYPES.len());
    }
}
