//! The examples of `docs/manual/migrating.md`, and the first one of `gateway.md`: the gateway's own are
//! loaded with their route tests. Those of others are run in `migrating_peers.rs`.

use super::*;

/// Number of sections with examples.
const TOPICS: usize = 10;

fn document(name: &str) -> String {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual");
    std::fs::read_to_string(manual.join(name)).expect("the document")
}

/// Returns the examples in a language, each with the heading above it.
pub(super) fn examples(language: &str) -> Vec<(String, String)> {
    examples_of("migrating.md", language)
}

fn examples_of(document: &str, language: &str) -> Vec<(String, String)> {
    let document = self::document(document);
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
    let fences = document("migrating.md").matches("```").count();
    assert_eq!(fences, 2 * checked.iter().sum::<usize>());
}

#[test]
fn examples_load_and_pass_their_route_tests() {
    let mut examples = examples("toml");
    assert_eq!(examples.len(), TOPICS + 5, "the defaults, and sites");
    examples.extend(examples_of("gateway.md", "toml").into_iter().take(1));
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
