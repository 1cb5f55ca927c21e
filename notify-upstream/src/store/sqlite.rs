//! SQLite: row conversion. The SQL of the queue is in [`queue`], of the suppression lists in
//! [`suppression`], and all other SQL in [`history`].
//!
//! A batch is one statement over `json_each`: one bound insert per row takes six times as long.

mod history;
mod list;
mod pause;
mod queue;
mod suppression;

use postern_common::database;

use super::read as rows;
use crate::notification::NotificationId;

/// The store in SQLite.
#[derive(Clone, Debug)]
pub(super) struct Sqlite {
    pools: database::Sqlite,
}

impl Sqlite {
    /// Creates a store on an open file.
    #[must_use]
    pub(crate) fn new(pools: database::Sqlite) -> Self {
        Self { pools }
    }
}

/// Serializes a list for `json_each`.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "[]".to_owned())
}

fn id_list<'a>(ids: impl IntoIterator<Item = &'a NotificationId>) -> String {
    json(&ids.into_iter().map(ToString::to_string).collect::<Vec<_>>())
}
