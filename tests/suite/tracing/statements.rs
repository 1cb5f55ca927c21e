//! Spans of database statements, of PostgreSQL and of SQLite.

use std::collections::BTreeMap;

use super::{Span, Spans};

/// The statements that accept one notification, record the result of its delivery, and store the
/// audit event of a sign-in.
struct Expected {
    accept: &'static [&'static str],
    finish: &'static [&'static str],
    sign_in: &'static [&'static str],
}

/// One statement each.
const POSTGRES: Expected = Expected {
    accept: &["INSERT notify_key INSERT notify_record INSERT notify_queue INSERT notify_delayed"],
    finish: &[
        "DELETE notify_queue SELECT notify_queue INSERT notify_result INSERT notify_delayed INSERT notify_dead",
    ],
    sign_in: &["INSERT auth_audit"],
};

/// One transaction each, of the statements that have rows.
const SQLITE: Expected = Expected {
    accept: &[
        "BEGIN",
        "INSERT notify_record",
        "INSERT notify_queue",
        "COMMIT",
    ],
    finish: &[
        "BEGIN",
        "DELETE notify_queue",
        "INSERT notify_result",
        "COMMIT",
    ],
    sign_in: &["INSERT auth_audit"],
};

/// Asserts names, parents and attributes of the statements of a sign-in, and of a notification that
/// was accepted and delivered.
pub(super) fn assert_statements(spans: &Spans, system: &str) {
    let expected = match system {
        "sqlite" => SQLITE,
        _ => POSTGRES,
    };
    for (service, parent, names) in [
        ("postern-notify", "POST /notifications", expected.accept),
        ("postern-notify", "process email", expected.finish),
        ("postern-auth", "POST /auth/login", expected.sign_in),
    ] {
        let parent = spans.only(service, parent);
        let statements = statements_below(spans, parent, system);
        let found: Vec<&str> = statements.iter().map(|span| &*span.name).collect();
        assert_eq!(found, names, "{parent:#?}");
        for statement in statements {
            assert_attributes(statement, system);
        }
    }
    // Background tasks, such as the scans of the queue, belong to no trace.
    let no_parent =
        |span: &&Span| span.attributes.contains_key("db.system.name") && span.parent.is_empty();
    assert!(spans.0.iter().find(no_parent).is_none(), "{:#?}", spans.0);
}

fn statements_below<'a>(spans: &'a Spans, parent: &Span, system: &str) -> Vec<&'a Span> {
    let system = format!("Str({system})");
    let is_statement = |span: &&Span| {
        span.parent == parent.id && span.attributes.get("db.system.name") == Some(&system)
    };
    let mut found: Vec<&Span> = spans.0.iter().filter(is_statement).collect();
    found.sort_by_key(|span| span.start);
    found
}

fn assert_attributes(span: &Span, system: &str) {
    assert_eq!(span.kind, "SPAN_KIND_CLIENT");
    let words: Vec<&str> = span.name.split(' ').collect();
    let mut expected =
        BTreeMap::from([("db.system.name", system), ("db.query.summary", &span.name)]);
    // A statement of several operations or tables has no attribute for one of them.
    if words
        .iter()
        .step_by(2)
        .all(|operation| *operation == words[0])
    {
        expected.insert("db.operation.name", words[0]);
    }
    if let [_, table] = words[..] {
        expected.insert("db.collection.name", table);
    }
    if system == "postgresql" {
        expected.insert("server.address", "127.0.0.1");
    }
    let mut found = span.attributes.clone();
    // The port and the name of the database differ in each run.
    found.remove("server.port");
    let namespace = found.remove("db.namespace");
    assert_eq!(namespace.is_some(), system == "postgresql", "{span:#?}");
    let expected: BTreeMap<String, String> = expected
        .into_iter()
        .map(|(name, value)| (name.to_owned(), format!("Str({value})")))
        .collect();
    assert_eq!(found, expected, "{span:#?}");
}
