//! `conf/openapi.json`, and checks of responses against it.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use http::Method;
use parking_lot::Mutex;
use serde_json::Value;

use crate::answer::Answer;
use crate::paths;

/// The OpenAPI document, with the responses seen by this test program.
#[derive(Debug)]
pub struct Contract {
    /// The document.
    pub document: Value,
    /// All methods of its paths.
    pub operations: Vec<Operation>,
    seen: Mutex<BTreeSet<(String, u16)>>,
}

/// A method of a path.
#[derive(Clone, Debug)]
pub struct Operation {
    /// `operationId`.
    pub id: String,
    /// HTTP method.
    pub method: Method,
    /// The path template with its `{parameters}`.
    pub path: String,
    /// Whether it requires a token.
    pub is_protected: bool,
    /// The `application/json` request body: schema and example.
    pub json_body: Option<Value>,
    /// Responses by status, with references resolved.
    pub responses: BTreeMap<u16, Value>,
}

impl Operation {
    fn read(document: &Value, path: &str, method: &str, operation: &Value) -> Self {
        let responses = operation["responses"].as_object().expect("responses");
        let responses = responses.iter().map(|(status, response)| {
            let status = status.parse().expect("a status is a number");
            (status, resolve(document, response).clone())
        });
        let id = operation["operationId"].as_str();
        let security = operation["security"].as_array();
        let json_body = operation.pointer("/requestBody/content/application~1json");
        Self {
            id: id.expect("an operation has an id").to_owned(),
            method: method.to_uppercase().parse().expect("a method"),
            path: path.to_owned(),
            is_protected: !security.expect("an operation declares it").is_empty(),
            json_body: json_body.cloned(),
            responses: responses.collect(),
        }
    }

    /// Returns a path of the operation: the names of the parameters are their values.
    pub fn sample_path(&self) -> String {
        self.path.replace(['{', '}'], "")
    }
}

impl Contract {
    /// Returns the document of this repository, read once per test program.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Contract> = OnceLock::new();
        SHARED.get_or_init(Self::read)
    }

    /// Returns a separate copy, for one test that counts responses. It is leaked, because a test
    /// program is short-lived.
    pub fn fresh() -> &'static Self {
        Box::leak(Box::new(Self::read()))
    }

    fn read() -> Self {
        let document: Value =
            serde_json::from_str(&paths::read("conf/openapi.json")).expect("JSON");
        let mut operations = Vec::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            let methods = item.as_object().expect("a path item is an object");
            let read = |(method, it): (&String, _)| Operation::read(&document, path, method, it);
            operations.extend(methods.iter().map(read));
        }
        Self {
            document,
            operations,
            seen: Mutex::default(),
        }
    }

    /// Returns the operation of a request. A literal path has precedence over a template.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Operation> {
        let is_requested = |it: &&Operation| it.method == *method && matches(&it.path, path);
        let requested = self.operations.iter().filter(is_requested);
        requested.min_by_key(|operation| operation.path.matches('{').count())
    }

    /// Returns the methods of a path.
    pub fn methods(&self, path: &str) -> BTreeSet<&str> {
        let of_path = self.operations.iter().filter(|it| matches(&it.path, path));
        of_path.map(|operation| operation.method.as_str()).collect()
    }

    /// Asserts that a response of the gateway conforms to the contract.
    #[track_caller]
    pub fn assert_conforms(&self, method: &Method, path: &str, answer: &Answer) {
        let mistakes = self.mistakes(method, path, answer).join("; ");
        if !mistakes.is_empty() {
            let (asked, status, text) = (&answer.asked, answer.status, answer.text());
            panic!("{asked} answered {status} against the contract: {mistakes}\n{text}");
        }
        if let Some(operation) = self.find(method, path) {
            let seen = (operation.id.clone(), answer.status.as_u16());
            self.seen.lock().insert(seen);
        }
    }

    /// Returns the operations and statuses of which no response has been seen.
    pub fn unseen(&self) -> BTreeSet<(&str, u16)> {
        let documented = self.operations.iter().flat_map(|operation| {
            let statuses = operation.responses.keys();
            statuses.map(|status| (operation.id.as_str(), *status))
        });
        let seen = self.seen.lock();
        documented
            .filter(|(id, status)| !seen.contains(&((*id).to_owned(), *status)))
            .collect()
    }

    /// Resolves a `$ref` into this document.
    pub fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        resolve(&self.document, value)
    }
}

fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target = value.get("$ref").and_then(Value::as_str);
    match target.and_then(|target| target.strip_prefix('#')) {
        Some(pointer) => document
            .pointer(pointer)
            .unwrap_or_else(|| panic!("{pointer} does not exist")),
        None => value,
    }
}

fn matches(template: &str, path: &str) -> bool {
    let (parts, given) = (template.split('/'), path.split('/'));
    let is_same =
        |(part, given): (&str, &str)| part == given || (part.starts_with('{') && !given.is_empty());
    parts.clone().count() == given.clone().count() && parts.zip(given).all(is_same)
}
