//! Comparison of `conf/openapi.json` with that of the last tag, by the rules of docs/adr/README.md#0016-versions.

use std::process::Command;

use postern_harness::Contract;
use postern_harness::json;
use postern_harness::paths::repository;
use serde_json::Value;

/// Keywords that decide which values are valid, besides `properties`, `required` and `enum`.
const CONSTRAINTS: &str =
    "type format pattern const minLength maxLength minimum maximum minItems maxItems maxProperties";

/// Where a member of the document is set, to what, and whether that breaks clients.
const CHANGES: &str = r#"
/paths | /notifications | null | true
/paths/~1notifications/post/responses | 201 | null | true
/paths/~1notifications/post/responses | 409 | null | false
/components/schemas/Credentials/properties | email | null | true
/components/schemas/Credentials/properties | captcha | {} | false
/components/schemas/Credentials | required | ["email", "password", "x"] | true
/components/schemas/TokenSet/properties | later | {} | false
/components/schemas/TokenSet | required | ["accessToken"] | true
/components/schemas/Priority | enum | ["NORMAL"] | true
/components/schemas/Password | minLength | 40 | true
"#;

#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Client,
    Server,
}

/// The changes between two documents that break a client of the old one.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    breaks: Vec<String>,
}

impl<'a> Comparison<'a> {
    fn breaks(old: &'a Value, new: &'a Value) -> Vec<String> {
        let breaks = Vec::new();
        let mut comparison = Self { old, new, breaks };
        for (path, methods) in members(&old["paths"]) {
            for (method, operation) in members(methods) {
                if operation.get("operationId").is_some() {
                    let at = format!("{method} {path}");
                    comparison.operation(&at, operation, &new["paths"][path][method]);
                }
            }
        }
        comparison.breaks
    }

    fn report(&mut self, is_broken: bool, at: &str, what: &str) {
        if is_broken {
            self.breaks.push(format!("{at}: {what}"));
        }
    }

    fn operation(&mut self, at: &str, old: &'a Value, new: &'a Value) {
        if new.is_null() {
            return self.report(true, at, "is gone");
        }
        let parameters = |of: &'a Value| of["parameters"].as_array().into_iter().flatten();
        let same = |a: &Value, b: &Value| a["name"] == b["name"] && a["in"] == b["in"];
        for known in parameters(old) {
            match parameters(new).find(|it| same(it, known)) {
                Some(kept) => self.schema(at, &known["schema"], &kept["schema"], Sender::Client),
                None => self.report(true, at, "a parameter is gone"),
            }
        }
        let is_new = |it: &&Value| !parameters(old).any(|known| same(known, it));
        let mut added = parameters(new).filter(is_new);
        let needed = added.any(|it| it["required"] == true);
        self.report(needed, at, "a new parameter is required");
        let body = (&old["requestBody"], &new["requestBody"]);
        let needed = body.1["required"] == true && body.0["required"] != true;
        self.report(needed, at, "a body is required");
        self.content(at, body.0, body.1, Sender::Client);
        for (status, response) in members(&old["responses"]) {
            if status.starts_with(['2', '3']) {
                let (at, kept) = (format!("{at} {status}"), &new["responses"][status]);
                self.report(kept.is_null(), &at, "is gone");
                self.content(&at, response, kept, Sender::Server);
            }
        }
    }

    fn content(&mut self, at: &str, old: &'a Value, new: &'a Value, sender: Sender) {
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        for (media, of_media) in members(&old["content"]) {
            let kept = &new["content"][media];
            self.report(kept.is_null(), at, &format!("{media} is gone"));
            self.schema(at, &of_media["schema"], &kept["schema"], sender);
        }
    }

    fn schema(&mut self, at: &str, old: &'a Value, new: &'a Value, sender: Sender) {
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        for keyword in CONSTRAINTS.split(' ') {
            let differs = old.get(keyword) != new.get(keyword);
            self.report(differs, at, &format!("{keyword} has changed"));
        }
        let texts = |of: &'a Value, keyword| of[keyword].as_array().cloned().unwrap_or_default();
        let lacks = |a: &[Value], b: &[Value]| a.iter().any(|it| !b.contains(it));
        let required = (texts(old, "required"), texts(new, "required"));
        let values = (texts(old, "enum"), texts(new, "enum"));
        let is_broken = match sender {
            Sender::Client => lacks(&required.1, &required.0) || lacks(&values.0, &values.1),
            // Clients accept values that they do not know.
            Sender::Server => lacks(&required.0, &required.1),
        };
        self.report(is_broken, at, "required or enum has changed");
        for (name, property) in members(&old["properties"]) {
            let (at, kept) = (format!("{at}/{name}"), &new["properties"][name]);
            self.report(kept.is_null(), &at, "is gone");
            self.schema(&at, property, kept, sender);
        }
        if old.get("items").is_some() {
            self.schema(&format!("{at}/0"), &old["items"], &new["items"], sender);
        }
        for keyword in ["allOf", "oneOf", "anyOf"] {
            for (index, part) in old[keyword].as_array().into_iter().flatten().enumerate() {
                self.schema(at, part, &new[keyword][index], sender);
            }
        }
    }
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Follows a reference within a document. No schema refers to itself.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(target) => document.pointer(&target[1..]).unwrap_or(&Value::Null),
        None => value,
    }
}

/// Returns what git prints, or `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.args(arguments).current_dir(repository()).output();
    let output = output.expect("git runs");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    output.status.success().then(|| printed.trim().to_owned())
}

/// Returns the part of a version that a breaking change increases.
fn compatible(document: &Value) -> Vec<String> {
    let version = document["info"]["version"].as_str().expect("a version");
    let parts: Vec<_> = version.split('.').map(str::to_owned).collect();
    let count = if parts[0] == "0" { 2 } else { 1 };
    parts[..count].to_vec()
}

#[test]
fn contract_is_compatible_with_the_last_tag() {
    let Some(tag) = git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]) else {
        return;
    };
    let text = git(&["show", &format!("{tag}:conf/openapi.json")]).expect("the document");
    let old: Value = serde_json::from_str(&text).expect("JSON");
    let new = &Contract::shared().document;
    if compatible(&old) == compatible(new) {
        assert_eq!(Comparison::breaks(&old, new), Vec::<String>::new(), "{tag}");
    }
}

#[test]
fn breaking_changes_are_found_and_others_are_not() {
    let old = &Contract::shared().document;
    assert_eq!(Comparison::breaks(old, old), Vec::<String>::new());
    for change in CHANGES.trim().lines() {
        let fields: Vec<&str> = change.split(" | ").collect();
        let [at, member, value, is_broken] = fields[..] else {
            panic!("{change}")
        };
        let value: Value = serde_json::from_str(value).expect("JSON");
        let mut new = old.clone();
        let changed = new.pointer_mut(at).and_then(Value::as_object_mut);
        changed.expect(at).insert(member.to_owned(), value);
        let found = Comparison::breaks(old, &new);
        let is_found = (!found.is_empty()).to_string();
        assert_eq!(is_found, is_broken, "{change}: {found:?}");
    }
    let gone = Comparison::breaks(old, &json!({"paths": {}}));
    assert_eq!(gone.len(), Contract::shared().operations.len());
}
