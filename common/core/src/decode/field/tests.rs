use super::*;
use crate::decode::json;

fn mistakes<T>(text: &str, read: impl FnOnce(Field<'_>) -> Option<T>) -> Vec<Mistake> {
    let mistakes = Mistakes::default();
    let root = json(text.as_bytes(), &mistakes).expect("JSON");
    let value = read(mistakes.field(&root));
    mistakes.finish(value).err().unwrap_or_default()
}

fn pointers_and_codes(found: &[Mistake]) -> Vec<(&str, &str)> {
    let found = found.iter();
    found.map(|it| (it.pointer.as_str(), it.code)).collect()
}

#[test]
fn every_mistake_is_reported_at_once() {
    let read = |object: &Object<'_>| {
        object.optional("n", |field| {
            field.object(|n| n.required("k", |k| k.integer(5..=9)))
        });
        let email = object.required("email", |field| field.text(1..=9));
        let password = object.required("password", |field| field.text(1..=9));
        password.zip(email)
    };
    let text = r#"{"email":7,"emial":"a","n":{"k":1,"k":2}}"#;
    let found = mistakes(text, |root| root.object(read));
    let expected = [
        ("/n/k", "duplicate_field"),
        ("/n/k", "out_of_range"),
        ("/email", "invalid_type"),
        ("/password", "missing_field"),
        ("/emial", "unknown_field"),
    ];
    assert_eq!(pointers_and_codes(&found), expected);
}

#[test]
fn duplicate_name_is_found_in_small_and_large_objects() {
    for names in [1, 2, 15, 16, 17, 18, 40] {
        for first in [0, names / 2, names - 1] {
            let mut text: String = (0..names).map(|at| format!("\"{at}\":0,")).collect();
            text.push_str(&format!("\"{first}\":0,\"last\":0"));
            let found = mistakes(&format!("{{{text}}}"), |_| Some(()));
            let expected = [(&*format!("/{first}"), "duplicate_field")];
            assert_eq!(pointers_and_codes(&found), expected, "{names} names");
        }
    }
}

#[test]
fn durations_and_sizes_have_units() {
    assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
    assert_eq!(parse_duration("5"), None);
    assert_eq!(parse_bytes("64KiB"), Some(65_536));
    assert_eq!(parse_bytes("99999999999999999999"), None);
}

#[test]
fn recorded_mistakes_are_bounded_by_the_text() {
    let name = "ä".repeat(10_000);
    let text = format!("{{\"{name}\":{{{}\"\":0}}}}", "\"\":0,".repeat(5_000));
    let all = mistakes(&text, |root| root.object(|_| Some(())));
    assert_eq!(all.len(), 100);
    let are_short = all.iter().all(|mistake| mistake.pointer.len() <= 256);
    assert!(are_short, "long pointers are truncated");
}

#[test]
fn unknown_names_beyond_the_kept_mistakes_cost_no_comparison() {
    const KNOWN: [&str; 8] = [
        "timeout-a",
        "timeout-b",
        "timeout-c",
        "timeout-d",
        "timeout-e",
        "timeout-f",
        "timeout-g",
        "timeout-h",
    ];
    let time = |names: u32| {
        // As long as the known ones: others are not compared.
        let entries = (0..names).map(|n| format!("\"name{n:05}\":0"));
        let text = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mistakes = Mistakes::default();
        let root = json(text.as_bytes(), &mistakes).expect("JSON");
        let started_at = std::time::Instant::now();
        let value = mistakes.object(&root, |object| {
            for name in KNOWN {
                object.optional(name, |field| field.text(1..=9));
            }
            Some(())
        });
        assert_eq!(mistakes.finish(value).expect_err("mistakes").len(), 100);
        started_at.elapsed()
    };
    let (kept, all) = (time(100), time(50_000));
    // A comparison of each would take five hundred times as long.
    let is_bounded = all < kept * 100;
    assert!(is_bounded, "{all:?} for 50,000 names, {kept:?} for 100");
}

#[test]
fn details_of_texts_and_urls_explain_the_mistake() {
    type Read = fn(Field<'_>) -> Option<()>;
    let text: Read = |field| field.text(2..=4).map(drop);
    let url: Read = |field| field.url().map(drop);
    let (long, credentials) = ("must be 2 to 4 characters long", "user information");
    for (read, value, expected) in [
        (text, "漢字漢字", None),
        (text, "漢字漢字漢", Some(long)),
        (text, "漢", Some(long)),
        (url, "http://host/a@b", None),
        (url, "ftp://host/", Some("http or https")),
        (url, "http://u@host/", Some(credentials)),
        (url, "http://u:pw@host/", Some(credentials)),
        (url, "http://:pw@host/", Some(credentials)),
    ] {
        let found = mistakes(&format!("\"{value}\""), read);
        let detail = found.first().map(|mistake| mistake.detail.as_str());
        assert_eq!(detail.is_some(), expected.is_some(), "{value}: {detail:?}");
        let detail = detail.unwrap_or_default();
        assert!(detail.contains(expected.unwrap_or_default()), "{detail}");
        assert!(!detail.contains("pw@"), "the password is not repeated");
    }
}
