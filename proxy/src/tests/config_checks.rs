//! Mistakes and route tests of a configuration, and report-only policies.

use super::read_config as read;
use super::*;

const UPSTREAM: &str =
    "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.a]\naddresses = [\"127.0.0.1:2\"]\n";

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
    let route = "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"";
    for [text, said] in rows(
        r#"
        ROUTE\nname = "first"\nupstream = "a"\nROUTE\nupstream = "a" | 11: route.1: can never be taken: first takes all its requests
        ROUTE\nupstream = { a = 0 } | 9: route.0.upstream: at least one weight must be more than 0
        [stop]\nlinger = "5s"\ndrain = "5s" | 6: stop.linger: must be less than drain, or 0
        [stop]\nlinger = "30s" | 6: stop.linger: must be less than drain, or 0
        "#,
    ) {
        let text = format!("{UPSTREAM}{}\n", text.replace("ROUTE", route));
        let exit = read(&text).expect_err(&said);
        assert!(exit.message().contains(&format!("p.toml:{said}")), "{exit}");
    }
    let stop = |text: &str| {
        read(&format!("{UPSTREAM}[stop]\n{text}\n"))
            .expect("reads")
            .stop
    };
    // Linger is less than drain.
    assert_eq!(stop("drain = \"1s\"").linger.as_millis(), 500);
    assert!(stop("drain = \"0s\"\nlinger = \"0s\"").linger.is_zero());
}

#[test]
fn each_mistake_is_reported_once() {
    let route =
        "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\npolicy = \"public\"\n";
    for [from, to, expected] in rows(
        r#"
        ["GET"] | ["get"] | 7: route.0.methods.0: must be a registered method such as GET, HEAD, POST
        ["GET"] | [] | 7: route.0.methods: must not be empty
        ["127.0.0.1:2"] | [8915] | 4: upstream.a.addresses.0: must be an address such as 127.0.0.1:8501, auth.internal:8501 or unix:/run/auth.sock
        upstream = "a" | upstream = 7 | 8: route.0.upstream: must be the name of an upstream
        upstream = "a" | upstream = { a = "x" } | 8: route.0.upstream.a: must be an integer, not a string
        "public" | { users = 1 } | 9: route.0.policy.users: must be "any" or a table
        "public" | { users = { owner = "id" } } | 9: route.0.policy.users.owner: the path has no {id}
        "public" | { services = "auth" } | 9: route.0.policy.services: must be "any", a list
        [upstream.a] | [upstream.a]\nretries = 0\n[upstream.a] | 5: duplicate key `upstream.a`
        "public" | "public"\n[upstream.actor]\naddresses = ["127.0.0.1:3"]\n[[route]]\npath = "/b"\nmethods = ["GET"]\npolicy = "public"\nupstream = "actr" | 16: route.1.upstream: there is no [upstream.actr]; did you mean `actor`?
        "public" | "public"\n[[test]]\nrequest = "GET /a"\ntoken = 1\ndecision = "allow" | 12: test.0.token: must be none, user, user:SUBJECT, service:NAME or a table
        "public" | "public"\n[[test]]\nrequest = "GET /a"\ndecision = "authentication_required" | 10: test.0: test "GET /a": is decided allow, not authentication_required
        "#,
    ) {
        let exit = read_config(&format!("{UPSTREAM}{route}").replace(&from, &to));
        let exit = exit.expect_err(&expected);
        let message = exit.message();
        let is_expected = message.starts_with(&format!("p.toml:{expected}"));
        assert!(is_expected && message.lines().count() == 1, "{message}");
    }
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
    let check = |path: &Path| {
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
    let gateway = TestGateway::routed(OriginBehavior::Answer, "", "", route).await;
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
    let counted =
        "postern_proxy_policy_report_only_total{code=\"service_not_allowed\",route=\"watched\"} 1";
    gateway.assert_metric(counted).await;
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
                "" => Value::Null,
                code => code.into(),
            })
            .iter()
            .collect::<Vec<_>>()
    );
}
