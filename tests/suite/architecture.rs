//! The dependencies between the top-level modules of a crate: none may depend on itself through
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// Modules that exist for tests alone; what they use is no dependency of the product.
const TEST_MODULES: [&str; 2] = ["testing", "tests"];

/// The modules that each top-level module of a crate uses.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn source_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .join(name)
        .join("src")
}

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the module path of a source file: `src/a/b.rs` is `["a", "b"]`, `src/lib.rs` is empty.
fn module_path(source: &Path, file: &Path) -> Vec<String> {
    let relative = file
        .strip_prefix(source)
        .expect("a file of the folder")
        .with_extension("");
    let mut path: Vec<String> = relative
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
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
    let supers = "super::".repeat(module.len());
    for prefix in ["crate::", supers.as_str()]
        .into_iter()
        .filter(|prefix| !prefix.is_empty())
    {
        names_after(code, prefix, &mut visit);
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
    let mut files = Vec::new();
    source_files(&source, &mut files);
    let lib = product_code(&std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs"));
    let exported = re_exports(&lib);
    let mut found = Dependencies::new();
    for file in &files {
        let module = module_path(&source, file);
        let is_test = module
            .iter()
            .any(|part| TEST_MODULES.contains(&part.as_str()));
        let Some(top) = module.first().filter(|top| !is_test && *top != "main") else {
            continue;
        };
        found.entry(top.clone()).or_default();
    }
    let modules: BTreeSet<String> = found.keys().cloned().collect();
    for file in &files {
        let module = module_path(&source, file);
        let is_test = module
            .iter()
            .any(|part| TEST_MODULES.contains(&part.as_str()));
        let Some(used) = module
            .first()
            .filter(|_| !is_test)
            .and_then(|top| found.get_mut(top))
        else {
            continue;
        };
        let code = product_code(&std::fs::read_to_string(file).expect("sources are UTF-8"));
        root_names(&code, &module, |name| {
            let target = if modules.contains(name) {
                Some(name)
            } else {
                exported.get(name).map(String::as_str)
            };
            if let Some(target) =
                target.filter(|target| modules.contains(*target) && *target != module[0])
            {
                used.insert(target.to_owned());
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
        "modules that depend on each other:\n{}",
        cycles.into_iter().collect::<Vec<_>>().join("\n")
    );
}

/// Routes and configuration are modules of `proxy`, on which `proxy/http` cannot depend; tokens and
/// the decoder of configurations are modules of `common`.
#[test]
fn http_engine_knows_problem_codes_and_addresses_alone() {
    let mut files = Vec::new();
    source_files(&source_folder("proxy/http"), &mut files);
    let mut used = BTreeSet::new();
    for file in &files {
        let code = product_code(&std::fs::read_to_string(file).expect("sources are UTF-8"));
        names_after(&code, "postern_core::", |name| {
            used.insert(name.to_owned());
        });
    }
    assert!(
        used.iter().eq(["Code", "network"]),
        "proxy/http uses {used:?} of postern_core"
    );
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
