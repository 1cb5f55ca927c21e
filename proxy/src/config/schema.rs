//! The JSON schema of the configuration, for editors.

/// The schema that `postern-proxy schema` prints. A test makes it from what the readers of the
/// configuration accept.
pub const SCHEMA: &str = include_str!("../../proxy.schema.json");
