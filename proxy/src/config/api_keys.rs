//! `[api_keys]`: API keys of services.

use std::path::PathBuf;

use http::HeaderName;
use http::header::AUTHORIZATION;
use postern_core::decode::Object;

use crate::config::header_changes::changeable_name;

/// `[api_keys]`: the file of the keys and the places in which requests may have one, besides
/// `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyConfig {
    /// The file with the digests of the keys.
    pub file: PathBuf,
    /// A header field that contains a key; default none.
    pub header: Option<HeaderName>,
    /// A query parameter that contains a key; default none.
    pub query: Option<String>,
}

impl ApiKeyConfig {
    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let file = section.required("file", |field| field.text(1..=4096));
        let header = section.optional("header", |field| {
            match changeable_name(&field.text(1..=256)?, field)? {
                AUTHORIZATION => field.fail("invalid_choice", "has API keys without this setting"),
                name => Some(name),
            }
        });
        Some(Self {
            header,
            query: section.optional("query", |field| field.text(1..=256)),
            file: PathBuf::from(file?),
        })
    }
}
