use super::*;
use crate::decode::{json, toml};

#[test]
fn every_mistake_is_reported_at_once() {
    let mistakes = Mistakes::default();
    let root = json(br#"{"email":7,"emial":"a","n":{"k":1,"k":2}}"#, &mistakes).expect("JSON");
    let value = mistakes.object(&root, |object| {
        object.optional("n", |field| {
            field.object(|n| n.required("k", |k| k.integer(5..=9)))
        });
        let email = object.required("email", |field| field.text(1..=9));
        object
            .required("password", |field| field.text(1..=9))
            .zip(email)
    });
    let found: Vec<(String, &str)> = mistakes
        .finish(value)
        .expect_err("mistakes")
        .into_iter()
        .map(|mistake| (mistake.pointer, mistake.code))
        .collect();
    let expected = [
        ("/n/k", "duplicate_field"),
        ("/n/k", "out_of_range"),
        ("/email", "invalid_type"),
        ("/password", "missing_field"),
        ("/emial", "unknown_field"),
    ];
    assert_eq!(
        found,
        expected.map(|(pointer, code)| (pointer.to_owned(), code))
    );
}

#[test]
fn duplicate_name_is_found_in_small_and_large_objects() {
    for names in [1, 2, 15, 16, 17, 18, 40] {
        for first in [0, names / 2, names - 1] {
            let mut text: String = (0..names).map(|at| format!("\"{at}\":0,")).collect();
            text.push_str(&format!("\"{first}\":0,\"last\":0"));
            let mistakes = Mistakes::default();
            json(format!("{{{text}}}").as_bytes(), &mistakes).expect("JSON");
            let found = mistakes.finish(Some(())).expect_err("a mistake");
            let found: Vec<_> = found
                .iter()
                .map(|mistake| (mistake.pointer.as_str(), mistake.code))
                .collect();
            assert_eq!(
                found,
                [(format!("/{first}").as_str(), "duplicate_field")],
                "{names} names"
            );
        }
    }
}

#[test]
fn toml_mistake_has_its_offset() {
    let mistakes = Mistakes::default();
    let root = toml("a = 1\n[b]\nc = 'x'\n", &mistakes).expect("TOML");
    let value = mistakes.object(&root, |object| {
        object.required("a", |field| field.integer(0..=9))?;
        object.section("b", |b| b.required("c", |field| field.boolean()))
    });
    let found = mistakes.finish(value).expect_err("a mistake");
    assert_eq!((found[0].pointer.as_str(), found[0].offset), ("/b/c", 10));
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
    let mistakes = Mistakes::default();
    let root = json(text.as_bytes(), &mistakes).expect("JSON");
    let value = mistakes.object(&root, |_| Some(()));
    let all = mistakes.finish(value).expect_err("mistakes");
    assert_eq!(all.len(), 100);
    assert!(
        all.iter().all(|mistake| mistake.pointer.len() <= 256),
        "long pointers are truncated"
    );
}

#[test]
fn unknown_names_beyond_the_kept_mistakes_cost_no_comparison() {
    const KNOWN: [&str; 8] = [
        "request-timeout-a",
        "request-timeout-b",
        "request-timeout-c",
        "request-timeout-d",
        "request-timeout-e",
        "request-timeout-f",
        "request-timeout-g",
        "request-timeout-h",
    ];
    let time = |names: u32| {
        let entries: Vec<_> = (0..names)
            .map(|n| format!("\"another-name-{n:05}\":0"))
            .collect();
        let text = format!("{{{}}}", entries.join(","));
        let mistakes = Mistakes::default();
        let root = json(text.as_bytes(), &mistakes).expect("JSON");
        let started_at = std::time::Instant::now();
        let value = mistakes.object(&root, |object| {
            KNOWN
                .into_iter()
                .for_each(|name| drop(object.optional(name, |field| field.text(1..=9))));
            Some(())
        });
        assert_eq!(mistakes.finish(value).expect_err("mistakes").len(), 100);
        started_at.elapsed()
    };
    let (kept, all) = (time(100), time(50_000));
    assert!(
        all < kept * 20,
        "{all:?} for 50,000 names, {kept:?} for 100"
    );
}

#[test]
fn length_of_text_counts_characters() {
    let read = |text: &str| {
        let mistakes = Mistakes::default();
        let root = json(format!("\"{text}\"").as_bytes(), &mistakes).expect("JSON");
        let value = mistakes.field(&root).text(2..=4);
        mistakes
            .finish(value)
            .map_err(|found| found[0].detail.clone())
    };
    assert_eq!(read("漢字漢字").as_deref(), Ok("漢字漢字"));
    let expected = Err("must be 2 to 4 characters long".to_owned());
    assert_eq!(read("漢字漢字漢"), expected);
    assert_eq!(read("漢"), expected);
}

#[test]
fn url_with_user_information_is_rejected() {
    let detail = |url: &str| {
        let mistakes = Mistakes::default();
        let root = json(format!("\"{url}\"").as_bytes(), &mistakes).expect("JSON");
        let value = mistakes.field(&root).url();
        mistakes
            .finish(value)
            .err()
            .map(|found| found[0].detail.clone())
    };
    for url in ["http://u@host/", "http://u:pw@host/", "http://:pw@host/"] {
        let detail = detail(url).expect(url);
        assert!(detail.contains("user information"), "{url}: {detail}");
        assert!(!detail.contains("pw@"), "the password is not repeated");
    }
    assert_eq!(detail("http://host/a@b"), None);
    let foreign = detail("ftp://host/").expect("a mistake");
    assert!(foreign.contains("http or https"), "{foreign}");
}
