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
    document: Value,
    operations: Vec<Operation>,
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
    json_body: Option<Value>,
    /// Responses by status, with references resolved.
    pub responses: BTreeMap<u16, Value>,
}

// === impl Operation ===

impl Operation {
    /// Returns the media type object of the `application/json` request body, with `schema` and
    /// `example`.
    #[must_use]
    pub fn json_body(&self) -> Option<&Value> {
        self.json_body.as_ref()
    }
}

// === impl Contract ===

impl Contract {
    /// Returns the document of this repository, read once per test program.
    ///
    /// # Panics
    /// If it does not exist or is not an OpenAPI document.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Contract> = OnceLock::new();
        SHARED.get_or_init(Self::of_repository)
    }

    /// Returns a separate copy, for one test that counts responses. It is leaked, because a test
    /// program is short-lived.
    #[must_use]
    pub fn fresh() -> &'static Self {
        Box::leak(Box::new(Self::of_repository()))
    }

    fn of_repository() -> Self {
        Self::parse(&paths::read("conf/openapi.json"))
    }

    /// Parses a document.
    ///
    /// # Panics
    /// If it is not an OpenAPI document.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let document: Value = serde_json::from_str(text).expect("the contract is JSON");
        let operations = operations(&document);
        Self {
            document,
            operations,
            seen: Mutex::default(),
        }
    }

    /// Returns the document.
    #[must_use]
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Returns all operations.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Returns the operation of a request. A literal path has precedence over a template.
    #[must_use]
    pub fn find(&self, method: &Method, path: &str) -> Option<&Operation> {
        self.operations
            .iter()
            .filter(|operation| operation.method == *method && matches(&operation.path, path))
            .min_by_key(|operation| operation.path.matches('{').count())
    }

    /// Returns the methods of a path.
    #[must_use]
    pub fn methods(&self, path: &str) -> Vec<&Method> {
        let of_path = |operation: &&Operation| matches(&operation.path, path);
        self.operations
            .iter()
            .filter(of_path)
            .map(|operation| &operation.method)
            .collect()
    }

    /// Asserts that a response of the gateway conforms to the contract.
    ///
    /// # Panics
    /// If it does not; the message lists the differences.
    #[track_caller]
    pub fn assert_conforms(&self, method: &Method, path: &str, answer: &Answer) {
        if let Err(mistakes) = self.check(method, path, answer) {
            panic!(
                "{} answered {} against the contract: {mistakes}\n{}",
                answer.asked,
                answer.status,
                answer.text()
            );
        }
    }

    /// Returns the operations and statuses of which a conforming response has been seen.
    #[must_use]
    pub fn seen(&self) -> BTreeSet<(String, u16)> {
        self.seen.lock().clone()
    }

    fn note(&self, operation: &Operation, status: u16) {
        self.seen.lock().insert((operation.id.clone(), status));
    }

    /// Resolves a `$ref` into this document.
    #[must_use]
    pub fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        resolve(&self.document, value)
    }
}

fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|target| target.strip_prefix('#'))
    {
        Some(pointer) => document
            .pointer(pointer)
            .unwrap_or_else(|| panic!("{pointer} does not exist")),
        None => value,
    }
}

fn operations(document: &Value) -> Vec<Operation> {
    let paths = document["paths"]
        .as_object()
        .expect("the contract has paths");
    let mut all = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().expect("a path item is an object") {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let responses = operation["responses"]
                .as_object()
                .expect("an operation has responses");
            let responses = responses
                .iter()
                .map(|(status, response)| {
                    (
                        status.parse().expect("a status is a number"),
                        resolve(document, response).clone(),
                    )
                })
                .collect();
            let security = operation["security"]
                .as_array()
                .expect("an operation declares its security");
            all.push(Operation {
                id: operation["operationId"]
                    .as_str()
                    .expect("an operation has an id")
                    .to_owned(),
                method,
                path: path.clone(),
                is_protected: !security.is_empty(),
                json_body: operation
                    .pointer("/requestBody/content/application~1json")
                    .cloned(),
                responses,
            });
        }
    }
    all
}

fn matches(template: &str, path: &str) -> bool {
    let (mut left, mut right) = (template.split('/'), path.split('/'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(part), Some(given)) if part.starts_with('{') && !given.is_empty() => {}
            (Some(part), Some(given)) if part == given => {}
            (Some(_) | None, Some(_) | None) => return false,
        }
    }
}
