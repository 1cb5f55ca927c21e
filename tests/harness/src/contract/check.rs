//! Checks of a response against an operation.

use http::Method;
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
    /// rejected.
    ///
    /// # Errors
    /// Returns all differences.
    pub fn check(&self, method: &Method, path: &str, answer: &Answer) -> Result<(), String> {
        let status = answer.status.as_u16();
        let operation = self.find(method, path);
        let documented = match operation {
            Some(operation) => operation.responses.get(&status),
            None => self.of_undocumented(status),
        };
        let Some(documented) = documented else {
            return Err(format!(
                "{} has no {status}",
                operation.map_or("an undocumented request", |one| &one.id)
            ));
        };
        let elsewhere = operation.map(header_names).unwrap_or_default();
        let mut mistakes = self.check_headers(documented, &elsewhere, answer);
        mistakes.extend(self.check_body(documented, answer));
        if !mistakes.is_empty() {
            return Err(mistakes.join("; "));
        }
        if let Some(operation) = operation {
            self.note(operation, status);
        }
        Ok(())
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
        self.document()
            .pointer(&format!("/components/responses/{name}"))
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
        let none = serde_json::Map::new();
        let headers = documented["headers"].as_object().unwrap_or(&none);
        for (name, header) in headers {
            let header = self.resolve(header);
            match answer
                .headers
                .get(name)
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
            {
                None if header["required"] == true => mistakes.push(format!("no header {name}")),
                None => {}
                Some(value) => {
                    let value = as_documented(&header["schema"], &value);
                    mistakes.extend(self.check_value(
                        &header["schema"],
                        &value,
                        &format!("header {name}"),
                    ));
                }
            }
        }
        for name in answer.headers.keys().map(http::HeaderName::as_str) {
            let mut known = headers
                .keys()
                .map(String::as_str)
                .chain(elsewhere.iter().copied());
            if !TRANSPORT.contains(&name) && !known.any(|known| known.eq_ignore_ascii_case(name)) {
                mistakes.push(format!("the header {name} is not documented"));
            }
        }
        mistakes
    }

    fn check_body(&self, documented: &Value, answer: &Answer) -> Vec<String> {
        let Some(content) = documented.get("content").and_then(Value::as_object) else {
            let is_empty = answer.body.is_empty();
            return if is_empty {
                Vec::new()
            } else {
                vec!["a body where none is documented".to_owned()]
            };
        };
        let media = answer
            .headers
            .get("content-type")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let Some(documented) = content.get(media) else {
            return vec![format!(
                "the content type is {media:?}, not one of {:?}",
                content.keys()
            )];
        };
        if !media.ends_with("json") {
            return self.check_value(&documented["schema"], &answer.text().into(), "body");
        }
        match serde_json::from_slice(&answer.body) {
            Ok(body) => {
                let mut mistakes = self.check_value(&documented["schema"], &body, "body");
                if body.get("errors").is_some() && ![400, 422].contains(&answer.status.as_u16()) {
                    mistakes.push("only 400 and 422 have errors".to_owned());
                }
                mistakes
            }
            Err(error) => vec![format!("the body is not JSON: {error}")],
        }
    }

    /// Checks a value against a schema of this document (JSON Schema 2020-12, with formats). Clients
    /// must ignore unknown fields of responses; the tests must know all of them.
    ///
    /// # Panics
    /// If the schema is invalid.
    #[must_use]
    pub fn check_value(&self, schema: &Value, value: &Value, name: &str) -> Vec<String> {
        let mut root = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "allOf": [schema],
            "components": self.document()["components"],
        });
        let schemas = root["components"]["schemas"].as_object_mut();
        for (name, schema) in schemas.into_iter().flatten() {
            if schema["type"] == "object" && OPEN.split(' ').all(|open| open != name) {
                let schema = schema.as_object_mut().expect("a schema");
                let closed = schema.entry("additionalProperties");
                closed.or_insert(Value::Bool(false));
            }
        }
        let validator = match jsonschema::options()
            .should_validate_formats(true)
            .build(&root)
        {
            Ok(validator) => validator,
            Err(error) => panic!("{name}: the schema is invalid: {error}: {schema}"),
        };
        validator
            .iter_errors(value)
            .map(|error| format!("{name}{}: {error}", error.instance_path()))
            .collect()
    }

    /// Returns the operations without a successful response in this test program.
    #[must_use]
    pub fn unanswered(&self) -> Vec<&Operation> {
        let seen = self.seen();
        let is_answered = |operation: &Operation| {
            seen.iter()
                .any(|(id, status)| *id == operation.id && *status < 400)
        };
        self.operations()
            .iter()
            .filter(|operation| !is_answered(operation))
            .collect()
    }
}

fn header_names(operation: &Operation) -> Vec<&str> {
    let headers = operation
        .responses
        .values()
        .filter_map(|response| response["headers"].as_object());
    headers
        .flat_map(serde_json::Map::keys)
        .map(String::as_str)
        .collect()
}

/// Converts a header to the type of its schema: a number if the schema requires one.
fn as_documented(schema: &Value, text: &str) -> Value {
    match (schema["type"].as_str(), text.parse::<i64>()) {
        (Some("integer"), Ok(number)) => json!(number),
        (Some(_) | None, Ok(_) | Err(_)) => json!(text),
    }
}
