//! Spans of database statements.

use std::collections::BTreeMap;

use super::{Span, Spans};

/// Asserts names, parents and attributes of the statements of a sign-in, and of a notification that
/// was accepted and delivered, one statement or transaction each.
pub(super) fn assert_statements(spans: &Spans) {
    // A user's request counts what waits for the user first.
    let accept = &["SELECT notify_queue", "INSERT notify_record"][..];
    for (service, parent, names) in [
        ("postern-notify", "POST /notifications", accept),
        (
            "postern-notify",
            "process email",
            &["SELECT notify_suppression", "DELETE notify_queue"][..],
        ),
        (
            "postern-auth",
            "POST /auth/login",
            &["INSERT auth_audit"][..],
        ),
    ] {
        let parent = spans.only(service, parent);
        let statements = statements_below(spans, parent);
        let found: Vec<&str> = statements.iter().map(|span| &*span.name).collect();
        assert_eq!(found, names, "{parent:#?}");
        statements.into_iter().for_each(assert_attributes);
    }
    // Background tasks, such as the claims of the queue, belong to no trace.
    let no_parent =
        |span: &&Span| span.attributes.contains_key("db.system.name") && span.parent.is_empty();
    assert!(spans.0.iter().find(no_parent).is_none(), "{:#?}", spans.0);
}

fn statements_below<'a>(spans: &'a Spans, parent: &Span) -> Vec<&'a Span> {
    let is_statement = |span: &&Span| {
        let system = span.attributes.get("db.system.name");
        span.parent == parent.id && system.is_some_and(|system| system == "Str(postgresql)")
    };
    spans.0.iter().filter(is_statement).collect()
}

fn assert_attributes(span: &Span) {
    assert_eq!(span.kind, "SPAN_KIND_CLIENT");
    let mut found = span.attributes.clone();
    // The port and the name of the database differ in each run.
    for name in ["server.port", "db.namespace"] {
        assert!(found.remove(name).is_some(), "{span:#?}");
    }
    let expected = [
        ("db.system.name", "postgresql"),
        ("db.query.summary", &span.name),
        ("server.address", "127.0.0.1"),
    ];
    let expected: BTreeMap<String, String> = expected
        .into_iter()
        .map(|(name, value)| (name.to_owned(), format!("Str({value})")))
        .collect();
    assert_eq!(found, expected, "{span:#?}");
}
