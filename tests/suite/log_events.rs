//! The reference of warnings and errors, `docs/reference/log-events.txt`, compared with the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folders whose events are listed, with the program that logs them.
const PROGRAMS: [(&str, &str); 9] = [
    ("common/core", "all"),
    ("common/service", "all"),
    ("common/store", "all"),
    ("standalone", "postern"),
    ("auth-upstream", "postern-auth"),
    ("console", "postern-console"),
    ("notify-upstream", "postern-notify"),
    ("proxy", "postern-proxy"),
    ("proxy/http", "postern-proxy"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the sources in a folder, without their tests.
fn sources(folder: PathBuf) -> Vec<String> {
    let (mut folders, mut texts) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" && name != "log_limit.rs" {
                let text = std::fs::read_to_string(path).expect("a source");
                let product = text.split("#[cfg(test)]\nmod ").next();
                texts.push(product.unwrap_or_default().to_owned());
            }
        }
    }
    texts
}

/// Returns the first word and the last string of the arguments of a macro, which follow its `(`.
fn arguments(text: &str) -> (&str, String) {
    let first = text.trim_start();
    let word = first
        .find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(0);
    let (mut depth, mut string, mut last) = (1, None, String::new());
    let mut characters = text.chars();
    while let (Some(character), 1..) = (characters.next(), depth) {
        match (character, &mut string) {
            ('\\', Some(current)) => String::extend(current, characters.next()),
            ('"', Some(current)) => {
                last = std::mem::take(current);
                string = None;
            }
            (other, Some(current)) => current.push(other),
            ('"', None) => string = Some(String::new()),
            ('(', None) => depth += 1,
            (')', None) => depth -= 1,
            _ => {}
        }
    }
    let words: Vec<&str> = last.split_whitespace().collect();
    (&first[..word], words.join(" "))
}

fn events(source: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for (name, level) in [
        ("warn", Some("WARN")),
        ("error", Some("ERROR")),
        ("log_outage", Some("WARN")),
        ("log_outage_state", Some("WARN")),
        ("log_consequence", Some("WARN")),
        ("log_limited", None),
    ] {
        let call = format!("{name}!(");
        for (at, _) in source.match_indices(&call) {
            if source[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            let (first, message) = arguments(&source[at + call.len()..]);
            let level = level.or(match first {
                "warn" => Some("WARN"),
                "error" => Some("ERROR"),
                _ => None,
            });
            found.extend(level.map(|level| (level, message)));
        }
    }
    found
}

#[test]
fn reference_has_every_warning_and_error() {
    let mut lines = BTreeSet::new();
    for (folder, program) in PROGRAMS {
        for source in sources(repository().join(folder).join("src")) {
            for (level, message) in events(&source) {
                let is_constant = !message.is_empty() && !message.contains(['{', '}']);
                assert!(is_constant, "{folder}: `{message}` is no constant message");
                lines.insert(format!("{program:<15} {level:<5} {message}\n"));
            }
        }
    }
    let (file, text) = (
        repository().join("docs/reference/log-events.txt"),
        lines.into_iter(),
    );
    let text: String = text.collect();
    if std::env::var_os("POSTERN_TEST_WRITE_LOG_EVENTS").is_some() {
        std::fs::write(&file, &text).expect("the file can be written");
    }
    let listed = std::fs::read_to_string(file).expect("the reference");
    assert_eq!(listed, text, "POSTERN_TEST_WRITE_LOG_EVENTS=1 writes it");
}
