//! Checks of a response against an operation.

use http::{HeaderName, Method};
use serde_json::{Value, json};

use super::{Contract, Operation};
use crate::answer::Answer;

/// Headers that a response may have without documentation: those of the transport, of tracing, and
/// of caches for CORS.
const TRANSPORT: &[&str] = &[
    "content-type",
    "content-length",
    "transfer-encoding",
    "connection",
    "date",
    "vary",
    "x-request-id",
];

/// Schemas whose further fields the document leaves to other systems.
const OPEN: &str = "Actor Feature IssuerDescription KeySet RegisteredActor Resume";

impl Contract {
    /// Checks status, headers, media type and body. A request without an operation must have been
    /// rejected. Returns all differences.
    pub(super) fn mistakes(&self, method: &Method, path: &str, answer: &Answer) -> Vec<String> {
        let status = answer.status.as_u16();
        let operation = self.find(method, path);
        let documented = match operation {
            Some(operation) => operation.responses.get(&status),
            None => self.of_undocumented(status),
        };
        let Some(documented) = documented else {
            let request = operation.map_or("an undocumented request", |one| &one.id);
            return vec![format!("{request} has no {status}")];
        };
        let elsewhere = operation.map(header_names).unwrap_or_default();
        let mut mistakes = self.check_headers(documented, &elsewhere, answer);
        mistakes.extend(self.check_body(documented, answer));
        mistakes
    }

    /// Returns the documented response for a path or method that is not documented.
    fn of_undocumented(&self, status: u16) -> Option<&Value> {
        let name = match status {
            400 => "BadRequest",
            401 => "Unauthorized",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            414 => "TargetTooLong",
            429 => "TooManyRequests",
            431 => "HeadTooLarge",
            _ => return None,
        };
        self.document["components"]["responses"].get(name)
    }

    /// Checks the headers. `elsewhere` lists headers that the operation documents for other
    /// responses, which are allowed too.
    fn check_headers(
        &self,
        documented: &Value,
        elsewhere: &[&str],
        answer: &Answer,
    ) -> Vec<String> {
        let mut mistakes = Vec::new();
        let headers = documented["headers"].as_object().into_iter().flatten();
        let mut known = [TRANSPORT, elsewhere].concat();
        for (name, header) in headers {
            known.push(name);
            let header = self.resolve(header);
            match answer.headers.get(name) {
                Some(value) => {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    let value = as_documented(&header["schema"], &value);
                    let name = format!("header {name}");
                    mistakes.extend(self.check_value(&header["schema"], &value, &name));
                }
                None if header["required"] == true => mistakes.push(format!("no header {name}")),
                None => {}
            }
        }
        let is_known = |name: &str| known.iter().any(|known| known.eq_ignore_ascii_case(name));
        let sent = answer.headers.keys().map(HeaderName::as_str);
        let unknown = sent.filter(|name| !is_known(name));
        mistakes.extend(unknown.map(|name| format!("the header {name} is not documented")));
        mistakes
    }

    fn check_body(&self, documented: &Value, answer: &Answer) -> Vec<String> {
        let Some(content) = documented.get("content") else {
            let is_empty = answer.body.is_empty();
            let mistake = (!is_empty).then(|| "a body where none is documented".to_owned());
            return mistake.into_iter().collect();
        };
        let media = answer.headers.get("content-type");
        let media = media.and_then(|value| value.to_str().ok());
        let media = media.unwrap_or_default();
        let Some(documented) = content.get(media) else {
            return vec![format!("the content type {media:?} is not in {content}")];
        };
        if !media.ends_with("json") {
            return self.check_value(&documented["schema"], &answer.text().into(), "body");
        }
        let body = match serde_json::from_slice::<Value>(&answer.body) {
            Ok(body) => body,
            Err(error) => return vec![format!("the body is not JSON: {error}")],
        };
        let mut mistakes = self.check_value(&documented["schema"], &body, "body");
        if body.get("errors").is_some() && ![400, 422].contains(&answer.status.as_u16()) {
            mistakes.push("only 400 and 422 have errors".to_owned());
        }
        mistakes
    }

    /// Checks a value against a schema of this document (JSON Schema 2020-12, with formats). Clients
    /// must ignore unknown fields of responses; the tests must know all of them.
    pub fn check_value(&self, schema: &Value, value: &Value, name: &str) -> Vec<String> {
        let mut root = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "allOf": [schema],
            "components": self.document["components"],
        });
        let schemas = root["components"]["schemas"].as_object_mut();
        for (name, schema) in schemas.into_iter().flatten() {
            if schema["type"] == "object" && OPEN.split(' ').all(|open| open != name) {
                let schema = schema.as_object_mut().expect("a schema");
                let closed = schema.entry("additionalProperties");
                closed.or_insert(Value::Bool(false));
            }
        }
        let options = jsonschema::options().should_validate_formats(true);
        let validator = options.build(&root);
        let validator = validator.unwrap_or_else(|error| panic!("{name}: {error}: {schema}"));
        let errors = validator.iter_errors(value);
        errors
            .map(|error| format!("{name}{}: {error}", error.instance_path()))
            .collect()
    }
}

fn header_names(operation: &Operation) -> Vec<&str> {
    let responses = operation.responses.values();
    let headers = responses.filter_map(|response| response["headers"].as_object());
    headers
        .flat_map(|all| all.keys().map(String::as_str))
        .collect()
}

/// Converts a header to the type of its schema: a number if the schema requires one.
fn as_documented(schema: &Value, text: &str) -> Value {
    match (schema["type"].as_str(), text.parse::<i64>()) {
        (Some("integer"), Ok(number)) => json!(number),
        (Some(_) | None, Ok(_) | Err(_)) => json!(text),
    }
}
