//! How large Postern may be. A part that grows is a decision: the test fails when a ceiling is
//! exceeded, and nothing lowers the ceilings by itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The largest permitted value of each count.
const CEILINGS: Sizes = Sizes {
    product_lines: 70_500,
    test_lines: 64_000,
    rust_lines: 167_400,
    markdown_files: 36,
    markdown_words: 49_000,
    configuration_keys: 431,
    locked_packages: 534,
};

/// What there is to own. Tables that `bench` writes are not counted.
#[derive(Debug, Default)]
struct Sizes {
    /// Rust without comments, blank lines and tests.
    product_lines: usize,
    /// Rust of tests without comments and blank lines; all of `tests` and `bench`.
    test_lines: usize,
    /// All lines of Rust files, the empty one after the last line break included.
    rust_lines: usize,
    markdown_files: usize,
    markdown_words: usize,
    /// Properties of all objects in the `*.schema.json`.
    configuration_keys: usize,
    locked_packages: usize,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
}

/// Returns the files that git knows, relative to the root.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let names = String::from_utf8(output.stdout).expect("UTF-8");
    names
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|file| root().join(file).is_file())
        .collect()
}

/// Whether a Rust file is a test by its path.
fn is_test(file: &Path) -> bool {
    let names: Vec<&str> = file
        .iter()
        .filter_map(|name| name.to_str())
        .map(|name| name.trim_end_matches(".rs"))
        .collect();
    let stem = names.last().copied().unwrap_or_default();
    ["tests", "bench"].contains(&names[0])
        || stem.ends_with("_test")
        || stem.ends_with("_tests")
        || names
            .iter()
            .any(|name| ["test", "tests", "testing", "benches", "suite", "fuzz"].contains(name))
}

fn count_rust(file: &Path, text: &str, sizes: &mut Sizes) {
    let is_test_file = is_test(file);
    let mut in_tests = false;
    for line in text.split('\n') {
        let code = line.trim();
        in_tests |= code.starts_with("#[cfg(test)]");
        sizes.rust_lines += 1;
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        if is_test_file || in_tests {
            sizes.test_lines += 1;
        } else {
            sizes.product_lines += 1;
        }
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
    let mut sizes = Sizes::default();
    for file in files() {
        let name = file.to_str().unwrap_or_default();
        let read = || {
            String::from_utf8_lossy(&std::fs::read(root().join(&file)).expect("a file"))
                .into_owned()
        };
        if name.ends_with(".rs") {
            count_rust(&file, &read(), &mut sizes);
        } else if name.ends_with(".md") && !name.starts_with("bench/results/") {
            sizes.markdown_files += 1;
            sizes.markdown_words += read().split_whitespace().count();
        } else if name.ends_with(".schema.json") {
            sizes.configuration_keys += properties(&read().parse().expect("JSON"));
        } else if name == "Cargo.lock" {
            sizes.locked_packages = read().matches("[[package]]").count();
        }
    }
    sizes
}

#[test]
fn sizes_are_below_their_ceilings() {
    let now = count();
    let pairs = [
        ("product_lines", now.product_lines, CEILINGS.product_lines),
        ("test_lines", now.test_lines, CEILINGS.test_lines),
        ("rust_lines", now.rust_lines, CEILINGS.rust_lines),
        (
            "markdown_files",
            now.markdown_files,
            CEILINGS.markdown_files,
        ),
        (
            "markdown_words",
            now.markdown_words,
            CEILINGS.markdown_words,
        ),
        (
            "configuration_keys",
            now.configuration_keys,
            CEILINGS.configuration_keys,
        ),
        (
            "locked_packages",
            now.locked_packages,
            CEILINGS.locked_packages,
        ),
    ];
    for (name, is, ceiling) in pairs {
        assert!(is > 0, "{name} were not counted");
        assert!(
            is <= ceiling,
            "{name}: {is}, the ceiling is {ceiling}. Raising one needs an ADR (tests/suite/ceilings.rs): {now:?}"
        );
    }
}
