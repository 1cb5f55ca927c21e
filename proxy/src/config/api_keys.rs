//! `[api_keys]`: API keys of services.

use std::path::PathBuf;

use http::HeaderName;
use http::header::AUTHORIZATION;
use postern_core::settings;

use crate::config::file_path;
use crate::config::header_changes::changeable_name;

settings! {
    /// API keys of services, see [API keys](../manual/gateway.md#api-keys).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ApiKeyConfig(table) {
        /// File with the digests; read again when it changes.
        pub file: PathBuf => file_path,
        /// Field that contains a key, such as `apikey`; removed from every request.
        ///
        /// Besides `Authorization`.
        pub header: Option<HeaderName> = None => |field| {
            match changeable_name(&field.typed("field name").text(1..=256)?, field)? {
                AUTHORIZATION => field.fail("invalid_choice", "has API keys without this setting"),
                name => Some(name),
            }
        },
        /// Query parameter that contains a key; removed, and not logged.
        pub query: Option<String> = None => |field| field.text(1..=256),
    }
}
