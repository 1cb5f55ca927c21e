//! The key `database`: one URL, or a table with the shards.

use postern_common::config::Env;
use postern_common::decode::{Field, Object};
use serde_json::json;

use crate::notification::ShardNumber;

/// The databases of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseConfig {
    /// `postgres://…` or `sqlite://…`, at least one. The position is the number of the shard, which
    /// is part of the ids of notifications.
    pub(crate) shards: Vec<String>,
    /// The shards for new notifications, ascending. Default all.
    pub(crate) accept: Vec<ShardNumber>,
    /// The shards that this process delivers for, ascending. Default all.
    pub(crate) work_on: Vec<ShardNumber>,
}

const DEFAULT_URL: &str = "sqlite://var/notify.db";
/// Variable that overrides the URLs, because they may contain passwords. Several are separated by
/// spaces.
const VARIABLE: &str = "NOTIFY_DATABASE";
/// Maximum number of shards: the number has one byte in an id.
const MAX_SHARDS: usize = 256;

/// The keys of the table before they are compared with one another.
#[derive(Default)]
struct DatabaseTable {
    shards: Vec<String>,
    accept: Option<Vec<ShardNumber>>,
    work_on: Option<Vec<ShardNumber>>,
}

/// Where the URLs were given.
enum UrlPlace {
    File,
    Variable,
}

// === impl UrlPlace ===

impl UrlPlace {
    /// Records a mistake of all URLs, or of the one at a position.
    fn fail(&self, root: &Object<'_>, at: Option<usize>, code: &'static str, detail: &str) {
        match (self, at) {
            (Self::File, None) => root.fail_at("database.shards", code, detail),
            (Self::File, Some(at)) => {
                root.fail_at(&format!("database.shards.{at}"), code, detail);
            }
            (Self::Variable, None) => {
                root.fail(code, format!("{VARIABLE}: {detail}"));
            }
            (Self::Variable, Some(at)) => {
                root.fail(code, format!("{VARIABLE}: URL {at} {detail}"));
            }
        }
    }
}

// === impl DatabaseConfig ===

impl DatabaseConfig {
    /// Reads `database`.
    pub(super) fn read(root: &Object<'_>, env: &Env) -> Self {
        let table = root.optional("database", read_table).unwrap_or_default();
        let given = env.get(VARIABLE).map(|text| {
            let urls = text.split_whitespace();
            urls.map(str::to_owned).collect::<Vec<_>>()
        });
        let place = match given {
            Some(_) => UrlPlace::Variable,
            None => UrlPlace::File,
        };
        let mut shards = given.unwrap_or(table.shards);
        if shards.is_empty() {
            shards.push(DEFAULT_URL.to_owned());
        }
        check_urls(root, &shards, &place);
        shards.truncate(MAX_SHARDS);
        let count = shards.len();
        Self {
            shards,
            accept: select(root, "accept", table.accept, count),
            work_on: select(root, "work_on", table.work_on, count),
        }
    }

    /// Returns the URL of shard 0, which has the suppression lists and the pauses of providers.
    pub(crate) fn first_url(&self) -> &str {
        &self.shards[0]
    }
}

/// Records the mistakes of several URLs. A single one is checked when it is opened.
fn check_urls(root: &Object<'_>, urls: &[String], place: &UrlPlace) {
    if urls.len() > MAX_SHARDS {
        let detail = format!("must have at most {MAX_SHARDS} URLs");
        place.fail(root, None, "invalid_length", &detail);
    }
    for (at, url) in urls.iter().enumerate().filter(|_| urls.len() > 1) {
        let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if !is_postgres {
            let detail = "must begin with postgres://: SQLite is for a single database";
            place.fail(root, Some(at), "invalid_value", detail);
        } else if let Some(first) = urls[..at].iter().position(|of| address(of) == address(url)) {
            // Two shards in one database would deliver each other's notifications.
            let detail = format!("is the database of shard {first}");
            place.fail(root, Some(at), "duplicate", &detail);
        }
    }
}

/// Returns a URL without scheme, user and password.
fn address(url: &str) -> &str {
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    address
        .rsplit_once('@')
        .map_or(address, |(_, address)| address)
}

/// Returns the selected shards, or all.
fn select(
    root: &Object<'_>,
    name: &str,
    selected: Option<Vec<ShardNumber>>,
    count: usize,
) -> Vec<ShardNumber> {
    let all = || (0..=ShardNumber::MAX).take(count).collect();
    let Some(mut selected) = selected else {
        return all();
    };
    for (at, number) in selected.iter().enumerate() {
        let path = format!("database.{name}.{at}");
        if usize::from(*number) >= count {
            let detail = format!("must be the position of a shard, 0 to {}", count - 1);
            root.fail_at(&path, "out_of_range", detail);
        } else if selected[..at].contains(number) {
            root.fail_at(&path, "duplicate", "is named twice");
        }
    }
    selected.sort_unstable();
    selected
}

fn read_table(field: Field<'_>) -> Option<DatabaseTable> {
    let form = || json!({ "type": "string", "minLength": 1, "maxLength": 1024 });
    if field.if_string(form).is_some() {
        return Some(DatabaseTable {
            shards: vec![field.text(1..=1024)?],
            ..DatabaseTable::default()
        });
    }
    field.object(|table| {
        let numbers = |name| {
            table.optional(name, |field| {
                field.non_empty_array(|item| item.integer(0..=ShardNumber::MAX))
            })
        };
        let shards = table.optional("shards", |field| {
            field.non_empty_array(|item| item.text(1..=1024))
        });
        Some(DatabaseTable {
            shards: shards.unwrap_or_default(),
            accept: numbers("accept"),
            work_on: numbers("work_on"),
        })
    })
}
