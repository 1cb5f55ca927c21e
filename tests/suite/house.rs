//! The rules of the house that a compiler does not know: who may depend on whom, and how large a file may be.

use std::path::{Path, PathBuf};

/// Package folder, and the packages of the workspace that it may depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("common", &[]),
    ("proxy", &["postern-common"]),
    ("auth-upstream", &["postern-common"]),
    ("notify-upstream", &["postern-common"]),
    ("identity-pool", &["postern-common"]),
    (
        "standalone",
        &["postern-common", "postern-proxy", "postern-auth", "postern-notify", "postern-identity-pool"],
    ),
];

/// Lines of a Rust file at most.
const CEILING: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn manifest(folder: &str) -> toml::Table {
    let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("each member has a manifest");
    text.parse().expect("a manifest is TOML")
}

fn dependencies(manifest: &toml::Table) -> impl Iterator<Item = (&String, &toml::Value)> {
    let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
    tables.into_iter().filter_map(|name| manifest.get(name)?.as_table()).flatten()
}

/// Every Rust file of the workspace, without what is built.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && !["target", ".git", "var", ".peers", "node_modules"].iter().any(|other| name == *other) {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn services_know_common_alone_and_never_one_another() {
    for (folder, allowed) in MAY_USE {
        let manifest = manifest(folder);
        for (name, _) in dependencies(&manifest).filter(|(name, _)| name.starts_with("postern")) {
            assert!(allowed.contains(&name.as_str()), "{folder} must not depend on {name}");
        }
    }
}

#[test]
fn every_version_stands_in_the_root_manifest() {
    let workspace = manifest(".");
    let members = workspace["workspace"]["members"].as_array().expect("members");
    for member in members.iter().filter_map(toml::Value::as_str) {
        let manifest = manifest(member);
        for (name, value) in dependencies(&manifest) {
            let inherits = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
            assert!(inherits, "{member}: {name} has a version of its own");
        }
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{member} takes the workspace's lints");
    }
}

#[test]
fn files_are_nouns_and_fit_under_the_ceiling() {
    let mut all = Vec::new();
    sources(&root(), &mut all);
    assert!(all.len() > 20);
    let mut broken = Vec::new();
    for path in all {
        let lines = std::fs::read_to_string(&path).expect("sources are text").lines().count();
        let name = path.file_name().unwrap_or_default();
        if lines > CEILING || name == "mod.rs" || name == "utils.rs" {
            broken.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
