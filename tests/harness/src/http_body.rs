//! Request bodies.

pub use serde_json::json;

/// A `multipart/form-data` body (RFC 7578) with its content type.
#[derive(Clone, Debug)]
pub struct Multipart {
    boundary: String,
    bytes: Vec<u8>,
}

// === impl Multipart ===

impl Multipart {
    /// Creates an empty form.
    #[must_use]
    pub fn new() -> Self {
        Self {
            boundary: format!("postern{}", uuid::Uuid::new_v4().simple()),
            bytes: Vec::new(),
        }
    }

    /// Adds a text field.
    #[must_use]
    pub fn text(self, name: &str, value: &str) -> Self {
        self.part(
            &format!("form-data; name=\"{name}\""),
            None,
            value.as_bytes(),
        )
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, name: &str, file_name: &str, content_type: &str, content: &[u8]) -> Self {
        let disposition = format!("form-data; name=\"{name}\"; filename=\"{file_name}\"");
        self.part(&disposition, Some(content_type), content)
    }

    fn part(mut self, disposition: &str, content_type: Option<&str>, content: &[u8]) -> Self {
        let head = match content_type {
            Some(kind) => {
                format!("Content-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n")
            }
            None => format!("Content-Disposition: {disposition}\r\n\r\n"),
        };
        self.bytes
            .extend_from_slice(format!("--{}\r\n", self.boundary).as_bytes());
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Returns the content type with its boundary, and the body.
    #[must_use]
    pub fn finish(mut self) -> (String, Vec<u8>) {
        self.bytes
            .extend_from_slice(format!("--{}--\r\n", self.boundary).as_bytes());
        (
            format!("multipart/form-data; boundary={}", self.boundary),
            self.bytes,
        )
    }
}

impl Default for Multipart {
    fn default() -> Self {
        Self::new()
    }
}
