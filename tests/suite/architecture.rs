//! The dependencies between the top-level modules of a crate: none may depend on itself through
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use postern_harness::paths::{repository, rust_files};

/// Crates of the workspace whose modules may not form cycles.
const CRATES: [&str; 10] = [
    "common/core",
    "common/service",
    "common/store",
    "proxy/http",
    "proxy",
    "auth-upstream",
    "notify-upstream",
    "dev",
    "console",
    "standalone",
];

/// The crates that the product must be built on.
const REQUIRED_CRATES: [&str; 15] = [
    "aes-gcm",
    "aws-sdk-cognitoidentityprovider",
    "jsonwebtoken",
    "lettre",
    "oauth2",
    "pingora",
    "pingora-load-balancing",
    "pingora-proxy",
    "prometheus",
    "redis",
    "reqwest",
    "serde",
    "serde_json",
    "sqlx",
    "tokio",
];

/// Modules that exist for tests alone; what they use is no dependency of the product.
const TEST_MODULES: [&str; 2] = ["testing", "tests"];

/// The modules that each top-level module of a crate uses.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn source_folder(name: &str) -> PathBuf {
    repository().join(name).join("src")
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).expect("sources are UTF-8")
}

/// Returns the module path of a source file: `src/a/b.rs` is `["a", "b"]`, `src/lib.rs` is empty.
fn module_path(source: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(source).expect("a file of the folder");
    let relative = relative.with_extension("");
    let parts = relative.components();
    let name = |part: Component<'_>| part.as_os_str().to_string_lossy().into_owned();
    let mut path: Vec<String> = parts.map(name).collect();
    if path.last().is_some_and(|last| last == "mod") || path == ["lib"] {
        path.pop();
    }
    path
}

/// Removes comments, and items under `#[cfg(test)]`. String contents stay; they hold no module
/// paths.
fn product_code(text: &str) -> String {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| line.split(" // ").next().unwrap_or_default().to_owned() + "\n")
        .collect();
    let mut parts = code.split("#[cfg(test)]");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(after_item(part));
    }
    kept
}

/// Returns what follows the first item of `text`: after its closing brace, or its semicolon.
fn after_item(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' | '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '}' => {
                depth = depth.saturating_sub(1);
                // The braces of `use a::{b, c};` end no item.
                if depth == 0 && !text[at + 1..].trim_start().starts_with(';') {
                    return &text[at + 1..];
                }
            }
            ';' if depth == 0 => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

/// Calls `visit` with the first name of each path of the crate that the code of a module names:
/// `crate::name`, and as many `super::` as lead to the root.
fn root_names(code: &str, module: &[String], mut visit: impl FnMut(&str)) {
    names_after(code, "crate::", &mut visit);
    if !module.is_empty() {
        names_after(code, &"super::".repeat(module.len()), &mut visit);
    }
}

/// Calls `visit` with the first name after each occurrence of a prefix of paths.
fn names_after(code: &str, prefix: &str, mut visit: impl FnMut(&str)) {
    for (at, _) in code.match_indices(prefix) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || "_:$".contains(before)) {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => group_heads(group).iter().for_each(|name| visit(name)),
            None => visit(identifier(rest)),
        }
    }
}

fn identifier(text: &str) -> &str {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Returns the first name of each member of `{a::b, c::{d, e}}`, whose opening brace has been read.
fn group_heads(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut heads) = (0_usize, 0, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.push(identifier(group[start..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.push(identifier(group[start..at].trim_start()));
                start = at + 1;
            }
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

/// Returns the module that each name is re-exported from by `lib.rs`.
fn re_exports(lib: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for statement in lib.split(';') {
        let Some((_, path)) = statement.split_once("use ") else {
            continue;
        };
        let module = identifier(path.trim_start_matches("crate::")).to_owned();
        for name in path.split(|character: char| !character.is_alphanumeric() && character != '_') {
            names
                .entry(name.to_owned())
                .or_insert_with(|| module.clone());
        }
    }
    names
}

fn dependencies(name: &str) -> Dependencies {
    let source = source_folder(name);
    let exported = re_exports(&product_code(&text(&source.join("lib.rs"))));
    let is_test = |module: &Vec<String>| {
        let mut parts = module.iter();
        parts.any(|part| TEST_MODULES.contains(&part.as_str()))
    };
    let mut files = Vec::new();
    for file in rust_files(&source) {
        let module = module_path(&source, &file);
        if !module.is_empty() && !is_test(&module) && module[0] != "main" {
            files.push((file, module));
        }
    }
    let mut found = Dependencies::new();
    for (_, module) in &files {
        found.entry(module[0].clone()).or_default();
    }
    let modules: BTreeSet<String> = found.keys().cloned().collect();
    for (file, module) in &files {
        root_names(&product_code(&text(file)), module, |name| {
            let target = match modules.get(name) {
                Some(module) => Some(module),
                None => exported.get(name).filter(|it| modules.contains(*it)),
            };
            if let Some(target) = target.filter(|target| **target != module[0]) {
                let used = found.entry(module[0].clone()).or_default();
                used.insert(target.clone());
            }
        });
    }
    found
}

/// Returns the modules that `start` depends on, directly or through others.
fn reachable<'a>(dependencies: &'a Dependencies, start: &str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(module) = open.pop() {
        for next in dependencies.get(module).into_iter().flatten() {
            if seen.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    seen
}

#[test]
fn top_level_modules_form_no_cycle() {
    let mut cycles = BTreeSet::new();
    for name in CRATES {
        let dependencies = dependencies(name);
        for module in dependencies.keys() {
            let members: Vec<&str> = reachable(&dependencies, module)
                .into_iter()
                .filter(|other| reachable(&dependencies, other).contains(module.as_str()))
                .collect();
            if !members.is_empty() {
                cycles.insert(format!("{name}: {}", members.join(", ")));
            }
        }
    }
    assert!(
        cycles.is_empty(),
        "modules depend on each other: {cycles:?}"
    );
}

/// Routes and configuration are modules of `proxy`, on which `proxy/http` cannot depend; tokens and
/// the decoder of configurations are modules of `common`.
#[test]
fn http_engine_knows_problem_codes_and_addresses_alone() {
    let mut used = BTreeSet::new();
    for file in rust_files(&source_folder("proxy/http")) {
        names_after(&product_code(&text(&file)), "postern_core::", |name| {
            used.insert(name.to_owned());
        });
    }
    assert!(
        used.iter().eq(["Code", "network"]),
        "proxy/http uses {used:?} of postern_core"
    );
}

/// What is pretended in `dev` is no part of the product.
#[test]
fn required_crates_are_dependencies_in_use() {
    let (mut declared, mut used) = (BTreeSet::new(), BTreeSet::new());
    for name in CRATES.into_iter().filter(|name| *name != "dev") {
        let source = source_folder(name);
        let manifest = text(&source.with_file_name("Cargo.toml"));
        let manifest: toml::Table = manifest.parse().expect("TOML");
        let normal = manifest["dependencies"].as_table().expect("a table");
        declared.extend(normal.keys().cloned());
        for file in rust_files(&source) {
            let module = module_path(&source, &file);
            if module.iter().any(|it| TEST_MODULES.contains(&it.as_str())) {
                continue;
            }
            let code = product_code(&text(&file));
            for required in REQUIRED_CRATES {
                let prefix = format!("{}::", required.replace('-', "_"));
                names_after(&code, &prefix, |_| {
                    used.insert(required);
                });
            }
        }
    }
    for required in REQUIRED_CRATES {
        assert!(declared.contains(required), "{required} is no dependency");
        assert!(used.contains(required), "{required} is not used");
    }
}

#[test]
fn paths_of_a_module_are_recognised() {
    let code = "use crate::{a, b::{C, D}};\nuse super::super::e::F;\nfn f() { crate::g::h(); not_crate::i(); }\n";
    let mut names = Vec::new();
    root_names(code, &["x".to_owned(), "y".to_owned()], |name| {
        names.push(name.to_owned());
    });
    assert_eq!(names, ["a", "b", "g", "e"]);
    let tests = "use crate::a;\n#[cfg(test)]\nuse crate::{b, c};\n#[cfg(test)]\nmod tests { use crate::d; }\nfn f() {}\n";
    let product = product_code(tests);
    assert!(
        product.contains("crate::a") && product.contains("fn f"),
        "{product}"
    );
    assert!(
        !product.contains("crate::b") && !product.contains("crate::d"),
        "{product}"
    );
}
