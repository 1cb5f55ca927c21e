//! The examples of `docs/migrating.md`: the gateway's own are loaded with their route tests, and
//! nginx and Caddy check theirs. Traefik does so in `traefik_peer.rs`.

use std::path::Path;
use std::process::Command;

use postern_common::config::{Env, parse};
use postern_common::testing::skipped;

use crate::Config;

const NGINX: &str = "/usr/sbin/nginx";

/// Number of sections with examples.
pub(super) const TOPICS: usize = 10;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/migrating.md");
    std::fs::read_to_string(path).expect("the document")
}

/// Returns the examples in a language, each with the heading above it.
pub(super) fn examples(language: &str) -> Vec<(String, String)> {
    let document = document();
    let (mut heading, mut found, mut block) = (String::new(), Vec::new(), None::<String>);
    for line in document.lines() {
        match &mut block {
            Some(text) if line == "```" => {
                found.push((heading.clone(), std::mem::take(text)));
                block = None;
            }
            Some(text) => text.extend([line, "\n"]),
            None if line.strip_prefix("```") == Some(language) => block = Some(String::new()),
            None => {
                if let Some(title) = line.strip_prefix("## ") {
                    title.clone_into(&mut heading);
                }
            }
        }
    }
    found
}

#[test]
fn every_example_is_checked() {
    let checked = ["toml", "nginx", "yaml", "caddyfile"].map(|it| examples(it).len());
    let fences = document().matches("```").count();
    assert_eq!(fences, 2 * checked.iter().sum::<usize>());
}

#[test]
fn examples_load_and_pass_their_route_tests() {
    let examples = examples("toml");
    assert_eq!(examples.len(), TOPICS + 1, "and one of the defaults");
    let env = Env::default();
    for (heading, example) in examples {
        assert!(example.contains("[[test]]"), "{heading} has no route test");
        let listener = if example.contains("[[listen]]") {
            ""
        } else {
            "[[listen]]\naddress = \"127.0.0.1:1\"\n"
        };
        // Further tables may follow the example's own listeners.
        let text = format!("{listener}{example}");
        if let Err(exit) = parse("example.toml", &text, |root| Config::read(root, &env)) {
            panic!("{heading}: {}\n{text}", exit.message());
        }
    }
}

#[test]
fn nginx_accepts_its_examples() {
    if !Path::new(NGINX).exists() {
        return skipped("nginx_accepts_its_examples", "nginx is not installed");
    }
    let examples = examples("nginx");
    assert_eq!(examples.len(), TOPICS);
    for (heading, example) in examples {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {at}/{name};\n"))
            .collect();
        let text = format!(
            "pid {at}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{example}}}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, text).expect("writes");
        let output = Command::new(NGINX)
            .arg("-t")
            .arg("-c")
            .arg(&file)
            .output()
            .expect("nginx runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{heading}: {said}");
    }
}

#[test]
fn caddy_accepts_its_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("../tests/.peers/traefik/python/bin/caddy");
    if !program.is_file() {
        return skipped("caddy_accepts_its_examples", "Caddy is not installed");
    }
    let examples = examples("caddyfile");
    assert_eq!(examples.len(), TOPICS - 1, "it has no rate limits");
    for (heading, example) in examples {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("Caddyfile");
        std::fs::write(&file, example).expect("writes");
        let output = Command::new(&program)
            .args(["validate", "--adapter", "caddyfile", "--config"])
            .arg(&file)
            .env("HOME", folder.path())
            .output()
            .expect("Caddy runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{heading}: {said}");
    }
}
