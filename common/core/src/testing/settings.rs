//! The reference, the JSON schema and the shipped file of declared settings
//! ([`settings!`](crate::settings)).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::schema::FieldDescription;
use super::{assert_schema_written, plain_text, shared_objects, written};
use crate::decode::{AcceptedField, AcceptedFields, Mistakes, Node, Object, Value, toml};

/// The sections of the reference that describe keys of all programs.
const SHARED_SECTIONS: [&str; 2] = ["log", "all processes"];

const DOCUMENT: &str = "docs/reference/configuration.md";

/// The settings of a program, as its readers declare them.
#[derive(Clone, Debug)]
pub struct DeclaredSettings(AcceptedFields);

impl DeclaredSettings {
    /// Records the settings. `forms` is a text with each value on which the keys of its table depend,
    /// such as a provider of each kind; other keys need not be set.
    pub fn record<T>(forms: &str, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Self {
        let mistakes = Mistakes::recording_settings();
        let root = toml(forms, &mistakes).expect("the forms are TOML");
        let _config = mistakes.object(&root, read);
        let accepted = mistakes.accepted_fields();
        mistakes.finish(Some(())).expect("every key is known");
        Self(accepted)
    }

    /// Asserts that the table between `<!-- keys: SECTION -->` and `<!-- end -->` of
    /// `docs/reference/configuration.md` is that of the declarations, without the rows of the sections
    /// of all programs. With the variable `POSTERN_TEST_WRITE_SCHEMAS`, writes it instead.
    pub fn assert_documented(&self, section: &str) {
        assert_table(&self.0, section, &[]);
    }

    /// Asserts that a file contains the JSON schema.
    pub fn assert_schema(&self, title: &str, path: &Path) {
        let mut schema = self.0.to_schema(title, &descriptions(&self.0));
        shared_objects::share(&mut schema);
        assert_schema_written(path, &schema);
    }

    /// Asserts that the values of a file in `conf` are the declared defaults, except lists, and
    /// that its lines `# key = value` and `# [table]` are accepted. Variables need not be set.
    pub fn assert_shipped<T>(&self, file: &str, read: impl FnOnce(&Object<'_>) -> Option<T>) {
        let text = std::fs::read_to_string(repository("conf").join(file)).expect("a file");
        let mistakes = Mistakes::default();
        let root = toml(&text, &mistakes).expect("TOML");
        self.assert_defaults(&root, "");
        let lines = text.lines().map(|line| {
            let setting = line.strip_prefix("# ").filter(|line| is_setting(line));
            setting.unwrap_or(line)
        });
        let lines: Vec<&str> = lines.collect();
        let root = toml(&lines.join("\n"), &mistakes).expect("TOML without comments");
        let _config = mistakes.object(&root, read);
        let mut refused = mistakes.finish(Some(())).err().unwrap_or_default();
        refused.retain(|mistake| mistake.code != "invalid_secret");
        assert!(refused.is_empty(), "{file}: {refused:#?}");
    }

    fn assert_defaults(&self, node: &Node, path: &str) {
        if let Value::Object(entries) = &node.value {
            for (name, value) in entries {
                let path = [path, name].join(if path.is_empty() { "" } else { "." });
                self.assert_defaults(value, &path);
            }
            return;
        }
        let declared = self.0.0.get(path).and_then(|field| field.declared.as_ref());
        let default = declared.and_then(|declared| declared.default.as_ref());
        // An empty list is no default that a file would show.
        if let Some(default) = default.filter(|default| **default != Value::Array(Vec::new())) {
            let default = Node::new(default.clone()).to_json();
            assert_eq!(node.to_json(), default, "{path} has another default");
        }
    }
}

/// Asserts that the table of a section is that of the declarations, as
/// [`DeclaredSettings::assert_documented`] does. `tables` are the paths of the tables and keys that it
/// describes; empty for all.
pub(super) fn assert_table(accepted: &AcceptedFields, section: &str, tables: &[&str]) {
    let path = repository(DOCUMENT);
    let document = document();
    let mut rows = rows(accepted, tables);
    if !SHARED_SECTIONS.contains(&section) {
        let shared = SHARED_SECTIONS.map(|section| table(&document, section));
        rows.retain(|row| !shared.iter().any(|table| table.contains(row)));
    }
    let head = "| key | type | default | meaning |\n|---|---|---|---|\n";
    let printed = format!("\n\n{head}{}\n\n", rows.join("\n"));
    let old = table(&document, section);
    let marker = marker(section);
    let [old, new] = [old, &printed].map(|table| format!("{marker}{table}"));
    written(&path, &document.replace(&old, &new));
}

/// Returns the reference of the configuration.
pub(super) fn document() -> String {
    std::fs::read_to_string(repository(DOCUMENT)).expect("the reference can be read")
}

/// Returns the meanings and defaults of the declared settings.
pub(super) fn descriptions(accepted: &AcceptedFields) -> BTreeMap<String, FieldDescription> {
    let described = |(path, field): (&String, &AcceptedField)| {
        if path.is_empty() {
            return None;
        }
        let declared = field.declared.as_ref()?;
        let words = declared.default_words.strip_prefix('`');
        let word = words.and_then(|text| text.strip_suffix('`'));
        let word = word.filter(|text| !text.contains('`')).map(str::to_owned);
        let default = declared.default.as_ref().map(literal).or(word);
        let meaning = plain_text(&declared.meaning);
        Some((path.clone(), FieldDescription { meaning, default }))
    };
    accepted.0.iter().filter_map(described).collect()
}

/// Returns the rows of these tables, or of all, in the order of the readers. Keys of other
/// tables need not be declared.
fn rows(accepted: &AcceptedFields, tables: &[&str]) -> Vec<String> {
    let is_key = |(path, _): &(&String, &AcceptedField)| {
        !path.is_empty() && !path.ends_with("[]") && !path.ends_with("NAME")
    };
    let mut fields: Vec<_> = accepted.0.iter().filter(is_key).collect();
    fields.sort_by_key(|(_, field)| field.position);
    // The table in which a declaration was printed, with its cells.
    let mut printed = HashMap::new();
    let mut rows: Vec<(Vec<&str>, &str, String)> = Vec::new();
    for (path, field) in fields {
        let is_printed = tables.is_empty() || tables.iter().any(|table| is_within(path, table));
        let Some(declared) = &field.declared else {
            assert!(!is_printed, "{path} is not declared");
            continue;
        };
        let (table, name) = path.rsplit_once('.').unwrap_or(("", path));
        let default = declared.default.as_ref().map(markdown);
        let default = default.unwrap_or_else(|| declared.default_words.to_owned());
        let (type_name, meaning) = (type_name(accepted, path), &declared.meaning);
        let mut cells = format!("| {type_name} | {default} | {meaning} |");
        let own = (table, cells.clone());
        let first = printed.entry((declared.owner, name)).or_insert(own);
        if !declared.owner.is_empty() && first.0 != table && first.1 == cells {
            cells = format!("| | | as `{}.*` |", first.0);
        }
        if !is_printed {
            continue;
        }
        match rows.last_mut() {
            Some((keys, last, other)) if *last == table && *other == cells => keys.push(path),
            Some(_) | None => rows.push((vec![path], table, cells)),
        }
    }
    let row = |(keys, _, cells): (Vec<&str>, &str, String)| {
        format!("| `{}` {cells}", keys.join("`, `")).replace("|  |", "| |")
    };
    rows.into_iter().map(row).collect()
}

/// Returns whether a path is this one or below it. One that ends with a dot is that of the keys below.
fn is_within(path: &str, table: &str) -> bool {
    let rest = path.strip_prefix(table);
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    rest.is_some_and(|rest| table.ends_with('.') || is_below(rest))
}

fn type_name(accepted: &AcceptedFields, path: &str) -> String {
    let Some(field) = accepted.0.get(path) else {
        return "any".to_owned();
    };
    if let Some(name) = field.type_name {
        return name.to_owned();
    }
    let mut names: Vec<String> = Vec::new();
    for form in &field.forms {
        let bound = |name: &str| {
            form[name]
                .as_number()
                .map(|bound| grouped(&bound.to_string()))
        };
        let name = match (form["type"].as_str(), bound("minimum"), bound("maximum")) {
            (None, ..) => {
                let words = form["enum"].as_array().into_iter().flatten();
                let words = words
                    .chain(form.get("const"))
                    .map(|word| match word.as_str() {
                        Some(word) => format!("`{word}`"),
                        None => format!("`{word}`"),
                    });
                words.collect::<Vec<_>>().join(", ")
            }
            (Some("integer"), Some(_), None) => "size".to_owned(),
            (Some("integer"), _, Some(max)) if max == "1,000,000,000" => "count".to_owned(),
            (Some("integer" | "number"), Some(min), Some(max)) => format!("{min} to {max}"),
            (Some("object"), ..) => "table".to_owned(),
            (Some("array"), ..) => list_of(&type_name(accepted, &format!("{path}[]"))),
            (Some(name), ..) => match form["pattern"].as_str() {
                Some("^[0-9]+(ms|s|m|h|d)$") => "duration".to_owned(),
                Some("^[0-9]+(B|KiB|MiB|GiB)?$") => "size".to_owned(),
                Some("^https?://") => "URL".to_owned(),
                Some("^.+:[0-9]+$") => "`host:port`".to_owned(),
                Some(_) | None => name.to_owned(),
            },
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

fn list_of(item: &str) -> String {
    match item {
        "table" => "tables".to_owned(),
        "string" | "any" => "list".to_owned(),
        item if item.starts_with('`') => format!("list of {item}"),
        item => format!("list of {item}s"),
    }
}

/// Returns a number with commas between thousands.
fn grouped(number: &str) -> String {
    let mut text = String::new();
    for (index, digit) in number.trim_end_matches(".0").chars().enumerate() {
        let rest = number.len() - index;
        if index > 0 && rest.is_multiple_of(3) && !number.contains('.') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a default as a cell of the reference.
fn markdown(value: &Value) -> String {
    if let Value::String(text) = value
        && text.is_empty()
    {
        return "empty".to_owned();
    }
    let Value::Array(items) = value else {
        return format!("`{}`", literal(value));
    };
    let is_text = |item: &Node| matches!(item.value, Value::String(_));
    if !items.iter().all(is_text) {
        return format!("`{}`", literal(value));
    }
    if items.is_empty() {
        return "none".to_owned();
    }
    let items = items.iter().map(|item| markdown(&item.value));
    items.collect::<Vec<_>>().join(", ")
}

/// Returns a value as TOML writes it, strings without quotes.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null
        | Value::Bool(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Array(_)
        | Value::Object(_) => inline(value),
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| inline(&item.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entry = |(name, node): &(String, Node)| format!("{name} = {}", inline(&node.value));
            let entries: Vec<_> = entries.iter().map(entry).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {
            Node::new(value.clone()).to_json().to_string()
        }
    }
}

/// Returns what stands between the two markers of a section.
fn table<'a>(document: &'a str, section: &str) -> &'a str {
    let (_, after) = document
        .split_once(&marker(section))
        .expect("the section has a marker");
    let (table, _) = after.split_once("<!-- end -->").expect("the section ends");
    table
}

/// Returns the line before the table of a section.
fn marker(section: &str) -> String {
    format!("<!-- keys: {section} -->")
}

/// Returns whether a line is `key = value`, `[table]` or `[[table]]`.
fn is_setting(line: &str) -> bool {
    let is_name = |text: &str| {
        let mut bytes = text.bytes();
        !text.is_empty() && bytes.all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte))
    };
    let table = line
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let name = table.map(|name| name.trim_matches(['[', ']']));
    name.or_else(|| line.split_once(" = ").map(|(key, _)| key))
        .is_some_and(is_name)
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}
