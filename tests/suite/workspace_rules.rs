//! Workspace rules that neither the compiler nor clippy checks: dependencies between packages,
//! where versions are declared, and file sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Maximum lines of a Rust file.
const MAX_FILE_LINES: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
        .to_owned()
}

fn toml(path: &Path) -> toml::Table {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.parse()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the packages of the workspace, as cargo reports them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a name")
}

fn manifest(package: &Value) -> &Path {
    Path::new(package["manifest_path"].as_str().expect("a path"))
}

/// Returns the allowed users of each package, which are declared in `deny.toml` for cargo-deny and
/// this test.
fn allowed() -> BTreeMap<String, Vec<String>> {
    let rules = toml(&root().join("deny.toml"));
    let deny = rules["bans"]["deny"].as_array().expect("bans.deny");
    deny.iter()
        .filter_map(|rule| {
            let wrappers = rule.get("wrappers")?.as_array().expect("wrappers");
            let wrappers = wrappers
                .iter()
                .map(|name| name.as_str().expect("a name").to_owned())
                .collect();
            Some((rule["crate"].as_str().expect("crate").to_owned(), wrappers))
        })
        .collect()
}

#[test]
fn services_depend_on_common_and_not_on_each_other() {
    let (packages, allowed) = (packages(), allowed());
    let is_ours = |used: &str| packages.iter().any(|package| name(package) == used);
    let mut wrong = Vec::new();
    for package in &packages {
        let user = name(package);
        for used in package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter()
            .map(name)
        {
            if is_ours(used)
                && !allowed
                    .get(used)
                    .is_some_and(|users| users.iter().any(|name| name == user))
            {
                wrong.push(format!(
                    "{user} may not depend on {used} (deny.toml, bans.deny)"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for used in allowed.keys() {
        assert!(
            is_ours(used),
            "deny.toml: {used} is not a package of the workspace"
        );
    }
}

#[test]
fn versions_and_lints_are_in_the_root_manifest() {
    let mut wrong = Vec::new();
    for package in packages() {
        let table = toml(manifest(&package));
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = table.get(section).and_then(toml::Value::as_table);
            for (dependency, how) in dependencies.into_iter().flatten() {
                if how.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    wrong.push(format!(
                        "{}: {section}.{dependency} has a version of its own",
                        name(&package)
                    ));
                }
            }
        }
        let lints = table.get("lints").and_then(|lints| lints.get("workspace"));
        if lints.and_then(toml::Value::as_bool) != Some(true) {
            wrong.push(format!(
                "{}: lacks `[lints] workspace = true`",
                name(&package)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_below_the_size_limit() {
    let mut wrong = Vec::new();
    for package in packages() {
        let folder = manifest(&package)
            .parent()
            .expect("a manifest has a parent folder");
        let mut files = Vec::new();
        for part in ["src", "suite", "tests", "benches", "examples"] {
            rust_files(&folder.join(part), &mut files);
        }
        assert!(!files.is_empty(), "{} has no source", name(&package));
        for file in files {
            let lines = std::fs::read_to_string(&file)
                .expect("sources are UTF-8")
                .lines()
                .count();
            if lines > MAX_FILE_LINES {
                wrong.push(format!(
                    "{}: {lines} lines; {MAX_FILE_LINES} are the ceiling",
                    file.display()
                ));
            }
            let stem = file
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            if ["mod", "util", "utils", "helper", "helpers", "misc"].contains(&stem) {
                wrong.push(format!(
                    "{}: a file is named after its contents",
                    file.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// End-to-end tests wait for events, not for time to pass.
/// Maximum packages of the standalone program. The crates that the product is built on account for
/// about 350 of them, the export of spans for twelve, and the workspace for eight.
const MAX_STANDALONE_PACKAGES: usize = 430;

/// Packages that the standalone program does without, so that the first build stays short.
const EXPENSIVE_PACKAGES: [&str; 4] =
    ["aws-config", "aws-sdk-sts", "sqlx-macros", "icu_properties"];

/// Packages whose names begin so are not linked by the gateway, which has neither a database nor an
/// identity pool.
const NOT_IN_THE_GATEWAY: [&str; 5] = [
    "sqlx",
    "libsqlite3-sys",
    "aws-sdk-",
    "aws-smithy-",
    "aws-config",
];

/// Returns the names of the packages that a program is made of, each with its version.
fn tree(package: &str, edges: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--package", package])
        .args(["--edges", edges, "--prefix", "none"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = tree.lines();
    lines
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect()
}

#[test]
fn standalone_does_without_expensive_packages() {
    let packages = tree("postern", "normal,build");
    let name = |package: &String| package.split(' ').next().unwrap_or_default().to_owned();
    let mut unexpected = packages.iter().map(name);
    let unexpected = unexpected.find(|name| EXPENSIVE_PACKAGES.contains(&name.as_str()));
    assert_eq!(unexpected, None);
    assert!(
        (200..=MAX_STANDALONE_PACKAGES).contains(&packages.len()),
        "{} packages",
        packages.len()
    );
}

#[test]
fn gateway_links_neither_a_database_nor_the_aws_sdk() {
    let is_other = |package: &&String| {
        let mut names = NOT_IN_THE_GATEWAY.iter();
        names.any(|name| package.starts_with(name))
    };
    let gateway = tree("postern-proxy", "normal");
    assert_eq!(gateway.iter().find(is_other), None);
    // The names are those of packages that others link.
    let auth = tree("postern-auth", "normal");
    assert!(auth.iter().filter(is_other).count() > 5, "{auth:?}");
}

#[test]
fn end_to_end_tests_never_sleep() {
    let mut files = Vec::new();
    for part in ["src", "suite"] {
        rust_files(&root().join("tests").join(part), &mut files);
    }
    let sleeps = concat!("time::", "sleep");
    // A program that applies faults for some time, with clients that send requests at a rate, and a
    // process that is suspended for some time.
    let timed = ["tests/src/cluster", "tests/suite/notify_clocks.rs"].map(|path| root().join(path));
    files.retain(|file| !timed.iter().any(|path| file.starts_with(path)));
    for file in files {
        let text = std::fs::read_to_string(&file).expect("sources are UTF-8");
        assert!(!text.contains(sleeps), "{} sleeps", file.display());
    }
}

/// Returns the words of a variable in `tests/run`.
fn words_of_run(variable: &str) -> Vec<String> {
    let run = std::fs::read_to_string(root().join("tests/run")).expect("the variable is defined");
    let (_, rest) = run
        .split_once(&format!("\n{variable}=\""))
        .expect("the variable");
    let (words, _) = rest.split_once('"').expect("the end of the variable");
    words.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn long_run_selects_existing_tests_and_variables() {
    let mut files = Vec::new();
    packages()
        .iter()
        .filter_map(|package| manifest(package).parent())
        .for_each(|folder| {
            ["src", "suite"]
                .iter()
                .for_each(|part| rust_files(&folder.join(part), &mut files));
        });
    let texts = files
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("sources are UTF-8"));
    let sources = texts.collect::<String>();
    let functions: Vec<&str> = sources
        .lines()
        .filter_map(|line| {
            line.trim_start_matches("async ")
                .strip_prefix("fn ")?
                .split('(')
                .next()
        })
        .collect();
    for name in words_of_run("LONG_TESTS") {
        assert!(
            functions.iter().any(|function| function.contains(&name)),
            "no test is called {name}"
        );
    }
    for figure in words_of_run("LONG_FIGURES") {
        let (variable, _) = figure.split_once('=').expect("NAME=value");
        assert!(
            sources.contains(&format!("\"{variable}\"")),
            "no test reads {variable}"
        );
    }
}

/// Returns the link targets of a document within this repository.
fn links(document: &str) -> impl Iterator<Item = &str> {
    let targets = document
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !target.contains("://"))
}

/// Returns the anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_document_link_resolves() {
    let output = Command::new("git")
        .args(["ls-files", "*.md"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let documents = String::from_utf8(output.stdout).expect("names are UTF-8");
    let mut anchors = 0;
    let mut wrong = Vec::new();
    for name in documents.lines() {
        let path = root().join(name);
        let folder = path.parent().expect("a document has a parent folder");
        for target in links(&std::fs::read_to_string(&path).expect("documents are UTF-8")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                path.clone()
            } else {
                folder.join(file)
            };
            let is_there = match std::fs::read_to_string(&file) {
                Ok(text) if !heading.is_empty() => {
                    anchors += 1;
                    let mut headings = text.lines().filter(|line| line.starts_with('#'));
                    headings.any(|line| anchor(line) == heading)
                }
                _ => file.exists(),
            };
            if !is_there {
                wrong.push(format!("{name}: {target} is not there"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(anchors > 50, "{anchors}");
}

#[test]
fn shell_scripts_have_no_warning_of_shellcheck() {
    let scripts = "set -o pipefail
        git ls-files -z | xargs -0 grep -lZE '^#!.*\\b(bash|sh)$' |
        xargs -0 shellcheck --external-sources --severity=warning --format=gcc";
    let output = Command::new("bash")
        .args(["-c", scripts])
        .current_dir(root())
        .output()
        .expect("bash runs");
    let found = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{found}{error}");
}
