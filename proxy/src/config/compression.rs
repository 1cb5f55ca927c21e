//! `compression`: compression of responses.

use postern_core::decode::{Field, Value};

/// `compression`: compression of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionConfig {
    /// Whether responses to requests with credentials, and responses that set cookies, are
    /// compressed too; default false. Their length can disclose secrets (BREACH).
    pub authenticated: bool,
}

/// Minimum length of a body in bytes; a shorter one hardly shrinks.
pub(crate) const MIN_COMPRESSED_BYTES: u64 = 1 << 10;

/// The media types that are compressed, besides `text/*` and those in JSON or XML.
const TYPES: [&str; 5] = [
    "application/javascript",
    "application/json",
    "application/wasm",
    "application/xml",
    "application/yaml",
];

// === impl CompressionConfig ===

impl CompressionConfig {
    /// Reads `true`, `false` or `{ authenticated = true }`.
    pub(super) fn read(field: Field<'_>) -> Option<Self> {
        if matches!(field.value(), Value::Bool(_)) {
            return field.boolean()?.then(Self::default);
        }
        field.object(|section| {
            Some(Self {
                authenticated: section.or("authenticated", false, |field| field.boolean()),
            })
        })
    }
}

/// Returns whether content of this type is compressed. Sequences of messages are not: a message
/// must not wait for more data.
pub(crate) fn is_compressed_type(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    let media_type = media_type.trim_ascii().to_ascii_lowercase();
    media_type != "text/event-stream"
        && !media_type.starts_with("application/grpc")
        && (media_type.starts_with("text/")
            || media_type.ends_with("+json")
            || media_type.ends_with("+xml")
            || TYPES.contains(&media_type.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_streams_and_binary_content_are_not_compressed() {
        for media_type in [
            "text/html",
            "Text/CSS; charset=utf-8",
            "application/json",
            "application/problem+json",
            "image/svg+xml",
        ] {
            assert!(is_compressed_type(media_type), "{media_type}");
        }
        for media_type in [
            "text/event-stream",
            "text/event-stream;charset=utf-8",
            "application/grpc+json",
            "image/png",
            "textual/html",
            "text",
            "",
        ] {
            assert!(!is_compressed_type(media_type), "{media_type}");
        }
    }
}
