use super::*;
use crate::tests::{read_config, rows};

mod brute_force;

const UPSTREAMS: &str = "[upstream.one]\naddresses = [\"127.0.0.1:1\"]\n[upstream.two]\naddresses = [\"127.0.0.1:2\"]\n";

fn read(routes: &str) -> Result<Config, String> {
    let upstreams = if routes.starts_with("[upstream") {
        ""
    } else {
        UPSTREAMS
    };
    let text = format!("[[listen]]\naddress = \"127.0.0.1:0\"\n{upstreams}{routes}");
    read_config(&text).map_err(|error| error.to_string())
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
    let second = route("name = \"x\"\nhosts = [\"a.test\"]\npolicy = \"public\"");
    let two = route(USERS) + &second;
    let renamed = two.replace("name = \"x\"", "name = \"y\"");
    let parameter = two.replace("{id}", "{number}");
    let limits = two.replace(USERS, &format!("{USERS}\nbody_bytes = 10"));
    for other in [renamed, parameter, limits, two.clone()] {
        assert_eq!(compare_texts(&two, &other), [], "{other}");
    }
}

#[test]
fn setting_outside_of_routes_is_not_compared() {
    let limits = "limits = [{ by = \"address\", requests = 10, per = \"1s\" }]";
    let limited = format!("policy = \"public\"\n{limits}");
    let text = |lines: &str| format!("{}{lines}", route(&limited));
    let old = good(&text(""));
    let whole = format!("{UPSTREAMS}{}", text(""));
    // A replaced text, or an addition.
    for [from, to, name] in rows(
        r#"
        | |
        | [[identity.issuer]]\nkind = "user"\nissuer = "https://login.test/"\naudiences = ["a"]\nclients = ["b"] | identity
        | [identity]\nleeway = "60s" | identity
        | [limits]\ntrusted_proxies = ["10.0.0.0/8"] | limits
        | [limits]\nhead_bytes = "64KiB" | limits
        | [[listen]]\naddress = "127.0.0.1:1" | listen
        | [api_keys]\nfile = "keys.toml" | api_keys
        | [upstream.new]\naddresses = ["127.0.0.1:3"] |
        127.0.0.1:1 | 127.0.0.1:9 | upstream
        [upstream.one] | [upstream.one]\nhost = "app.test" | upstream
        [upstream.one] | [upstream.one]\nhttp2 = true | upstream
        | [defaults]\nbody_bytes = "2MiB" | a larger body_bytes
        | [defaults]\nbody_bytes = "2KiB" |
        requests = 10 | requests = 9 |
        requests = 10 | requests = 11 | a higher rate limit
        policy = "public" | policy = "public"\nreport_only = true | a higher rate limit
        limits = [{ by = "address", requests = 10, per = "1s" }] | name = "other" | a higher rate limit
        "#,
    ) {
        let new = match from.as_str() {
            "" => format!("{whole}{to}\n"),
            from => whole.replace(from, &to),
        };
        let name = Some(name).filter(|name| !name.is_empty());
        let expected = name.map(|name| format!("changes that are not compared: {name}"));
        let new = good(&new);
        assert_eq!(uncompared_changes(&old, &new), expected, "{new:?}");
        let found = differences(&old, &new).expect("few requests");
        assert!(found.iter().all(|it| !it.widened));
    }
}

/// Every lost restriction, as a configuration before and after.
#[test]
fn every_lost_restriction_is_found_and_is_widened() {
    let second = |lines: &str| {
        format!(
            "{}[[route]]\npath = \"/a/*\"\nmethods = [\"GET\"]\nupstream = \"one\"\n{lines}\n",
            route("policy = { users = { groups = [\"admin\"] } }")
        )
    };
    let cases = rows(
        r#"
        policy = { users = "any" } | policy = "public" | no token
        policy = { services = "any" } | policy = { services = "any", users = "any" } | a user
        policy = { users = { groups = ["admin"] } } | policy = { users = { groups = ["admin", "staff"] } } | a user with the group staff
        policy = { users = { groups = ["admin"] } } | policy = { users = { groups = ["admin"] } }\nreport_only = true | a user
        policy = { users = { scopes = ["read", "write"] } } | policy = { users = { scopes = ["read"] } } | a user with the scope read
        policy = { users = { claims = { tier = 2 } } } | policy = { users = { claims = { tier = 1 } } } | a user with tier = 1
        policy = { users = { owner = "id" } } PART | policy = { users = { owner = "part" } } PART | the user x2
        policy = { users = { groups = ["admin"] } } | policy = { users = { groups = ["admin"], owner = "id" } } | the user x
        policy = { users = { claims = { roles = ["a", "b"] } } } | policy = { users = { claims = { roles = "b" } } } | a user with roles = "b"
        policy = { services = ["auth"] } | policy = { services = ["auth", "notify"] } | the service notify
        policy = { services = ["auth"] } | policy = { services = "any" } | the service other
        policy = { services = { scopes = ["read"] } } | policy = { services = "any" } | the service other
        USERS headers = { x-kind = "one" } | USERS headers = { x-kind = true } | a user
        USERS query = { v = "1" } | USERS | a user
        USERS hosts = ["a.test"] | USERS | a user
        USERS hosts = ["a.test"] | USERS hosts = ["a.test", "*.a.test"] | a user
        USERS access = { allow = ["10.0.0.0/9"] } | USERS access = { allow = ["10.0.0.0/8"] } | a user
        USERS access = { deny = ["192.0.2.1"] } | USERS | a user
        USERS authorize = { url = "http://127.0.0.1:9/check" } | USERS | a user
        policy = "public"\naccess = { deny = ["192.0.2.1"] } | policy = "public"\naccess = { deny = ["192.0.2.1"] }\nreport_only = true | a user
        USERS | USERS ignore_case = true | a user
        "#,
    );
    let lines = |text: String| match text.strip_suffix(" PART") {
        Some(policy) => route(policy).replace("{id}", "{id}/{part}"),
        None => route(&text.replace("USERS", &format!("{USERS}\n"))),
    };
    let cases = cases
        .into_iter()
        .map(|[old, new, caller]| (lines(old), lines(new), caller));
    let users = || route(USERS);
    let deleting = users().replace("GET\"", "GET\", \"DELETE\"");
    let narrow = second(USERS).replacen("{id}", "b", 1);
    let moved = [
        (users(), deleting, "a user"),
        (users(), users().replace("/a/{id}", "/a/*"), "a user"),
        (second(USERS), second("policy = \"public\""), "no token"),
        (second(USERS), narrow, "a user"),
    ];
    let moved = moved.map(|(old, new, caller)| (old, new, caller.to_owned()));
    for (old, new, caller) in cases.chain(moved) {
        let found = compare_texts(&old, &new);
        let is_caller = |it: &Difference| it.caller.as_ref().is_none_or(|it| *it == caller);
        let is_found = found.iter().any(|it| it.widened && is_caller(it));
        assert!(is_found, "{found:#?}\n{old}\n{new}");
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
    let second = route("name = \"b\"\nheaders = { x-b = \"1\" }\npolicy = \"public\"");
    let new = old.clone() + &second;
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
    let with = |line: &str| route(&format!("{USERS}\n{line}"));
    let checked = |url: &str| {
        let url = format!("http://127.0.0.1:9/{url}");
        route(&format!("{USERS}\nauthorize = {{ url = \"{url}\" }}"))
    };
    for (old, new, widened) in [
        (&old, to("upstream = \"two\""), true),
        (&old, both.clone(), true),
        (&both, both.replace("two = 1", "two = 2"), false),
        (&both, old.clone(), false),
        (&old, with("rewrite = { strip = \"/a\" }"), true),
        (&old, with("ambiguous_paths = true"), true),
        (&old, to("respond = { status = 200, body = \"a\" }"), false),
        (&checked("a"), checked("b"), true),
        (&old, checked("a"), false),
    ] {
        let found = compare_texts(old, &new);
        assert!(!found.is_empty(), "{new}");
        assert!(found.iter().all(|it| it.widened == widened), "{found:#?}");
    }
    let respond = |body: &str| to(&format!("respond = {{ status = 200, body = \"{body}\" }}"));
    assert_eq!(compare_texts(&respond("a"), &respond("b")).len(), 1);
}

#[test]
fn targets_of_redirects_are_compared() {
    let redirect = |to: &str| {
        format!(
            "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"\nhosts = [\"a.test\"]\n\
             redirect = {{ to = \"{to}\" }}\n"
        )
    };
    for (old, new, count) in [
        ("https://{host}{path}", "https://{host}{path}", 0),
        ("https://{host}{path}", "https://{host}/a", 1),
        ("https://{host}{path}", "https://{host}{path}{query}", 1),
        ("https://{host}{path}", "https://b.test{path}", 1),
    ] {
        let found = compare_texts(&redirect(old), &redirect(new));
        assert_eq!(found.len(), count, "{old} {new}: {found:#?}");
    }
}

#[test]
fn too_many_requests_or_callers_are_an_error() {
    let too_many = |max| {
        format!("the routes distinguish more than {max} kinds of requests, callers and addresses")
    };
    let condition = |number| {
        let header = format!("name = \"r{number}\"\nheaders = {{ x-{number} = \"1\" }}\n{USERS}");
        route(&header)
    };
    let config = good(&(0..11).map(condition).collect::<String>());
    let error = differences_within(&config, &config, 1000).expect_err("too many");
    assert_eq!(error.to_string(), too_many(1000));
    let rule = |prefix: &str, count: u32| {
        let names: String = (0..count).map(|it| format!("\"{prefix}{it}\",")).collect();
        good(&route(&format!(
            "policy = {{ users = {{ groups = [{names}] }} }}"
        )))
    };
    let error = differences(&rule("a", 3000), &rule("b", 3000)).expect_err("nine million pairs");
    assert_eq!(error.to_string(), too_many(5_000_000));
    let found = differences(&rule("a", 100), &rule("b", 100)).expect("ten thousand pairs");
    assert!(!found.is_empty());
}
