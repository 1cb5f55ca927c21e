//! Workspace rules that neither the compiler nor clippy checks: dependencies between packages,
//! where versions are declared, and file sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use postern_harness::paths::{repository, rust_files};
use postern_harness::systems::succeed;
use serde_json::Value;

/// Maximum lines of a Rust file.
const MAX_FILE_LINES: usize = 500;

/// Returns what a command prints at the root of the repository. It must succeed.
fn output(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    succeed(command.args(arguments).current_dir(repository()))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn toml(path: &Path) -> toml::Table {
    let parsed = text(path).parse::<toml::Table>();
    parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the packages of the workspace, as cargo reports them.
fn packages() -> Vec<Value> {
    let arguments = "metadata --offline --no-deps --format-version 1";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let metadata = output(env!("CARGO"), &arguments);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn strings(list: &toml::Value) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    let texts = list.map(|one| one.as_str().expect("a text").to_owned());
    texts.collect()
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
    let rules = toml(&repository().join("deny.toml"));
    let deny = rules["bans"]["deny"].as_array().expect("bans.deny").iter();
    let with_users = deny.filter_map(|rule| Some((rule, strings(rule.get("wrappers")?))));
    let named = |rule: &toml::Value| rule["crate"].as_str().expect("crate").to_owned();
    with_users
        .map(|(rule, users)| (named(rule), users))
        .collect()
}

#[test]
fn services_depend_on_common_and_not_on_each_other() {
    let (packages, allowed) = (packages(), allowed());
    let ours: BTreeSet<&str> = packages.iter().map(name).collect();
    let mut wrong = Vec::new();
    for package in &packages {
        let user = name(package);
        let used = package["dependencies"].as_array().expect("dependencies");
        for used in used.iter().map(name).filter(|used| ours.contains(used)) {
            let users = allowed.get(used);
            if !users.is_some_and(|users| users.iter().any(|name| name == user)) {
                wrong.push(format!("{user} may not depend on {used} (bans.deny)"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut named = allowed.keys();
    let unknown = named.find(|used| !ours.contains(used.as_str()));
    assert_eq!(unknown, None, "deny.toml names no package");
}

#[test]
fn versions_and_lints_are_in_the_root_manifest() {
    let mut wrong = Vec::new();
    for package in packages() {
        let (name, table) = (name(&package), toml(manifest(&package)));
        let is_shared = |how: &toml::Value| {
            let workspace = how.get("workspace").and_then(toml::Value::as_bool);
            workspace == Some(true)
        };
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = table.get(section).and_then(toml::Value::as_table);
            for (dependency, how) in dependencies.into_iter().flatten() {
                if !is_shared(how) {
                    wrong.push(format!("{name}: {section}.{dependency} has a version"));
                }
            }
        }
        if !table.get("lints").is_some_and(is_shared) {
            wrong.push(format!("{name}: lacks `[lints] workspace = true`"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_below_the_size_limit() {
    let mut wrong = Vec::new();
    for package in packages() {
        let folder = manifest(&package).parent().expect("a folder");
        let parts = ["src", "suite", "tests", "benches", "examples"];
        let files = parts.map(|part| rust_files(&folder.join(part))).concat();
        assert!(!files.is_empty(), "{} has no source", name(&package));
        for file in files {
            let (lines, shown) = (text(&file).lines().count(), file.display());
            if lines > MAX_FILE_LINES {
                wrong.push(format!("{shown}: {lines} of {MAX_FILE_LINES} lines"));
            }
            let stem = file.file_stem().and_then(|stem| stem.to_str());
            let vague = ["mod", "util", "utils", "helper", "helpers", "misc"];
            if vague.contains(&stem.unwrap_or_default()) {
                wrong.push(format!("{shown}: a file is named after its contents"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

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
    let arguments = format!("tree --offline --locked --package {package} --edges {edges}");
    let arguments = format!("{arguments} --prefix none");
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let tree = output(env!("CARGO"), &arguments);
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
    let count = packages.len();
    let is_right = (200..=MAX_STANDALONE_PACKAGES).contains(&count);
    assert!(is_right, "{count} packages");
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

/// End-to-end tests wait for events, not for time to pass.
#[test]
fn end_to_end_tests_never_sleep() {
    let parts = ["harness/src", "suite"];
    let parts = parts.map(|part| rust_files(&repository().join("tests").join(part)));
    let mut files = parts.concat();
    let sleeps = concat!("time::", "sleep");
    // A program that applies faults for some time, with clients that send requests at a rate, and a
    // process that is suspended for some time.
    let timed = ["tests/harness/src/cluster", "tests/suite/notify_clocks.rs"]
        .map(|path| repository().join(path));
    files.retain(|file| !timed.iter().any(|path| file.starts_with(path)));
    for file in files {
        assert!(!text(&file).contains(sleeps), "{} sleeps", file.display());
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
    let documents = output("git", &["ls-files", "*.md"]);
    let mut anchors = 0;
    let mut wrong = Vec::new();
    for name in documents.lines() {
        let path = repository().join(name);
        let folder = path.parent().expect("a document has a parent folder");
        for target in links(&text(&path)) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => path.clone(),
                _ => folder.join(file),
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
    output("bash", &["-c", scripts]);
}
