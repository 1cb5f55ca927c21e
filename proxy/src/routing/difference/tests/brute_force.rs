//! Random configurations and requests: each difference that a request shows is found.

use std::collections::HashSet;

use postern_core::config::Env;
use postern_http::message::target::RequestTarget;

use super::*;
use crate::tests::Choices;

/// Random requests to each pair of random configurations.
const REQUESTS: usize = 1000;

const PATHS: [&str; 10] = [
    "/a",
    "/a/",
    "/a/{x}",
    "/a/b",
    "/a/b/*",
    "/*",
    "/b/{x}/c",
    "/b/*",
    "/{x}/b",
    "/{x}/{y}/c",
];

const METHODS: [&str; 8] = [
    "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "PROPFIND",
];

const METHOD_LISTS: [&str; 5] = [
    "[\"PROPFIND\"]",
    "[\"GET\"]",
    "[\"POST\", \"GET\"]",
    "[\"DELETE\"]",
    "[\"*\"]",
];

const POLICIES: [&str; 16] = [
    "\"public\"",
    "{ users = \"any\" }",
    "{ services = \"any\" }",
    "{ users = \"any\", services = [\"auth\"] }",
    "{ services = [\"auth\", \"notify\"] }",
    "{ services = { allow = [\"auth\"], scopes = [\"read\"] } }",
    "{ users = { scopes = [\"read\"] } }",
    "{ users = { scopes = [\"read\", \"write\"], groups = [\"admin\"] } }",
    "{ users = { groups = [\"admin\", \"support\"] }, services = [\"auth\"] }",
    "{ users = { claims = { tier = 2 } } }",
    "{ users = { claims = { tier = 1 } } }",
    "{ users = { claims = { tier = [1, 2] } } }",
    "{ users = { claims = { realm = { roles = \"a\" }, tier = 2 } } }",
    "{ users = { groups = [\"admin\"] }, report_only = true }",
    "{ users = { owner = \"x\", groups = [\"admin\"] } }",
    "{ users = { owner = \"y\" }, services = \"any\" }",
];

const CONDITIONS: [&str; 6] = [
    "",
    "hosts = [\"a.test\"]\n",
    "hosts = [\"*.a.test\", \"b.test\"]\n",
    "headers = { x-kind = \"one\" }\n",
    "headers = { x-kind = true }\nquery = { v = \"2\" }\n",
    "query = { v = true }\n",
];

const EXTRAS: [&str; 6] = [
    "",
    "ignore_case = true\n",
    "access = { allow = [\"10.0.0.0/8\"], deny = [\"10.1.0.0/16\"] }\n",
    "access = { deny = [\"10.1.0.0/16\", \"2001:db8::/32\"] }\n",
    "rewrite = { add = \"/v1\" }\n",
    "authorize = { url = \"http://127.0.0.1:9/check\" }\n",
];

const TARGETS: [&str; 5] = [
    "upstream = \"one\"\n",
    "upstream = \"two\"\n",
    "upstream = { one = 90, two = 10 }\n",
    "redirect = { to = \"https://{host}{path}{query}\", status = 308 }\n",
    "respond = { status = 200, body = \"ok\" }\n",
];

impl Choices {
    /// Returns the parts of a route.
    fn parts(&mut self) -> [&'static str; 6] {
        let target = self.of(&TARGETS);
        [
            self.of(&PATHS),
            self.of(&METHOD_LISTS),
            self.of(&POLICIES),
            self.of(&CONDITIONS),
            match target.starts_with("upstream") {
                true => self.of(&EXTRAS),
                false => "",
            },
            target,
        ]
    }

    /// Changes, adds or removes a part.
    fn mutate(&mut self, routes: &mut Vec<[&'static str; 6]>) {
        let at = self.below(routes.len());
        match self.below(6) {
            0 => routes.push(self.parts()),
            1 if routes.len() > 1 => {
                routes.remove(at);
            }
            2 => routes.swap(at, 0),
            _ => {
                let part = self.below(4);
                routes[at][part] = self.parts()[part];
            }
        }
    }
}

fn text(routes: &[[&str; 6]]) -> String {
    routes
        .iter()
        .enumerate()
        .map(
            |(number, [path, methods, policy, conditions, extra, target])| {
                format!(
                    "[[route]]\nname = \"r{number}\"\npath = \"{path}\"\nmethods = {methods}\n\
                 policy = {policy}\n{conditions}{extra}{target}\n"
                )
            },
        )
        .collect()
}

/// Returns the decisions of both configurations on a random request.
fn decide(sides: &[Side<'_>; 2], random: &mut Choices) -> [DecisionSummary; 2] {
    let words = ["a", "b", "c", "", "q", "a%2Fb", "B", "%C3%A9"];
    let path: String = (0..=random.below(4))
        .map(|_| format!("/{}", random.of(&words)))
        .collect();
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
        0 => CallerKind::Anonymous,
        1 => CallerKind::Service {
            name: random.of(&["auth", "notify", "z"]).to_owned(),
            is_named: true,
            scopes,
        },
        _ => CallerKind::User {
            subject: [None, Some("a"), Some("q"), Some("\u{e9}")][random.below(4)]
                .map(str::to_owned),
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
    let addresses = [
        None,
        Some("10.0.0.1"),
        Some("10.1.2.3"),
        Some("192.0.2.1"),
        Some("2001:db8::1"),
    ];
    let address = addresses[random.below(5)].map(|text| text.parse().expect("an address"));
    sides
        .each_ref()
        .map(|side| side.decide(side.table.find(&lookup), &lookup, &kind, address))
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
        let kinds: HashSet<_> = found
            .iter()
            .map(|it| (it.old.kind(), it.new.kind()))
            .collect();
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
