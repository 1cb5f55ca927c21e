//! The command lines of all programs: the same commands, JSON as documented, and checks without the
//! environment of a process.

mod checks;
mod json_output;

use std::path::Path;

use postern_harness::process::{Ended, Program};

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
    program.args(arguments.iter().copied()).run().await
}

#[tokio::test]
async fn programs_have_the_commands_of_the_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = table("| command | `postern-proxy` |");
    assert_eq!(rows.len(), 6, "{rows:?}");
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
