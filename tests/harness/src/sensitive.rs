//! A scan of everything that a test run logs for what must not be logged.
//!
//! `tests/run` sets `POSTERN_TEST_LOGS` to a folder. The harness keeps the output of the programs and
//! the rows of `auth_audit` there ([`log_file`], [`keep`]), and records what tests send and receive:
//! tokens, passwords, addresses of persons and texts of messages ([`record`], [`record_request`], [`record_response`]).
//! Afterwards the program `postern-test-scan` calls [`scan`]. Without the variable nothing is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use parking_lot::Mutex;
use postern_core::config::Env;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, SqliteConnection};

/// Minimum characters of a value: shorter ones occur in other words.
const MIN_CHARACTERS: usize = 8;
/// The texts of the audit events.
const AUDIT: &str = "SELECT operation || ' ' || outcome || ' ' || COALESCE(reason, '') || ' ' || request_id || ' ' || \
    COALESCE(subject, '') || ' ' || COALESCE(network, '') || ' ' || COALESCE(provider, '') FROM auth_audit";
/// Suffix of the files with values.
const VALUES: &str = "values";
/// Maximum bytes of a line in a finding.
const SHOWN_BYTES: usize = 300;

/// Members of responses that must not be logged.
const TOKENS: [&str; 8] = [
    "accessToken",
    "refreshToken",
    "idToken",
    "temporaryToken",
    "access_token",
    "refresh_token",
    "id_token",
    "session",
];
/// Further members of requests that must not be logged, with everything in them.
const PERSONAL: [&str; 15] = [
    "password",
    "newPassword",
    "currentPassword",
    "confirmationCode",
    "code",
    "email",
    "phone",
    "phoneNumber",
    "address",
    "deviceToken",
    "to",
    "firstName",
    "lastName",
    "birthDate",
    "variables",
];

static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    Env::of_process()
        .get("POSTERN_TEST_LOGS")
        .map(PathBuf::from)
});

/// Values that this process has recorded.
static RECORDED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);

/// An occurrence of a value in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What the value is, such as `password`.
    pub kind: String,
    /// The file and the line from 1.
    pub place: String,
    /// The beginning of the line.
    pub line: String,
}

/// Returns the path of a file with this name in the folder of the run; `otherwise` without a run.
pub fn log_file(name: &str, otherwise: &Path) -> PathBuf {
    FOLDER.as_deref().unwrap_or(otherwise).join(name)
}

/// Appends a text to a file in the folder of the run.
pub fn keep(name: &str, text: &str) {
    let Some(folder) = FOLDER.as_deref() else {
        return;
    };
    append(&folder.join(name), text);
}

/// Records a value that must not be logged.
pub fn record(kind: &str, value: &str) {
    let Some(folder) = FOLDER.as_deref() else {
        return;
    };
    if value.chars().count() < MIN_CHARACTERS || !RECORDED.lock().insert(value.to_owned()) {
        return;
    }
    let line = json!({"kind": kind, "value": value}).to_string();
    let name = format!("{}.{VALUES}", std::process::id());
    append(&folder.join(name), &format!("{line}\n"));
}

/// Records what must not be logged of the JSON body of a request.
pub fn record_request(body: &Value) {
    if FOLDER.is_some() {
        walk(body, None, &|name| {
            TOKENS.contains(&name) || PERSONAL.contains(&name)
        });
    }
}

/// Records the tokens in the JSON body of a response.
pub fn record_response(body: &[u8]) {
    if FOLDER.is_some()
        && let Ok(body) = serde_json::from_slice(body)
    {
        walk(&body, None, &|name| TOKENS.contains(&name));
    }
}

fn walk(value: &Value, kind: Option<&str>, is_sensitive: &dyn Fn(&str) -> bool) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let own = is_sensitive(name).then_some(name.as_str());
                walk(member, own.or(kind), is_sensitive);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, kind, is_sensitive)),
        Value::String(text) => {
            if let Some(kind) = kind {
                record(kind, text);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Keeps the stored audit events of an authentication database that no process uses any more.
pub async fn keep_audit(url: &str) {
    if FOLDER.is_none() {
        return;
    }
    let rows: Vec<String> = if url.starts_with("sqlite:") {
        let mut database = SqliteConnection::connect(url).await.expect("the database");
        let rows = sqlx::query_scalar(AUDIT).fetch_all(&mut database).await;
        rows.expect("the audit table")
    } else {
        let mut database = PgConnection::connect(url).await.expect("the database");
        let rows = sqlx::query_scalar(AUDIT).fetch_all(&mut database).await;
        rows.expect("the audit table")
    };
    keep("auth_audit.out", &format!("{}\n", rows.join("\n")));
}

fn append(path: &Path, text: &str) {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Returns the occurrences of recorded values in all other files of a folder, and the number of
/// values and of lines that were read.
pub fn scan(folder: &Path) -> (Vec<Finding>, usize, usize) {
    let (mut values, mut logs) = (BTreeMap::new(), Vec::new());
    for entry in std::fs::read_dir(folder).expect("the folder of the run") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|suffix| suffix == VALUES) {
            values.extend(read_values(&path));
        } else if path.is_file() {
            logs.push(path);
        }
    }
    logs.sort();
    let patterns: Vec<&String> = values.keys().collect();
    let automaton = AhoCorasick::new(&patterns).expect("an automaton");
    let (mut findings, mut lines) = (Vec::new(), 0);
    for path in logs {
        let file = std::fs::File::open(&path).expect("a log can be opened");
        for (at, line) in BufReader::new(file).split(b'\n').enumerate() {
            let line = line.expect("a log can be read");
            lines += 1;
            let Some(found) = automaton.find(&line) else {
                continue;
            };
            let value = patterns[found.pattern().as_usize()];
            let text = String::from_utf8_lossy(&line);
            findings.push(Finding {
                kind: values[value].clone(),
                place: format!("{}:{}", path.display(), at + 1),
                line: text.chars().take(SHOWN_BYTES).collect(),
            });
        }
    }
    (findings, values.len(), lines)
}

/// Returns the values of a file with their kinds.
fn read_values(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).expect("values can be read");
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        Some((text("value")?, text("kind")?))
    };
    text.lines().filter_map(read).collect()
}
