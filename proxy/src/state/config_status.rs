//! The configuration status for the admin listener.

use postern_core::clock::Timestamp;
use serde::Serialize;

/// The configuration status that `/config/status` returns.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigStatus {
    /// The configuration file; `None` if no file is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// Number of the active configuration, from 1.
    pub(crate) version: u64,
    pub(crate) hash: Option<String>,
    pub(crate) loaded_at: Option<Timestamp>,
    /// The error because of which the current file is not active.
    pub(crate) last_error: Option<String>,
    /// Changed settings that require a restart.
    pub(crate) restart_needed: Vec<&'static str>,
}
