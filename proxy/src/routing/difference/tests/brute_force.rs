//! Random configurations and requests: each difference that a request shows is found.

use std::collections::HashSet;

use postern_core::config::Env;
use postern_http::message::target::RequestTarget;

use super::*;
use crate::tests::Choices;
use crate::tests::random_routes::routes_text as text;

/// Random requests to each pair of random configurations.
const REQUESTS: usize = 1000;

const METHODS: [&str; 8] = [
    "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "PROPFIND",
];

/// Returns the decisions of both configurations on a random request.
fn decide(sides: &[Side<'_>; 2], random: &mut Choices) -> [DecisionSummary; 2] {
    let words = ["a", "b", "c", "", "q", "a%2Fb", "B", "%C3%A9"];
    let segments = (0..=random.below(4)).map(|_| format!("/{}", random.of(&words)));
    let path: String = segments.collect();
    let path = match RequestTarget::parse(path.as_bytes()) {
        Ok(_) => path,
        Err(_) => "/a/b".to_owned(),
    };
    let mut headers = HeaderMap::new();
    for _ in 0..random.below(3) {
        let value = HeaderValue::from_static(random.of(&["one", "two"]));
        headers.append("x-kind", value);
    }
    let hosts = ["a.test", "b.test", "x.a.test", "c.b.test", "A.test:80", "z"];
    let lookup = RouteRequest {
        host: random.of(&hosts),
        path: &path,
        query: [None, Some("v=2"), Some("v=3&%76=2"), Some("w=2"), Some("v")][random.below(5)],
        method: random.of(&METHODS),
        headers: &headers,
    };
    let mut some = |all: &[&str]| -> Vec<String> {
        let all = all.iter().filter(|_| random.below(2) == 0);
        all.map(|it| (*it).to_owned()).collect()
    };
    let (groups, scopes) = (some(&["admin", "support"]), some(&["read", "write"]));
    let kind = match random.below(4) {
        0 => TestToken::None,
        1 => TestToken::Service {
            name: random.of(&["auth", "notify", "z"]).to_owned(),
            scopes,
        },
        _ => TestToken::User {
            subject: random.of(&["/", "a", "q", "\u{e9}"]).to_owned(),
            groups,
            scopes,
            claims: match random.below(5) {
                0 => Vec::new(),
                1 => vec![("tier".to_owned(), 1.into())],
                2 => vec![("tier".to_owned(), 2.into())],
                3 => vec![("tier".to_owned(), serde_json::json!([2, 1]))],
                _ => vec![
                    ("tier".to_owned(), serde_json::json!([3, 2])),
                    ("realm.roles".to_owned(), serde_json::json!(["b", "a"])),
                ],
            },
        },
    };
    // The first is no address.
    let address = random.of(&["", "10.0.0.1", "10.1.2.3", "192.0.2.1", "2001:db8::1"]);
    let address = address.parse().ok();
    let decide = |side: &Side<'_>| side.decide(side.table.find(&lookup), &lookup, &kind, address);
    sides.each_ref().map(decide)
}

/// Random requests agree with the comparison: each difference that one shows is reported.
#[test]
fn brute_force_finds_nothing_that_is_not_reported() {
    let configurations = Env::of_process()
        .get("POSTERN_TEST_DIFFERENCES")
        .map_or(100, |count| count.parse().expect("a number"));
    let mut random = Choices(1);
    let (mut pairs, mut shown, mut reported) = (0, 0, 0);
    while pairs < configurations {
        let mut routes: Vec<[&str; 6]> = (0..=random.below(5)).map(|_| random.parts()).collect();
        let old_text = text(&routes);
        let Ok(old) = read(&old_text) else { continue };
        random.mutate(&mut routes);
        let new_text = text(&routes);
        let Ok(new) = read(&new_text) else { continue };
        pairs += 1;
        let found = differences(&old, &new).expect("few requests");
        let kinds = found.iter().map(|it| (it.old.kind(), it.new.kind()));
        let kinds: HashSet<_> = kinds.collect();
        let sides = [Side::new(&old), Side::new(&new)];
        for _ in 0..REQUESTS {
            let [before, after] = decide(&sides, &mut random);
            if before.differs(&after) {
                shown += 1;
                assert!(
                    kinds.contains(&(before.kind(), after.kind())),
                    "{before} -> {after} is not in {found:#?}\n{old_text}\n----\n{new_text}"
                );
            }
        }
        reported += found.len();
    }
    // The generator is not degenerate.
    assert!(shown > configurations, "{shown}");
    assert!(reported > configurations, "{reported}");
}
