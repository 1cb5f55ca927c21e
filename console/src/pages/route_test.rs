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
        return (name != "none").then(|| toml(principal));
    }
    let names = ["subject", "groups", "scopes"].into_iter();
    let set = names.filter(|name| !plain(&principal[*name]).is_empty());
    let members: Vec<String> = set
        .map(|name| format!("{name} = {}", toml(&principal[name])))
        .collect();
    Some(match members.as_slice() {
        [] => toml(&json!("user")),
        members => format!("{{ {} }}", members.join(", ")),
    })
}

/// Returns the test of a request, by the explanation of a gateway or, without one, by the event.
/// `None` if the request was not decided.
pub(super) fn route_test(event: &Value, explained: Option<&Value>) -> Option<String> {
    let (method, path) = (event["method"].as_str()?, event["path"].as_str()?);
    let text = |name: &str| plain(&event[name]);
    let (decision, status) = match explained {
        Some(answer) => decision_of(&plain(&answer["decision"]))?,
        None => match event["decision"].as_str()? {
            "forwarded" => ("allow".to_owned(), None),
            "rejected" => (text("code"), None),
            _ => return None,
        },
    };
    let seen = format!("{} {} {}", text("timestamp"), text("status"), text("code"));
    let seen: String = seen.chars().filter(|it| !it.is_control()).collect();
    let mut lines = vec![format!("# As at {seen}"), "[[test]]".to_owned()];
    let mut add = |key: &str, value: String| lines.push(format!("{key} = {value}"));
    add("request", toml(&json!(format!("{method} {path}"))));
    for (key, member) in [("host", "host"), ("client_address", "client")] {
        if event[member].is_string() {
            add(key, toml(&event[member]));
        }
    }
    if let Some(token) = token(&principal(event)) {
        add("token", token);
    }
    let route = explained.map_or_else(|| text("route"), |answer| plain(&answer["route"]));
    // An explanation has the methods and the path behind the name.
    let route = route.split(": ").next().unwrap_or_default();
    if !["", "none"].contains(&route) {
        add("route", toml(&json!(route)));
    }
    add("decision", toml(&json!(decision)));
    if let Some(status) = status {
        add("status", status.to_string());
    }
    Some(lines.join("\n") + "\n")
}

/// Reads the line `decision` of an explanation: `allow`, `redirect 301 …`, `respond 200 …`, or
/// status, code and title of a rejection. Returns the decision and the status that a test expects.
fn decision_of(line: &str) -> Option<(String, Option<u16>)> {
    let mut words = line.split_whitespace();
    let (first, second) = (words.next()?, words.next());
    if first.parse::<u16>().is_ok() {
        return Some((second?.trim_end_matches(':').to_owned(), None));
    }
    let status = second.and_then(|status| status.parse().ok());
    Some((first.to_owned(), status))
}

/// Returns a string, or a list of strings, in TOML: its JSON, of which TOML has the escapes. What TOML
/// forbids or a reader does not see is escaped, too.
fn toml(value: &Value) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        if character.is_control() || is_hidden(character) {
            text.push_str(&format!("\\U{:08X}", u32::from(character)));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use postern_core::decode::{self, Mistakes};

    use super::*;

    fn parsed(text: &str) -> Value {
        let mistakes = Mistakes::default();
        let node = decode::toml(text, &mistakes).expect("TOML");
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
