//! Consistency checks of the OpenAPI document, and comparison with the code. References, unused components and ids are
//! checked by redocly (`front_end.rs`).

use std::collections::BTreeSet;

use postern_core::email::EmailAddress;
use postern_core::problem::Code;
use postern_harness::Contract;
use serde_json::Value;

/// Calls `visit` on every value of the document.
fn walk<'a>(value: &'a Value, visit: &mut impl FnMut(&'a Value)) {
    visit(value);
    match value {
        Value::Object(members) => members.values().for_each(|member| walk(member, visit)),
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Texts that are addresses or resemble them.
const ADDRESSES: &str = r#"
    @ ada @example.com ada@example.com Ada@Example.COM a.b+c@x-y.example.co a..b@example.com
    .a@example.com a.@example.com a@b@example.com ada@localhost ada@example.123 ada@example.12x
    ada@123.example ada@127.0.0.1 ada@-x.com ada@x-.com ada@x.-com ada@x..com ada@example.com.
    "a"@example.com ä@example.com"#;

#[test]
fn email_schema_accepts_what_the_decoder_accepts() {
    let schema = &Contract::shared().document["components"]["schemas"]["Email"];
    let long_local = format!("{}@example.com", "a".repeat(65));
    let long_host = format!("ada@{}com", "a.".repeat(125));
    let long_label = format!("ada@{}.com", "a".repeat(64));
    let longest = format!("{}@{}.com", "a".repeat(64), "b".repeat(63));
    let texts = ["", "ada@example.com\n"].into_iter();
    let texts = texts.chain(ADDRESSES.split_whitespace());
    let texts = texts.chain([&*long_local, &long_host, &long_label, &longest]);
    for text in texts {
        let is_valid = jsonschema::is_valid(schema, &text.into());
        assert_eq!(is_valid, EmailAddress::parse(text).is_some(), "{text:?}");
    }
}

#[test]
fn every_example_matches_its_schema() {
    let contract = Contract::shared();
    let mut mistakes = Vec::new();
    let mut count = 0;
    walk(&contract.document, &mut |value| {
        let Some(schema) = value.get("schema") else {
            return;
        };
        let named = value["examples"].as_object().into_iter().flatten();
        let named = named.map(|(_, example)| &example["value"]);
        for example in value.get("example").into_iter().chain(named) {
            count += 1;
            mistakes.extend(contract.check_value(schema, example, &example.to_string()));
        }
    });
    assert!(mistakes.is_empty(), "{mistakes:#?}");
    assert!(count > 40, "only {count} examples");
}

#[test]
fn every_json_body_has_an_example() {
    walk(&Contract::shared().document, &mut |value| {
        for media in ["application/json", "application/problem+json"] {
            if let Some(body) = value.get("content").and_then(|content| content.get(media)) {
                let example = body.get("example").or_else(|| body.get("examples"));
                assert!(example.is_some(), "{body}");
            }
        }
    });
}

#[test]
fn documented_codes_match_the_code() {
    let document = &Contract::shared().document;
    let documented = &document["components"]["schemas"]["Code"]["enum"];
    let known = Code::ALL.iter().map(|code| code.as_str());
    let known: Value = known.collect();
    assert_eq!(*documented, known);
}

/// Codes of the admin API (docs/reference/admin-api.md), which the contract of the public API does not describe.
const ADMIN_CODES: [Code; 2] = [Code::ConfigurationChanged, Code::ConfigurationReadOnly];

#[test]
fn every_code_is_documented_under_its_status_only() {
    let responses = Contract::shared().document["components"]["responses"]
        .as_object()
        .expect("responses");
    let mut seen = BTreeSet::new();
    for (name, response) in responses {
        let narrow =
            &response["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"];
        let status = narrow["status"]["const"].as_u64().expect("one status");
        let one = narrow["code"].get("const").into_iter();
        let many = narrow["code"]["enum"].as_array().into_iter().flatten();
        for code in one.chain(many).filter_map(Value::as_str) {
            let known = Code::ALL.iter().find(|known| known.as_str() == code);
            let known = known.expect("the code exists").status().as_u16();
            assert_eq!(u64::from(known), status, "{name}: {code}");
            seen.insert(code);
        }
    }
    let missing: Vec<_> = Code::ALL
        .iter()
        .filter(|code| !seen.contains(code.as_str()) && !ADMIN_CODES.contains(code))
        .collect();
    assert!(missing.is_empty(), "no response has {missing:?}");
    let public = ADMIN_CODES.iter().find(|code| seen.contains(code.as_str()));
    assert_eq!(public, None, "a code of the admin API only");
}

#[test]
fn protected_operations_document_401_and_public_ones_do_not() {
    for operation in &Contract::shared().operations {
        let public = "/auth/ /api/session /webhooks/ /unsubscriptions /.well-known/";
        let mut public = public.split(' ');
        let is_public = public.any(|prefix| operation.path.starts_with(prefix));
        let (id, is_protected) = (&operation.id, operation.is_protected);
        let expected = !is_public || operation.path == "/auth/me";
        assert_eq!(is_protected, expected, "{id}");
        let has_401 = operation.responses.contains_key(&401);
        assert!(has_401 || !is_protected, "{id}");
    }
}
