//! A `[[test]]` table of the gateway's file, made of a request and its decision.

use postern_core::hidden_characters::is_hidden;
use serde_json::{Value, json};

use crate::widgets::plain;

/// Returns the caller of an event of the live tail as the member `principal` of
/// `POST /admin/explain`. The claims of its token are not known.
pub(super) fn principal(event: &Value) -> Value {
    match (event["kind"].as_str(), event["caller_service"].as_str()) {
        (Some("user"), _) => {
            let [groups, scopes] = ["groups", "scopes"].map(|name| texts(&event[name]));
            let mut user = json!({ "groups": groups, "scopes": scopes });
            if let Some(subject) = event["subject"].as_str() {
                user["subject"] = json!(subject);
            }
            user
        }
        (Some("service"), Some(name)) => json!(format!("service:{name}")),
        (Some(_) | None, _) => json!("none"),
    }
}

fn texts(list: &Value) -> Vec<String> {
    let values = list.as_array().into_iter().flatten();
    values.map(plain).collect()
}

/// Returns the key `token` of a test for a principal; `None` for its default.
fn token(principal: &Value) -> Option<String> {
    if let Some(name) = principal.as_str() {
        return (name != "none").then(|| quoted(name));
    }
    let subject = principal["subject"].as_str();
    let subject = subject.map(|it| format!("subject = {}", quoted(it)));
    let mut members: Vec<String> = subject.into_iter().collect();
    for name in ["groups", "scopes"] {
        let values: Vec<String> = texts(&principal[name])
            .iter()
            .map(|it| quoted(it))
            .collect();
        if !values.is_empty() {
            members.push(format!("{name} = [{}]", values.join(", ")));
        }
    }
    Some(match members.as_slice() {
        [] => quoted("user"),
        members => format!("{{ {} }}", members.join(", ")),
    })
}

/// The decision that a test expects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    decision: String,
    status: Option<u16>,
}

/// Returns the test of a request, by the explanation of a gateway or, without one, by the event.
/// `None` if the request was not decided.
pub(super) fn route_test(event: &Value, explained: Option<&Value>) -> Option<String> {
    let (method, path) = (event["method"].as_str()?, event["path"].as_str()?);
    let expected = match explained {
        Some(answer) => expected_of(&plain(&answer["decision"]))?,
        None => expected_by(event)?,
    };
    let text = |name: &str| plain(&event[name]);
    let seen = format!("{} {} {}", text("timestamp"), text("status"), text("code"));
    let seen: String = seen.chars().filter(|it| !it.is_control()).collect();
    let mut lines = vec![format!("# As at {seen}"), "[[test]]".to_owned()];
    let mut add = |key: &str, value: String| lines.push(format!("{key} = {value}"));
    add("request", quoted(&format!("{method} {path}")));
    for (key, member) in [("host", "host"), ("client_address", "client")] {
        if let Some(value) = event[member].as_str() {
            add(key, quoted(value));
        }
    }
    if let Some(token) = token(&principal(event)) {
        add("token", token);
    }
    let route = explained.map_or_else(|| text("route"), route_of);
    if !["", "none"].contains(&route.as_str()) {
        add("route", quoted(&route));
    }
    add("decision", quoted(&expected.decision));
    if let Some(status) = expected.status {
        add("status", status.to_string());
    }
    lines.push(String::new());
    Some(lines.join("\n"))
}

/// Returns the name of the explained route, or `none`.
fn route_of(answer: &Value) -> String {
    let route = plain(&answer["route"]);
    route.split(':').next().unwrap_or_default().to_owned()
}

/// Reads the line `decision` of an explanation: `allow`, `redirect 301 …`, `respond 200 …`, or
/// status, code and title of a rejection.
fn expected_of(line: &str) -> Option<Expected> {
    let mut words = line.split_whitespace();
    let (first, second) = (words.next()?, words.next());
    if first.parse::<u16>().is_ok() {
        return Some(Expected {
            decision: second?.trim_end_matches(':').to_owned(),
            status: None,
        });
    }
    Some(Expected {
        decision: first.to_owned(),
        status: second.and_then(|status| status.parse().ok()),
    })
}

fn expected_by(event: &Value) -> Option<Expected> {
    let decision = match event["decision"].as_str()? {
        "forwarded" => "allow".to_owned(),
        "rejected" => plain(&event["code"]),
        _ => return None,
    };
    Some(Expected {
        decision,
        status: None,
    })
}

/// Returns a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() || is_hidden(character) => {
                quoted.push_str(&format!("\\U{:08X}", u32::from(character)));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use postern_core::decode::{Mistakes, toml};

    use super::*;

    fn parsed(text: &str) -> Value {
        let mistakes = Mistakes::default();
        let node = toml(text, &mistakes).expect("TOML");
        node.to_json()["test"][0].clone()
    }

    #[test]
    fn test_has_request_caller_and_explained_decision() {
        let event = json!({
            "timestamp": "2026-11-25T17:00:00.000Z", "method": "GET", "path": "/orders/42", "host": "gate.example",
            "route": "orders", "status": 403, "code": "insufficient_scope", "decision": "rejected",
            "kind": "user", "subject": "ada", "groups": ["support"], "scopes": [], "client": "192.0.2.0",
        });
        let explained = json!({ "route": "orders: GET /orders/{id}", "decision": "403 insufficient_scope: The access" });
        let expected = "# As at 2026-11-25T17:00:00.000Z 403 insufficient_scope\n[[test]]\n\
             request = \"GET /orders/42\"\nhost = \"gate.example\"\nclient_address = \"192.0.2.0\"\n\
             token = { subject = \"ada\", groups = [\"support\"] }\nroute = \"orders\"\ndecision = \"insufficient_scope\"\n";
        let test = route_test(&event, Some(&explained));
        assert_eq!(test.as_deref(), Some(expected));
        assert_eq!(route_test(&event, None).as_deref(), Some(expected));
        assert_eq!(parsed(expected)["decision"], "insufficient_scope");
    }

    #[test]
    fn test_names_the_kinds_of_decisions_and_callers() {
        let event = |kind: &str, service: &str| json!({ "method": "GET", "path": "/x", "kind": kind, "caller_service": service });
        let test = |event: &Value, decision: &str| {
            let explained = json!({ "route": "none: no path matches", "decision": decision });
            parsed(&route_test(event, Some(&explained)).expect("a test"))
        };
        let service = test(&event("service", "auth"), "allow");
        assert_eq!(
            (&service["token"], &service["decision"]),
            (&json!("service:auth"), &json!("allow"))
        );
        assert_eq!(service["route"], Value::Null);
        let user = test(&event("user", ""), "redirect 308 https://gate/x");
        assert_eq!(
            (&user["token"], &user["decision"]),
            (&json!("user"), &json!("redirect"))
        );
        assert_eq!(user["status"], 308);
        let nobody = test(
            &json!({ "method": "GET", "path": "/x" }),
            "400 invalid_target",
        );
        assert_eq!(
            (&nobody["token"], &nobody["decision"]),
            (&Value::Null, &json!("invalid_target"))
        );
        assert_eq!(route_test(&json!({ "status": 400 }), None), None);
        let aborted = json!({ "method": "GET", "path": "/x", "decision": "aborted" });
        assert_eq!(route_test(&aborted, None), None);
    }

    #[test]
    fn hostile_text_stays_inside_its_value() {
        let hostile = "a\"\n[[route]]\nname = \"x\\\u{202e}\u{e0041}";
        let event = json!({
            "timestamp": "x\n[[route]]", "method": "GET", "path": format!("/{hostile}"), "host": hostile,
            "kind": "service", "caller_service": hostile, "decision": "forwarded", "route": hostile,
        });
        let test = route_test(&event, None).expect("a test");
        let parsed = parsed(&test);
        assert_eq!(parsed["host"], hostile, "{test}");
        assert_eq!(parsed["route"], hostile, "{test}");
        assert_eq!(test.matches("\n[[").count(), 1, "{test}");
        assert!(!test.contains(is_hidden), "{test}");
    }
}
