//! The examples of `docs/migrating.md`: the gateway's own are loaded with their route tests, and
//! nginx checks its own. Traefik does so in `traefik_peer.rs`.

use std::path::Path;
use std::process::Command;

use postern_common::config::{Env, parse};
use postern_common::testing::skipped;

use crate::{ASSUMED_POOLS, Config};

const NGINX: &str = "/usr/sbin/nginx";

/// Number of sections with examples.
pub(super) const TOPICS: usize = 10;

/// Returns the examples in a language, each with the heading above it.
pub(super) fn examples(language: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/migrating.md");
    let document = std::fs::read_to_string(path).expect("the document");
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
fn examples_load_and_pass_their_route_tests() {
    let examples = examples("toml");
    assert_eq!(examples.len(), TOPICS);
    let env = Env::default().assuming(&ASSUMED_POOLS);
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
