//! `compression`: compression of responses.

use postern_core::decode::{Field, Value, defaults};
use postern_core::settings;

settings! {
    /// Compression of responses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CompressionConfig(table) {
        /// Also where there are credentials or cookies (BREACH).
        ///
        /// The length of such a response can disclose secrets.
        pub authenticated: bool = false => |field| field.boolean(),
    }
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

impl CompressionConfig {
    /// Reads `true`, `false` or `{ authenticated = true }`.
    pub(super) fn read_form(field: Field<'_>) -> Option<Self> {
        if matches!(field.value(), Value::Bool(_)) {
            return field.boolean()?.then(|| defaults(Self::read));
        }
        field.object(Self::read)
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
        let compressed = "text/html|Text/CSS; charset=utf-8|application/json|application/problem+json|\
            image/svg+xml";
        for media_type in compressed.split('|') {
            assert!(is_compressed_type(media_type), "{media_type}");
        }
        let others = "text/event-stream|text/event-stream;charset=utf-8|application/grpc+json|\
            application/grpc-web|image/png|textual/html|texthtml|text|";
        for media_type in others.split('|') {
            assert!(!is_compressed_type(media_type), "{media_type}");
        }
    }
}
