//! How large Postern may be. A part that grows is a decision: the test fails when a ceiling is
//! exceeded, and nothing lowers the ceilings by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use postern_harness::paths::repository;
use postern_harness::systems::succeed;
use serde_json::Value;

/// The largest permitted value of each count. Tables that `bench` writes are not counted.
const CEILINGS: [(&str, usize); 7] = [
    // Rust without comments, blank lines and tests.
    ("product_lines", 68_000),
    // Rust of tests without comments and blank lines; all of `tests` and `bench`.
    ("test_lines", 61_400),
    // All lines of Rust files, the empty one after the last line break included.
    ("rust_lines", 159_300),
    ("markdown_files", 36),
    ("markdown_words", 49_000),
    // Properties of all objects in the `*.schema.json`.
    ("configuration_keys", 430),
    ("locked_packages", 534),
];

/// What there is to own.
type Sizes = BTreeMap<&'static str, usize>;

/// Returns the files that git knows, relative to the root.
fn files() -> Vec<PathBuf> {
    let mut git = Command::new("git");
    let names = succeed(git.args(["ls-files", "-z"]).current_dir(repository()));
    let files = names.split_terminator('\0').map(PathBuf::from);
    let exists = |file: &PathBuf| repository().join(file).is_file();
    files.filter(exists).collect()
}

/// Whether a Rust file is a test by its path.
fn is_test(file: &Path) -> bool {
    let names = file.iter().filter_map(|name| name.to_str());
    let names: Vec<&str> = names.map(|name| name.trim_end_matches(".rs")).collect();
    let stem = names.last().copied().unwrap_or_default();
    let tests = ["test", "tests", "testing", "benches", "suite", "fuzz"];
    ["tests", "bench"].contains(&names[0])
        || stem.ends_with("_test")
        || stem.ends_with("_tests")
        || names.iter().any(|name| tests.contains(name))
}

fn count_rust(file: &Path, text: &str, sizes: &mut Sizes) {
    let is_test_file = is_test(file);
    let mut in_tests = false;
    for line in text.split('\n') {
        let code = line.trim();
        in_tests |= code.starts_with("#[cfg(test)]");
        *sizes.entry("rust_lines").or_default() += 1;
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        let is_test_line = is_test_file || in_tests;
        let kind = if is_test_line {
            "test_lines"
        } else {
            "product_lines"
        };
        *sizes.entry(kind).or_default() += 1;
        if line.trim_end() == "}" || (code.starts_with("mod ") && code.ends_with(';')) {
            in_tests = false;
        }
    }
}

fn properties(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let own = fields.get("properties").and_then(Value::as_object);
            own.map_or(0, serde_json::Map::len) + fields.values().map(properties).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(properties).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn count() -> Sizes {
    let mut sizes = Sizes::new();
    for file in files() {
        let name = file.to_str().unwrap_or_default();
        let read = || {
            let bytes = std::fs::read(repository().join(&file)).expect("a file");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut add = |count, more| *sizes.entry(count).or_default() += more;
        if name.ends_with(".rs") {
            count_rust(&file, &read(), &mut sizes);
        } else if name.ends_with(".md") && !name.starts_with("bench/results/") {
            add("markdown_files", 1);
            add("markdown_words", read().split_whitespace().count());
        } else if name.ends_with(".schema.json") {
            add(
                "configuration_keys",
                properties(&read().parse().expect("JSON")),
            );
        } else if name == "Cargo.lock" {
            add("locked_packages", read().matches("[[package]]").count());
        }
    }
    sizes
}

#[test]
fn sizes_are_below_their_ceilings() {
    let now = count();
    for (name, ceiling) in CEILINGS {
        let is = now[name];
        assert!(
            is <= ceiling,
            "{name}: {is}, the ceiling is {ceiling}. Raising one needs an ADR (tests/suite/ceilings.rs): {now:?}"
        );
    }
}
