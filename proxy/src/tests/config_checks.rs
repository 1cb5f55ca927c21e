//! Mistakes and route tests of a configuration, and report-only policies.

use postern_core::config::{Env, parse};

use super::harness::TestGateway;
use super::origin::{OriginBehavior, TestOrigin};
use super::read_config as read;
use crate::Config;

/// Asserts that each text is rejected with its message, and names every one that is not.
#[track_caller]
fn assert_rejected<'a>(cases: impl IntoIterator<Item = (String, &'a str)>) {
    let wrong: Vec<_> = cases
        .into_iter()
        .filter_map(|(text, expected)| {
            let said = match read(&text) {
                Ok(_) => "accepted".to_owned(),
                Err(exit) => exit.message().to_owned(),
            };
            (said != expected).then_some((expected, said))
        })
        .collect();
    assert!(wrong.is_empty(), "expected and found: {wrong:#?}");
}

const UPSTREAM: &str =
    "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.a]\naddresses = [\"127.0.0.1:2\"]\n";

#[test]
fn report_only_policy_allows_in_route_tests() {
    let route = "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\n";
    let test =
        "[[test]]\nrequest = \"GET /a\"\ntoken = \"user\"\ndecision = \"service_required\"\n";
    let with = |policy: &str| read(&format!("{UPSTREAM}{route}policy = {policy}\n{test}"));
    with("{ services = \"any\" }").expect("refused");
    let exit = with("{ services = \"any\", report_only = true }").expect_err("must be rejected");
    assert!(exit.message().contains("is decided allow"), "{exit}");
}

#[test]
fn route_test_compares_the_reported_code() {
    let route = "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\n";
    let test = "[[test]]\nrequest = \"GET /a\"\nclient_address = \"192.0.2.1\"\ntoken = \"user\"\n";
    let with = |route_lines: &str, expected: &str| {
        let text = format!("{UPSTREAM}{route}{route_lines}{test}{expected}");
        read(&text).map_err(|exit| exit.message().to_owned())
    };
    let list = "access = { deny = [\"192.0.2.0/24\"], report_only = true }\n";
    let users = "policy = { users = \"any\" }\n";
    let services = "policy = { services = \"any\", report_only = true }\n";
    let enforced = "policy = { services = \"any\" }\n";
    for (lines, decision, reported) in [
        (users.to_owned(), "allow", "none"),
        (services.to_owned(), "allow", "service_required"),
        (format!("{list}{users}"), "allow", "address_not_allowed"),
        (format!("{list}{services}"), "allow", "address_not_allowed"),
        (
            format!("{list}{enforced}"),
            "service_required",
            "address_not_allowed",
        ),
    ] {
        let expect = |code: &str| {
            let expected = format!("decision = \"{decision}\"\nreport_only = \"{code}\"\n");
            with(&lines, &expected)
        };
        assert!(expect(reported).is_ok(), "{lines}: {:?}", expect(reported));
        let said = expect("insufficient_scope").expect_err("another code");
        let wrong = format!("is reported as {reported}, not insufficient_scope");
        assert!(said.contains(&wrong), "{said}");
    }
    let said = with(
        users,
        "decision = \"allow\"\nreport_only = \"no_such_code\"\n",
    );
    let said = said.expect_err("an unknown code");
    assert!(
        said.contains("must be none or a code of problem-codes.md"),
        "{said}"
    );
}

#[test]
fn route_test_supports_headers_and_claims() {
    let text = r#"
[[route]]
name = "old"
path = "/a"
methods = ["GET"]
upstream = "a"
policy = { users = { claims = { tier = 2 } } }
[[route]]
name = "beta"
path = "/a"
methods = ["GET"]
headers = { X-Beta = "1" }
upstream = "a"
policy = "public"
[[test]]
request = "GET /a"
headers = { x-beta = "1" }
route = "beta"
decision = "allow"
[[test]]
request = "GET /a"
headers = { X-Beta = "2" }
token = { claims = { tier = 2 } }
route = "old"
decision = "allow"
[[test]]
request = "GET /a"
token = { claims = { tier = "2" } }
decision = "insufficient_scope"
"#;
    let check = |text: &str| read(&format!("{UPSTREAM}{text}"));
    check(text).expect("the limits hold");
    let exit = check(&text.replace("x-beta = \"1\"", "x-beta = \"3\"")).expect_err("another route");
    assert_eq!(
        exit.message(),
        "p.toml:19: test.0: test \"GET /a\": takes old, not beta"
    );
    let exit =
        check(&text.replace("{ tier = \"2\" }", "{ tier = 2 }")).expect_err("must be rejected");
    assert!(
        exit.message()
            .contains("is decided allow, not insufficient_scope"),
        "{exit}"
    );
    let wrong = text.replace("x-beta", "\"x beta\"");
    let exit = read(&format!("{UPSTREAM}{wrong}")).expect_err("no header");
    assert!(
        exit.message()
            .contains("test.0.headers.x beta: is not a header"),
        "{exit}"
    );
}

#[test]
fn contradictory_setting_is_rejected_at_its_line() {
    let route = |more: &str| {
        format!("[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"\n{more}")
    };
    let one = route("name = \"first\"\nupstream = \"a\"\n");
    let twice = route("name = \"second\"\nupstream = \"a\"\n");
    let unweighted = route("upstream = { a = 0 }\n");
    for (text, line, said) in [
        (
            format!("{one}{twice}"),
            11,
            "route.1: can never be taken: first takes all its requests",
        ),
        (
            unweighted,
            9,
            "route.0.upstream: at least one weight must be more than 0",
        ),
        (
            "[limits]\nstore = \"redis://user:hidden@h:1\"\n".to_owned(),
            6,
            "limits.store: must not hold a password: set POSTERN_LIMITS_STORE instead",
        ),
        (
            "[stop]\nlinger = \"5s\"\ndrain = \"5s\"\n".to_owned(),
            6,
            "stop.linger: must be less than drain, or 0",
        ),
        (
            "[stop]\nlinger = \"30s\"\n".to_owned(),
            6,
            "stop.linger: must be less than drain, or 0",
        ),
    ] {
        let exit = read(&format!("{UPSTREAM}{text}")).expect_err(said);
        assert!(
            exit.message().contains(&format!("p.toml:{line}: {said}")),
            "{exit}"
        );
        assert!(!exit.message().contains("hidden"), "{exit}");
    }
    let stop = |text: &str| {
        read(&format!("{UPSTREAM}[stop]\n{text}\n"))
            .expect("reads")
            .stop
    };
    assert_eq!(
        stop("drain = \"1s\"").linger.as_millis(),
        500,
        "linger is less than drain"
    );
    assert!(stop("drain = \"0s\"\nlinger = \"0s\"").linger.is_zero());
}

#[test]
fn each_mistake_is_reported_once() {
    let route =
        "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\npolicy = \"public\"\n";
    let with = |from: &str, to: &str| format!("{UPSTREAM}{route}").replace(from, to);
    assert_rejected([
        (
            with("[\"GET\"]", "[\"get\"]"),
            "p.toml:7: route.0.methods.0: must be a registered method such as GET, HEAD, POST, PUT, PATCH, \
             DELETE, OPTIONS, or * for all",
        ),
        (
            with("[\"GET\"]", "[]"),
            "p.toml:7: route.0.methods: must not be empty",
        ),
        (
            with("[\"127.0.0.1:2\"]", "[8915]"),
            "p.toml:4: upstream.a.addresses.0: must be an address such as 127.0.0.1:8501, auth.internal:8501, \
             srv://_http._tcp.auth.internal or unix:/run/auth.sock, or a table with address and weight",
        ),
        (
            with("upstream = \"a\"", "upstream = 7"),
            "p.toml:8: route.0.upstream: must be the name of an upstream, or a table of names with their weights",
        ),
        (
            with("upstream = \"a\"", "upstream = { a = \"x\" }"),
            "p.toml:8: route.0.upstream.a: must be an integer, not a string",
        ),
        (
            with("\"public\"", "{ users = 1 }"),
            "p.toml:9: route.0.policy.users: must be \"any\" or a table with scopes, groups, owner or claims",
        ),
        (
            with("\"public\"", "{ users = { owner = \"id\" } }"),
            "p.toml:9: route.0.policy.users.owner: the path has no {id}",
        ),
        (
            with("\"public\"", "{ services = \"auth\" }"),
            "p.toml:9: route.0.policy.services: must be \"any\", a list of names or a table with allow or scopes",
        ),
        (
            with("[upstream.a]", "[upstream.a]\nretries = 0\n[upstream.a]"),
            "p.toml:5: duplicate key `upstream.a`",
        ),
        (
            format!(
                "{}[[test]]\nrequest = \"GET /a\"\ntoken = 1\ndecision = \"allow\"\n",
                with("", "")
            ),
            "p.toml:12: test.0.token: must be none, user, user:SUBJECT, service:NAME or a table",
        ),
        (
            format!(
                "{}[[test]]\nrequest = \"GET /a\"\ndecision = \"authentication_required\"\n",
                with("", "")
            ),
            "p.toml:10: test.0: test \"GET /a\": is decided allow, not authentication_required",
        ),
    ]);
}

#[test]
fn mistakes_in_names_and_servers_are_explained() {
    let with = |from: &str, to: &str| UPSTREAM.replace(from, to);
    assert_rejected([
        (
            with("[\"127.0.0.1:2\"]", "[\"srv://a\", \"b:1\"]"),
            "p.toml:4: upstream.a.addresses: an srv:// address must be the only one: the records have their own \
             priorities and weights",
        ),
        (
            with(
                "[\"127.0.0.1:2\"]",
                "[{ address = \"srv://a\", weight = 2 }]",
            ),
            "p.toml:4: upstream.a.addresses.0.weight: SRV records have their own weights",
        ),
        (
            with(
                "[upstream.a]",
                "[dns]\nservers = [\"localhost\"]\n[upstream.a]",
            ),
            "p.toml:4: dns.servers.0: must be an IP address, such as 10.0.0.2 or 127.0.0.1:5353",
        ),
        (
            with(
                "[upstream.a]",
                "[dns]\nmin_ttl = \"1m\"\nmax_ttl = \"1s\"\n[upstream.a]",
            ),
            "p.toml:5: dns.max_ttl: must not be less than min_ttl",
        ),
    ]);
}

#[test]
fn policy_that_nobody_can_satisfy_is_a_mistake() {
    let issuer = |kind: &str, more: &str| {
        format!(
            "[[identity.issuer]]\nkind = \"{kind}\"\nissuer = \"https://{kind}.example\"\nclients = [\"a\"]\n{more}"
        )
    };
    let (people, machines) = (
        issuer("user", ""),
        issuer("service", "services = [\"a\"]\n"),
    );
    let keys = "[api_keys]\nfile = \"keys.toml\"\n".to_owned();
    let (users, services, both) = (
        "{ users = \"any\" }",
        "{ services = \"any\" }",
        "{ users = \"any\", services = \"any\" }",
    );
    let reported = "{ services = \"any\", report_only = true }";
    let (env, none) = (Env::default(), String::new());
    for (tables, policies, mistaken) in [
        (&none, &["\"public\""][..], None),
        (
            &none,
            &["\"public\"", users, services],
            Some(("route.1.policy", 1)),
        ),
        (&none, &[reported], Some(("route.0.policy", 0))),
        (&people, &[users, both, reported], None),
        (&people, &[users, services], Some(("route.1.policy", 0))),
        (&machines, &[services, both], None),
        (&machines, &[users], Some(("route.0.policy", 0))),
        (&keys, &[services, both], None),
        (&keys, &[users], Some(("route.0.policy", 0))),
    ] {
        let route = |(at, policy)| {
            format!(
                "[[route]]\npath = \"/{at}\"\nmethods = [\"GET\"]\nupstream = \"a\"\npolicy = {policy}\n"
            )
        };
        let routes: String = policies.iter().enumerate().map(route).collect();
        let read = parse("p.toml", &format!("{UPSTREAM}{tables}{routes}"), |root| {
            let config = Config::read(root, &env)?;
            crate::config::check_callers(root, &config);
            Some(())
        });
        let said = read.map_or_else(|exit| exit.message().to_owned(), |()| String::new());
        match mistaken {
            None => assert_eq!(said, "", "{tables}{policies:?}"),
            Some((place, further)) => {
                let count = format!("({further} further routes are alike)");
                let is_named = said.contains(&format!("{place}: nothing")) && said.contains(&count);
                assert!(
                    is_named && said.lines().count() == 1,
                    "{policies:?}: {said}"
                );
            }
        }
    }
}

#[test]
fn key_folder_that_others_may_write_is_a_mistake() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let check = |path: &std::path::Path| {
        let text = format!("{UPSTREAM}[tokens]\njwks_dir = \"{}\"\n", path.display());
        let read = parse("p.toml", &text, |root| {
            let config = Config::read(root, &Env::default())?;
            crate::check_files(root, &config);
            Some(())
        });
        read.map_err(|exit| exit.message().to_owned())
    };
    assert_eq!(check(&folder.path().join("created-later")), Ok(()));
    for (mode, is_good) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false)] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).expect("own folder");
        let said = check(folder.path()).err().unwrap_or_default();
        assert_eq!(
            said.contains("tokens.jwks_dir: "),
            !is_good,
            "{mode:o}: {said}"
        );
    }
}

#[test]
fn missing_files_are_reported_at_their_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let other = rcgen::KeyPair::generate().expect("a key");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("writes");
    write("own.pem", &own.cert.pem());
    write("own.key", &own.signing_key.serialize_pem());
    write("other.key", &other.serialize_pem());
    write("empty.pem", "");
    let at = folder.path().display();
    let check = |tls: &str, upstream: &str, log: &str| {
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:1\"\n[listen.tls]\n{tls}\n[access_log]\nto = \"{log}\"\n\
             [upstream.a]\naddresses = [\"127.0.0.1:2\"]\n[upstream.a.tls]\n{upstream}\n"
        );
        let env = Env::default();
        let read = parse("p.toml", &text, |root| {
            let config = Config::read(root, &env)?;
            crate::check_files(root, &config);
            Some(config)
        });
        read.map_err(|exit| exit.message().replace(&format!("{at}/"), ""))
    };
    let log = format!("{at}/access.log");
    let pair = |key: &str| format!("certificate = \"{at}/own.pem\"\nkey = \"{at}/{key}\"");
    check(&pair("own.key"), &pair("own.key"), &log).expect("valid");
    let none = "certificate = \"none.pem\"\nkey = \"none.key\"";
    let ca = format!("ca = \"{at}/empty.pem\"");
    let said = check(
        &format!("{none}\nclient_ca = \"none.ca\""),
        &ca,
        "no-such/access.log",
    )
    .expect_err("invalid");
    let places = [
        "4: listen.0.tls.certificate: none.pem: ",
        "5: listen.0.tls.key: none.key: ",
        "6: listen.0.tls.client_ca: none.ca: ",
        "8: access_log.to: no-such: there is no such folder",
        "12: upstream.a.tls.ca: empty.pem: holds no certificate",
    ];
    for (line, place) in said.lines().zip(places) {
        assert!(line.starts_with(&format!("p.toml:{place}")), "{said}");
    }
    assert_eq!(said.lines().count(), places.len(), "{said}");
    let said = check(&pair("other.key"), &pair("other.key"), &log)
        .expect_err("mismatched certificate and key");
    assert!(
        said.contains("p.toml:3: listen.0.tls: ") && said.contains("upstream.a.tls: "),
        "{said}"
    );
}

#[tokio::test]
async fn report_only_decision_is_logged_and_forwarded() {
    let route = "[[route]]\nname = \"watched\"\npath = \"/watched\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n\
                 policy = { services = [\"auth\"], report_only = true }\n";
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    let gateway = TestGateway::before(origin, &upstream, "", route).await;
    let ask = async |token: String| {
        gateway
            .get("/watched", &format!("Authorization: Bearer {token}\r\n"))
            .await
            .status
    };
    assert_eq!(
        gateway.get("/watched", "").await.code(),
        "authentication_required",
        "a token is still required"
    );
    assert_eq!(ask(gateway.user()).await, 200);
    assert_eq!(ask(gateway.service("notify")).await, 200);
    assert_eq!(ask(gateway.service("auth")).await, 200);
    assert_eq!(gateway.origin.seen().len(), 3);
    let metrics = gateway.admin_get("/metrics").await;
    let counted =
        "postern_proxy_policy_report_only_total{code=\"service_not_allowed\",route=\"watched\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    let events = gateway.finish().await;
    let audits: Vec<_> = events
        .iter()
        .filter(|event| event["status"] == 200)
        .map(|event| &event["report_only"])
        .collect();
    assert_eq!(
        audits,
        ["service_required", "service_not_allowed", ""]
            .map(|code| match code {
                "" => serde_json::Value::Null,
                code => code.into(),
            })
            .iter()
            .collect::<Vec<_>>()
    );
}
