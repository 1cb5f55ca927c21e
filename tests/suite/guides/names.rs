//! The metrics, keys, problem codes, variables, alerts, log events and commands that guides name.

use std::collections::BTreeSet;

use postern_harness::Guide;
use postern_harness::paths::read;
use postern_harness::process::Program;

use super::pages;
use crate::metrics_reference::documented;

/// Beginnings of environment variables of the programs.
const VARIABLES: [&str; 5] = ["IDP_", "AUTH_", "NOTIFY_", "SOCIAL_", "POSTERN_LIMITS"];

/// Returns the texts in backquotes outside of blocks.
fn quoted(guide: &Guide) -> Vec<String> {
    let mut prose = String::new();
    let mut is_block = false;
    for line in guide.text.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    prose
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Returns the keys of the reference, without the parts `[]`. A route has those of the defaults.
fn keys() -> BTreeSet<String> {
    let page = read("docs/reference/configuration.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` |"));
    let keys = rows.flat_map(|(keys, _)| keys.split("`, `"));
    keys.flat_map(|key| [key.replace("[]", ""), key.replace("defaults.", "route.")])
        .collect()
}

fn is_name(text: &str, also: &str) -> bool {
    let allowed =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || also.contains(c);
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(allowed)
}

#[test]
fn named_metrics_and_alerts_exist() {
    let metrics = documented();
    let runbook = read("docs/runbook.md");
    let mut count = 0;
    for guide in pages() {
        for text in quoted(&guide) {
            let metric = text.split('{').next().unwrap_or_default();
            if metric.starts_with("postern_") {
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| metric.strip_suffix(suffix))
                    .filter(|base| metrics.contains_key(*base));
                let known = metrics.contains_key(base.unwrap_or(metric));
                assert!(known, "{}: {text}", guide.name);
                count += 1;
            }
            if text.starts_with("Postern") && is_name(&text[7..].to_lowercase(), "") {
                let heading = format!("### {text}\n");
                assert!(runbook.contains(&heading), "{}: {text}", guide.name);
                count += 1;
            }
        }
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn named_keys_and_variables_exist() {
    let keys = keys();
    let tables: BTreeSet<&str> = keys
        .iter()
        .filter_map(|key| key.split('.').next())
        .collect();
    let variables = ["docs/manual/deploy.md", "docs/reference/configuration.md"].map(read);
    let mut count = 0;
    for guide in pages() {
        for text in quoted(&guide) {
            let key = text.split(" = ").next().unwrap_or_default();
            let key = key.replace("[]", "");
            if key.contains('.') && is_name(&key, ".NAME") {
                let table = key.split('.').next().unwrap_or_default();
                let is_file = [
                    "toml", "md", "env", "pem", "json", "conf", "log", "yaml", "com",
                ]
                .iter()
                .any(|end| key.ends_with(&format!(".{end}")));
                if tables.contains(table) && !is_file {
                    assert!(keys.contains(&key), "{}: {text}", guide.name);
                    count += 1;
                }
            }
            if VARIABLES.iter().any(|start| text.starts_with(start)) && !text.contains(['=', '*']) {
                let known = variables.iter().any(|page| page.contains(&text));
                assert!(known, "{}: {text}", guide.name);
                count += 1;
            }
        }
    }
    assert!(count >= 20, "{count}");
}

/// A message after the words `log event` or `log events`.
#[test]
fn named_log_events_exist() {
    let reference = read("docs/reference/log-events.md");
    let mut count = 0;
    for guide in pages() {
        for (at, words) in guide.text.match_indices("log event `") {
            let message = guide.text[at + words.len()..].split('`').next();
            let quoted = format!("`{}`", message.unwrap_or_default());
            assert!(reference.contains(&quoted), "{}: {quoted}", guide.name);
            count += 1;
        }
    }
    assert!(count >= 5, "{count}");
}

/// A status and a code in backquotes, such as 401 `token_expired`.
#[test]
fn named_problem_codes_exist() {
    let problems = read("docs/reference/problem-codes.md");
    let mut count = 0;
    for guide in pages() {
        for (before, after) in guide
            .text
            .match_indices(" `")
            .map(|(at, _)| guide.text.split_at(at))
        {
            let status = before
                .get(before.len().saturating_sub(3)..)
                .unwrap_or_default();
            let code = after[2..].split('`').next().unwrap_or_default();
            if status.len() == 3 && status.parse::<u16>().is_ok() && is_name(code, "") {
                let row = format!("| `{code}` | {status} |");
                assert!(problems.contains(&row), "{}: {status} {code}", guide.name);
                count += 1;
            }
        }
    }
    assert!(count >= 15, "{count}");
}

/// Returns the words of every command of the programs, in blocks and in prose.
fn commands(guide: &Guide) -> BTreeSet<Vec<String>> {
    let mut texts = quoted(guide);
    for block in &guide.blocks {
        if ["sh", "console"].contains(&block.language.as_str()) {
            let joined = block.text.replace("\\\n", " ");
            texts.extend(
                joined
                    .lines()
                    .map(|line| line.trim_start_matches("$ ").to_owned()),
            );
        }
    }
    let mut found = BTreeSet::new();
    for text in texts {
        for part in text.split(['|', ';', '(', '&', '>']) {
            let words: Vec<String> = part.split_whitespace().map(str::to_owned).collect();
            let at = words.iter().position(|word| is_program(word));
            if let Some(at) = at.filter(|at| *at == 0 || words[at - 1].contains('=')) {
                found.insert(words[at..].to_vec());
            }
        }
    }
    found
}

fn is_program(word: &str) -> bool {
    ["postern", "postern-proxy", "postern-auth", "postern-notify"].contains(&word)
}

/// The help of every command that a guide names exists, and lists its options.
#[tokio::test]
async fn named_commands_and_options_exist() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut all: BTreeSet<(Vec<String>, String)> = BTreeSet::new();
    for guide in pages() {
        for words in commands(&guide) {
            // Options before the command, such as --config, take a value.
            let mut path = vec![words[0].clone()];
            let mut rest = words[1..].iter().peekable();
            while let Some(word) = rest.next() {
                if word.starts_with("--") {
                    let _ = rest.next_if(|value| !value.starts_with("--"));
                } else if is_name(word, "-") && !word.contains('.') && path.len() < 3 {
                    path.push(word.clone());
                } else {
                    break;
                }
            }
            let options = words.iter().filter(|word| word.starts_with("--"));
            let option = |word: &String| word.split('=').next().unwrap_or_default().to_owned();
            all.extend(options.map(option).map(|option| (path.clone(), option)));
            all.insert((path, String::new()));
        }
    }
    let mut help = (Vec::new(), String::new());
    for (path, option) in &all {
        if help.0 != *path {
            let program = Program::of_workspace(&path[0], folder.path());
            let ended = program.clone().args(&path[1..]).arg("--help").run().await;
            assert_eq!(ended.status, Some(0), "{path:?}: {}", ended.stderr);
            let general = program.arg("--help").run().await;
            help = (path.clone(), ended.stdout + &general.stdout);
        }
        assert!(help.1.contains(option.as_str()), "{path:?}: {option}");
    }
    assert!(all.len() >= 20, "{all:?}");
}
