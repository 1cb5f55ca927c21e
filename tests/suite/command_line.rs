//! The command lines of all programs: the same commands, JSON as documented, and checks without the
//! environment of a process.

mod checks;
mod json_output;

use std::collections::BTreeSet;
use std::path::Path;

use postern_tests::program::{Ended, Program};

/// The programs in the order of the columns of the document.
const PROGRAMS: [&str; 4] = [
    "postern-proxy",
    "postern-auth",
    "postern-notify",
    "postern-console",
];

const OPERATIONS: &str = include_str!("../../docs/manual/operate.md");

/// Returns the cells of the table whose header begins with these words, row by row.
fn table(header: &str) -> Vec<Vec<&'static str>> {
    let mut lines = OPERATIONS.lines();
    let found = lines.any(|line| line.starts_with(header));
    assert!(found, "the document has the table {header}");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

/// Returns the texts in backticks.
fn code_spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Runs a program without any environment variable.
async fn run(program: &str, folder: &Path, arguments: &[&str]) -> Ended {
    let program = Program::of_workspace(program, folder);
    let arguments = arguments.iter();
    arguments
        .fold(program, |program, argument| program.arg(*argument))
        .run()
        .await
}

/// Returns the names of all commands below `path`, joined by hyphens as in names of manual pages.
async fn pages(program: &str, path: &[&str], found: &mut BTreeSet<String>) {
    let folder = std::env::temp_dir();
    let ended = run(program, &folder, &[path, &["--help"]].concat()).await;
    assert_eq!(
        ended.status,
        Some(0),
        "{program} {path:?}: {}",
        ended.stderr
    );
    found.insert(format!("{}.1", [&[program], path].concat().join("-")));
    let list = ended.stdout.split("Commands:\n").nth(1).unwrap_or_default();
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' '));
    let names = names.filter_map(|line| line.split(' ').next());
    for name in names.filter(|name| *name != "help") {
        Box::pin(pages(program, &[path, &[name]].concat(), found)).await;
    }
}

#[tokio::test]
async fn programs_have_the_commands_of_the_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = table("| command | `postern-proxy` |");
    assert_eq!(rows.len(), 7, "{rows:?}");
    for row in rows {
        for command in code_spans(row[0]) {
            let words: Vec<&str> = command
                .split(' ')
                .filter(|word| word.contains(char::is_lowercase))
                .collect();
            for (program, cell) in PROGRAMS.into_iter().zip(&row[1..]) {
                let exists = !cell.starts_with("none") && !cell.starts_with("no such");
                let arguments = [&words[..], &["--help"]].concat();
                let ended = run(program, folder.path(), &arguments).await;
                let expected = if exists { Some(0) } else { Some(64) };
                assert_eq!(
                    ended.status, expected,
                    "{program} {command}: {}",
                    ended.stderr
                );
                let usage = format!("Usage: {program} {}", words[0]);
                assert_eq!(ended.stdout.contains(&usage), exists, "{}", ended.stdout);
            }
        }
    }
}

#[tokio::test]
async fn manual_and_completions_cover_every_command() {
    for program in PROGRAMS.into_iter().chain(["postern"]) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut expected = BTreeSet::new();
        pages(program, &[], &mut expected).await;
        assert!(expected.len() > 4, "{expected:?}");
        let ended = run(program, folder.path(), &["man", "."]).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        let written = std::fs::read_dir(folder.path()).expect("a folder");
        let written: BTreeSet<String> = written
            .map(|entry| {
                entry
                    .expect("a page")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        assert_eq!(written, expected);
        let page = run(program, folder.path(), &["man"]).await;
        assert!(page.stdout.contains(".TH "), "{}", page.stderr);
        let prefix = format!("{program}-");
        let top = expected
            .iter()
            .filter_map(|page| page.strip_prefix(&prefix));
        let top: Vec<&str> = top.filter_map(|page| page.strip_suffix(".1")).collect();
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let ended = run(program, folder.path(), &["completions", shell]).await;
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
            for name in top.iter().flat_map(|name| name.split('-')) {
                assert!(ended.stdout.contains(name), "{program} {shell}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn schemas_are_those_of_the_repository() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (program, file) in PROGRAMS.into_iter().zip([
        "proxy/proxy.schema.json",
        "auth-upstream/auth.schema.json",
        "notify-upstream/notify.schema.json",
        "console/console.schema.json",
    ]) {
        let ended = run(program, folder.path(), &["schema"]).await;
        let schema = std::fs::read_to_string(root.join(file)).expect("the schema");
        assert_eq!((ended.status, ended.stdout), (Some(0), schema), "{program}");
    }
}
