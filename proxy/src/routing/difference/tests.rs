use std::collections::HashSet;

use postern_common::config::{Env, parse};

use super::*;
use crate::message::target::RequestTarget;

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

/// A generator of choices, so that a failure can be repeated (Knuth's MMIX generator).
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % count as u64).expect("a small number")
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// Returns the parts of a route.
    fn route(&mut self) -> [&'static str; 6] {
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
            0 => routes.push(self.route()),
            1 if routes.len() > 1 => {
                routes.remove(at);
            }
            2 => routes.swap(at, 0),
            _ => {
                let part = self.below(4);
                routes[at][part] = self.route()[part];
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

fn read(routes: &str) -> Result<Config, String> {
    let env = Env::from([
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "web"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "machines"),
    ]);
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\n[upstream.one]\naddresses = [\"127.0.0.1:1\"]\n\
         [upstream.two]\naddresses = [\"127.0.0.1:2\"]\n{routes}"
    );
    parse("test.toml", &text, |root| Config::read(root, &env)).map_err(|error| error.to_string())
}

fn good(routes: &str) -> Config {
    read(routes).unwrap_or_else(|error| panic!("{error}\n{routes}"))
}

/// Returns a route for `/a` with these lines.
fn route(lines: &str) -> String {
    format!("[[route]]\npath = \"/a/{{id}}\"\nmethods = [\"GET\"]\nupstream = \"one\"\n{lines}\n")
}

fn compare_texts(old: &str, new: &str) -> Vec<Difference> {
    differences(&good(old), &good(new)).expect("few requests")
}

const USERS: &str = "policy = { users = \"any\" }";

#[test]
fn equal_decisions_are_no_difference() {
    let two = format!(
        "{}{}",
        route(USERS),
        route("name = \"x\"\nhosts = [\"a.test\"]\npolicy = \"public\"")
    );
    let renamed = two.replace("name = \"x\"", "name = \"y\"");
    let parameter = two.replace("{id}", "{number}");
    let limits = two.replace(USERS, &format!("{USERS}\nbody_bytes = 10"));
    for other in [renamed, parameter, limits, two.clone()] {
        assert_eq!(compare_texts(&two, &other), [], "{other}");
    }
}

#[test]
fn setting_that_decides_who_a_caller_is_is_not_compared() {
    let old = good(&route(USERS));
    let issuer = "[[identity.issuer]]\nkind = \"user\"\nissuer = \"https://login.test/\"\naudiences = [\"a\"]\n\
                  clients = [\"b\"]\n";
    for (lines, name) in [
        ("", None),
        (issuer, Some("identity")),
        (
            "[limits]\ntrusted_proxies = [\"10.0.0.0/8\"]\n",
            Some("limits.trusted_proxies"),
        ),
        (
            "[limits]\nforwarded_header = \"forwarded\"\n",
            Some("limits.trusted_proxies"),
        ),
        ("[[listen]]\naddress = \"127.0.0.1:1\"\n", Some("listen")),
        ("[api_keys]\nfile = \"keys.toml\"\n", Some("api_keys")),
        (
            "[defaults]\nbody_bytes = \"2MiB\"\n",
            Some("a larger body_bytes"),
        ),
        ("[defaults]\nbody_bytes = \"2KiB\"\n", None),
    ] {
        let new = good(&format!("{}{lines}", route(USERS)));
        let expected = name.map(|name| format!("changes that are not compared: {name}"));
        assert_eq!(uncompared_changes(&old, &new), expected, "{lines}");
        assert_eq!(differences(&old, &new).expect("few requests"), []);
    }
}

/// Every lost restriction, as a configuration before and after.
#[test]
fn every_lost_restriction_is_found_and_is_widened() {
    let rule = |rule: &str| route(&format!("policy = {rule}"));
    let with = |lines: &str| route(&format!("{USERS}\n{lines}"));
    let owner = |name: &str| {
        let users = format!("{{ users = {{ owner = \"{name}\" }} }}");
        rule(&users).replace("{id}", "{id}/{part}")
    };
    let second = |lines: &str| {
        format!(
            "{}[[route]]\npath = \"/a/*\"\nmethods = [\"GET\"]\nupstream = \"one\"\n{lines}\n",
            rule("{ users = { groups = [\"admin\"] } }")
        )
    };
    for (old, new, caller) in [
        (rule("{ users = \"any\" }"), rule("\"public\""), "no token"),
        (
            rule("{ services = \"any\" }"),
            rule("{ services = \"any\", users = \"any\" }"),
            "a user",
        ),
        (
            rule("{ users = { groups = [\"admin\"] } }"),
            rule("{ users = { groups = [\"admin\", \"staff\"] } }"),
            "a user with the group staff",
        ),
        (
            rule("{ users = { groups = [\"admin\"] } }"),
            rule("{ users = { groups = [\"admin\"] }, report_only = true }"),
            "a user",
        ),
        (
            rule("{ users = { scopes = [\"read\", \"write\"] } }"),
            rule("{ users = { scopes = [\"read\"] } }"),
            "a user with the scope read",
        ),
        (
            rule("{ users = { claims = { tier = 2 } } }"),
            rule("{ users = { claims = { tier = 1 } } }"),
            "a user with tier = 1",
        ),
        (owner("id"), owner("part"), "the user x2"),
        (
            rule("{ users = { groups = [\"admin\"] } }"),
            rule("{ users = { groups = [\"admin\"], owner = \"id\" } }"),
            "the user x",
        ),
        (
            rule("{ users = { claims = { roles = [\"a\", \"b\"] } } }"),
            rule("{ users = { claims = { roles = \"b\" } } }"),
            "a user with roles = \"b\"",
        ),
        (
            rule("{ services = [\"auth\"] }"),
            rule("{ services = [\"auth\", \"notify\"] }"),
            "the service notify",
        ),
        (
            rule("{ services = [\"auth\"] }"),
            rule("{ services = \"any\" }"),
            "a service that no rule names",
        ),
        (
            rule("{ services = { scopes = [\"read\"] } }"),
            rule("{ services = \"any\" }"),
            "a service that no rule names",
        ),
        (
            with("headers = { x-kind = \"one\" }"),
            with("headers = { x-kind = true }"),
            "a user",
        ),
        (with("query = { v = \"1\" }"), with(""), "a user"),
        (with("hosts = [\"a.test\"]"), with(""), "a user"),
        (
            with("hosts = [\"a.test\"]"),
            with("hosts = [\"a.test\", \"*.a.test\"]"),
            "a user",
        ),
        (
            with("access = { allow = [\"10.0.0.0/9\"] }"),
            with("access = { allow = [\"10.0.0.0/8\"] }"),
            "a user",
        ),
        (
            with("access = { deny = [\"192.0.2.1\"] }"),
            with(""),
            "a user",
        ),
        (
            with("authorize = { url = \"http://127.0.0.1:9/check\" }"),
            with(""),
            "a user",
        ),
        (
            with(""),
            with("").replace("[\"GET\"]", "[\"GET\", \"DELETE\"]"),
            "a user",
        ),
        (with(""), with("").replace("/a/{id}", "/a/*"), "a user"),
        (with(""), with("ignore_case = true"), "a user"),
        (second(USERS), second("policy = \"public\""), "no token"),
        (
            second(USERS),
            second(USERS).replacen("{id}", "b", 1),
            "a user",
        ),
    ] {
        let found = compare_texts(&old, &new);
        assert!(
            found
                .iter()
                .any(|it| it.widened && it.caller.as_deref().is_none_or(|it| it == caller)),
            "{found:#?}\n{old}\n{new}"
        );
        let back = compare_texts(&new, &old);
        assert!(!back.is_empty(), "{old}\n{new}");
        let narrower = back.iter().filter(|it| it.widened).count();
        // Another value of a claim, another owner and a moved route widen in both directions.
        let is_other = new.contains("tier") || new.contains("{part}");
        assert!(narrower == 0 || is_other, "{back:#?}");
    }
}

#[test]
fn example_is_the_simplest_request() {
    let old = route(USERS);
    let new = format!(
        "{old}{}",
        route("name = \"b\"\nheaders = { x-b = \"1\" }\npolicy = \"public\"")
    );
    let found = compare_texts(&old, &new);
    // Users were allowed before; of services, the rule names none.
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(
        found[0].to_string(),
        "GET /a/x (Host: x.test)\n    header   x-b: 1\n    caller   no token\n    \
         old      401 authentication_required (route GET /a/{id})\n    \
         new      allow, upstream one (route b)\n    widened\n"
    );
}

#[test]
fn another_destination_is_wider() {
    let old = route(USERS);
    let to = |target: &str| old.replace("upstream = \"one\"", target);
    let both = to("upstream = { one = 1, two = 1 }");
    let checked = |url: &str| {
        let url = format!("http://127.0.0.1:9/{url}");
        route(&format!("{USERS}\nauthorize = {{ url = \"{url}\" }}"))
    };
    for (old, new, widened) in [
        (&old, to("upstream = \"two\""), true),
        (&old, both.clone(), true),
        (&both, both.replace("two = 1", "two = 2"), false),
        (&both, old.clone(), false),
        (
            &old,
            route(&format!("{USERS}\nrewrite = {{ strip = \"/a\" }}")),
            true,
        ),
        (
            &old,
            route(&format!("{USERS}\nambiguous_paths = true")),
            true,
        ),
        (&old, to("respond = { status = 200, body = \"a\" }"), false),
        (&checked("a"), checked("b"), true),
        (&old, checked("a"), false),
    ] {
        let found = compare_texts(old, &new);
        assert!(!found.is_empty(), "{new}");
        assert!(found.iter().all(|it| it.widened == widened), "{found:#?}");
    }
    let respond = |body: &str| {
        old.replace(
            "upstream = \"one\"",
            &format!("respond = {{ status = 200, body = \"{body}\" }}"),
        )
    };
    assert_eq!(compare_texts(&respond("a"), &respond("b")).len(), 1);
}

#[test]
fn scheme_and_query_of_a_redirect_are_compared() {
    let redirect = |to: &str| {
        format!(
            "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"\nhosts = [\"a.test\"]\n\
             redirect = {{ to = \"{to}\" }}\n"
        )
    };
    for (old, new, count) in [
        ("https://{host}{path}", "https://{host}{path}", 0),
        ("https://{host}{path}", "https://{host}/a", 0),
        ("https://{host}{path}", "https://{host}{path}{query}", 1),
        ("https://{host}{path}", "https://b.test{path}", 1),
    ] {
        let found = compare_texts(&redirect(old), &redirect(new));
        assert_eq!(found.len(), count, "{old} {new}: {found:#?}");
    }
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
        let mut routes: Vec<[&str; 6]> = (0..=random.below(5)).map(|_| random.route()).collect();
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

#[test]
fn too_many_kinds_of_requests_are_an_error() {
    let routes: String = (0..21)
        .map(|number| {
            route(&format!(
                "name = \"r{number}\"\nheaders = {{ x-{number} = \"1\" }}\n{USERS}"
            ))
        })
        .collect();
    let config = good(&routes);
    let error = differences(&config, &config).expect_err("too many");
    let text = "the routes distinguish more than 1000000 kinds of requests";
    assert_eq!(error.to_string(), text);
    let few = differences_within(&good(&route(USERS)), &good(&route(USERS)), 2);
    assert!(few.is_err(), "{few:?}");
}

#[test]
fn too_many_callers_are_an_error() {
    let rule = |prefix: &str, count: u32| {
        let names: String = (0..count).map(|it| format!("\"{prefix}{it}\",")).collect();
        good(&route(&format!(
            "policy = {{ users = {{ groups = [{names}] }} }}"
        )))
    };
    let error = differences(&rule("a", 3000), &rule("b", 3000)).expect_err("nine million pairs");
    let text = "the routes distinguish more than 5000000 kinds of requests with their callers and addresses";
    assert_eq!(error.to_string(), text);
    let (old, new) = (rule("a", 100), rule("b", 100));
    let found = differences(&old, &new).expect("ten thousand pairs");
    assert!(!found.is_empty());
    let max = (1..).find(|max| !is_too_many_requests(&old, &new, *max));
    let found = differences_within(&old, &new, max.expect("a number"));
    assert!(matches!(found, Err(TooManyRequests::Callers(_))), "{max:?}");
}

fn is_too_many_requests(old: &Config, new: &Config, max: usize) -> bool {
    let found = differences_within(old, new, max);
    matches!(found, Err(TooManyRequests::Kinds(_)))
}
