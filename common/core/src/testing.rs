//! Reports of tests to their runner, in addition to pass and fail. `tests/run` names a file for
//! each kind of report and prints it after the tests.

mod captured_log;
mod command_tree;
mod schema;
mod settings;
mod shared_objects;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

pub use captured_log::CapturedLog;
pub use command_tree::assert_commands_documented;
pub use settings::DeclaredSettings;

use crate::config::Env;
use crate::decode::{self, AcceptedFields, Mistakes, Node, Object, Value};
use schema::FieldDescription;

/// Reports a test that cannot run on this machine, with the reason.
pub fn skipped(test: &str, reason: &str) {
    report("POSTERN_TEST_SKIPPED", &format!("{test}: {reason}"));
}

/// Asserts that an object has these members, and perhaps others.
#[track_caller]
pub fn assert_members(object: &serde_json::Value, expected: &serde_json::Value) {
    for (name, value) in expected.as_object().into_iter().flatten() {
        assert_eq!(&object[name.as_str()], value, "{name} of {object}");
    }
}

/// Asserts a response that is a problem: its status, its code, and the place of its first mistake, if it
/// has any.
#[track_caller]
pub fn assert_problem(
    (status, problem): &(u16, serde_json::Value),
    expected: u16,
    code: &str,
    pointer: Option<&str>,
) {
    let first = problem["errors"][0]["pointer"].as_str();
    let stated = (problem["status"].as_u64(), problem["code"].as_str());
    let expected = (expected, (Some(u64::from(expected)), Some(code)), pointer);
    assert_eq!((*status, stated, first), expected, "{problem}");
}

/// Reports a measurement that no test asserts.
pub fn note(text: &str) {
    report("POSTERN_TEST_NOTES", text);
}

/// Returns an environment variable that the test runner sets.
#[must_use]
#[track_caller]
pub fn required(variable: &str) -> String {
    let env = Env::of_process();
    let value = env.get(variable).map(str::to_owned);
    value.unwrap_or_else(|| {
        panic!("{variable} is not set: run ./tests/run, which starts what the tests need")
    })
}

/// Returns the path of a published test vector file in `tests/vectors`.
#[must_use]
pub fn vectors(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors");
    let path = Path::new(folder).join(name);
    assert!(path.is_file(), "{} does not exist", path.display());
    path
}

/// The tables `[identity]` with every key, for samples of configuration files.
pub const IDENTITY_TABLES: &str = r#"
[identity]
token_bytes = "16KiB"
leeway = "5s"
[identity.actor]
issuer = "https://actor.example"
jwks_url = "https://actor.example/keys"
[identity.service]
issuer = "https://service.example"
jwks_url = "https://service.example/keys"
[[identity.issuer]]
kind = "service"
issuer = "https://login.example"
jwks_url = "https://login.example/keys"
clients = ["partner"]
audiences = ["postern"]
token_use = ["access"]
client_claim = "azp"
service_claim = "azp"
services = ["batch"]
[[identity.issuer]]
kind = "user"
issuer = "https://people.example"
clients = ["web"]
groups_claim = "realm_access.roles"
"#;

/// A sample of a configuration file that sets every key in every form, and the sections of
/// `docs/reference/configuration.md` that describe the keys.
#[derive(Clone, Copy, Debug)]
pub struct ConfigurationReference<'a> {
    /// The sample, in TOML.
    pub sample: &'a str,
    /// The generated tables of the document: the section, and the paths of its tables and keys.
    pub generated: &'a [(&'a str, &'a [&'a str])],
    /// The headings of the document below which the tables stand. Each row has the key's path in
    /// backticks, such as `listen[].tls.key`, or those of several keys, their type, default and
    /// meaning. A row such as
    /// `route[].*` "as `defaults.*`" stands for the rows of another table.
    pub sections: &'a [&'a str],
}

impl ConfigurationReference<'_> {
    /// Asserts that the generated tables are those of the declarations, or writes them, and that the
    /// document has a row for every key that the configuration may have, and for no other. Returns
    /// what the readers accept.
    pub fn assert_complete<T>(
        &self,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
    ) -> AcceptedFields {
        let mistakes = Mistakes::recording_fields();
        let root = decode::toml(self.sample, &mistakes).expect("the sample is TOML");
        let _config = mistakes.object(&root, read);
        let accepted = mistakes.accepted_fields();
        let is_field = |path: &&String| !path.is_empty() && !path.ends_with("[]");
        let known: BTreeSet<_> = accepted.0.keys().filter(is_field).cloned().collect();
        let wrong = mistakes.finish(Some(())).err().unwrap_or_default();
        assert!(wrong.is_empty(), "the sample is refused: {wrong:#?}");
        let mut set = BTreeSet::new();
        collect_keys(&root, "", &known, &mut set);
        let unset: Vec<_> = known.difference(&set).collect();
        assert!(unset.is_empty(), "not in the sample: {unset:#?}");
        for (section, tables) in self.generated {
            settings::assert_table(&accepted, section, tables);
        }
        let documented: BTreeSet<String> = self.descriptions().into_keys().collect();
        // The values of a table with user-defined keys are described in its row.
        let missing = known.difference(&documented);
        let missing: Vec<_> = missing.filter(|key| !key.ends_with(".NAME")).collect();
        let unknown: Vec<_> = documented.difference(&known).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{:?}: keys without a row: {missing:#?}; rows without a key: {unknown:#?}",
            self.sections
        );
        accepted
    }

    /// Returns the JSON schema of what the readers accept, with the meanings and defaults of the
    /// document.
    #[must_use]
    pub fn schema(&self, title: &str, accepted: &AcceptedFields) -> serde_json::Value {
        let mut descriptions = self.descriptions();
        for (path, description) in settings::descriptions(accepted) {
            let declared = accepted.0[&path].declared.as_ref();
            // The comment of a table does not say what a key is for, if several have such a table.
            if declared.is_some_and(|declared| declared.owner.is_empty()) {
                descriptions.entry(path).or_insert(description);
            } else {
                descriptions.insert(path, description);
            }
        }
        let mut schema = accepted.to_schema(title, &descriptions);
        shared_objects::share(&mut schema);
        schema
    }

    /// Returns the descriptions of all keys that the document has.
    fn descriptions(&self) -> BTreeMap<String, FieldDescription> {
        let document = settings::document();
        let sections = self.sections.iter();
        let rows = sections.flat_map(|section| described_keys(&document, section));
        with_copies(rows.collect())
    }
}

/// Asserts that a file contains this schema. With the variable `POSTERN_TEST_WRITE_SCHEMAS`, writes
/// it instead.
pub fn assert_schema_written(path: &Path, schema: &serde_json::Value) {
    written(path, &format!("{schema:#}\n"));
}

/// Asserts that a generated file has this text, or writes it.
fn written(path: &Path, text: &str) {
    let env = Env::of_process();
    if env.get("POSTERN_TEST_WRITE_SCHEMAS").is_some() {
        std::fs::write(path, text).expect("the file can be written");
    }
    let found = std::fs::read_to_string(path).expect("the file can be read");
    assert!(
        found == text,
        "{} is not what the readers accept: run this test with POSTERN_TEST_WRITE_SCHEMAS=1",
        path.display()
    );
}

/// Adds the path of each key of a node, with `NAME` for names that the reader does not know.
fn collect_keys(node: &Node, path: &str, known: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match &node.value {
        Value::Object(entries) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (name, value) in entries {
                let key = Some(format!("{path}{dot}{name}")).filter(|key| known.contains(key));
                let key = key.unwrap_or_else(|| format!("{path}{dot}NAME"));
                collect_keys(value, &key, known, found);
                found.insert(key);
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_keys(item, &format!("{path}[]"), known, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
    }
}

/// Returns the keys of the table rows between a heading and the next one of the same level.
fn described_keys(document: &str, section: &str) -> BTreeMap<String, FieldDescription> {
    let level = section.split(' ').next().unwrap_or_default();
    let is_section = |line: &&str| line.trim_end() == section;
    let is_next = |line: &&str| line.split(' ').next() == Some(level);
    let mut lines = document.lines().skip_while(|line| !is_section(line));
    lines.next().expect("the document has the section");
    let row = |line: &str| {
        let (keys, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        let mut cells = rest.trim_end_matches('|').splitn(3, '|').map(str::trim);
        let (_type, default, meaning) = (cells.next()?, cells.next()?, cells.next()?);
        let literal = default.strip_prefix('`');
        let literal = literal.and_then(|text| text.strip_suffix('`'));
        let literal = literal.filter(|text| !text.contains('`'));
        let description = FieldDescription {
            meaning: plain_text(meaning),
            default: literal.map(str::to_owned),
        };
        let keys: Vec<_> = keys.split("`, `").map(str::to_owned).collect();
        Some(keys.into_iter().map(move |key| (key, description.clone())))
    };
    let rows = lines.take_while(|line| !is_next(line)).filter_map(row);
    rows.flatten().collect()
}

/// Replaces each row such as `route[].*` by those of the table that it names, unless a key has a row
/// of its own. If such a row has a default, the keys directly below it have no other.
fn with_copies(mut rows: BTreeMap<String, FieldDescription>) -> BTreeMap<String, FieldDescription> {
    let is_pattern = |key: &String, _: &mut FieldDescription| key.ends_with(".*");
    let patterns: Vec<_> = rows.extract_if(.., is_pattern).collect();
    for (pattern, copied) in patterns {
        let from = copied.meaning.strip_prefix("as ");
        let from = from.and_then(|text| text.split_once('*'));
        let (from, _) = from.unwrap_or_else(|| panic!("{pattern} has no \"as `…*`\""));
        let copy = |(key, description): (&String, &FieldDescription)| {
            let (rest, mut description) = (key.strip_prefix(from)?, description.clone());
            if copied.default.is_some() && !rest.contains(['.', '[']) {
                description.default = None;
            }
            Some((pattern.replace('*', rest), description))
        };
        let copies: Vec<_> = rows.iter().filter_map(copy).collect();
        assert!(!copies.is_empty(), "{pattern}: nothing is below {from}");
        for (key, description) in copies {
            rows.entry(key).or_insert(description);
        }
    }
    rows
}

/// Removes the code spans and links of Markdown.
fn plain_text(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once('[')
        && let Some((label, after)) = after.split_once("](")
        && let Some((_target, next)) = after.split_once(')')
    {
        text.extend([before, label]);
        rest = next;
    }
    text.push_str(rest);
    text.replace('`', "")
}

fn report(variable: &str, text: &str) {
    let env = Env::of_process();
    let Some(path) = env.get(variable) else {
        return;
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    let mut file = file.expect("the report file can be opened");
    let written = file.write_all(format!("{text}\n").as_bytes());
    written.expect("the report file can be written");
}
