use postern_common::clock::Timestamp;
use serde::Serialize;

/// What `/config/status` says.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigStatus {
    /// Counts what has been live, from 1.
    pub(crate) version: u64,
    /// Of the text that is live.
    pub(crate) hash: Option<String>,
    /// When it went live.
    pub(crate) loaded_at: Option<Timestamp>,
    /// Why the file as it is now is not live.
    pub(crate) last_error: Option<String>,
    /// What has changed in the file but is read at the start only.
    pub(crate) restart_needed: Vec<&'static str>,
}
