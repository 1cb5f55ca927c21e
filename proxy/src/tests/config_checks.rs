//! Mistakes and route tests of a configuration.

use super::read_config as read;
use super::*;

const UPSTREAM: &str =
    "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.a]\naddresses = [\"127.0.0.1:2\"]\n";

#[test]
fn failed_route_test_names_the_difference() {
    let routes = "[[route]]\nname = \"old\"\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\n\
                  policy = { users = \"any\" }\n[[route]]\nname = \"beta\"\npath = \"/a\"\nmethods = [\"GET\"]\n\
                  headers = { X-Beta = \"1\" }\nupstream = \"a\"\npolicy = \"public\"\n";
    for [test, said] in rows(
        r#"
        headers = { x-beta = "1" }\nroute = "beta"\ndecision = "allow" |
        headers = { x-beta = "3" }\nroute = "beta"\ndecision = "allow" | p.toml:18: test.0: test "GET /a": takes old, not beta
        headers = { "x beta" = "1" }\ndecision = "allow" | test.0.headers.x beta: is not a header
        token = "user"\ndecision = "insufficient_scope" | is decided allow, not insufficient_scope
        client_address = "10.0.0.0/8"\ndecision = "allow" | test.0.client_address: must be an IP address such as 192.0.2.1
        "#,
    ) {
        let text = format!("{UPSTREAM}{routes}[[test]]\nrequest = \"GET /a\"\n{test}\n");
        let found = read(&text).err();
        let found = found
            .map(|exit| exit.message().to_owned())
            .unwrap_or_default();
        let is_expected = found.is_empty() == said.is_empty() && found.contains(&said);
        assert!(is_expected, "{test}: {found}");
    }
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
        "127.0.0.1:1" | "nowhere" | 2: listen.0.address:
        [upstream.a] | [limits]\nhead_timeut = "1s"\n[upstream.a] | 4: limits.head_timeut: is not a known field; did you mean `head_timeout`
        "/a" | "/a//b" | 6: route.0.path:
        "public" | {} | 9: route.0.policy:
        "public" | "public"\n[[test]]\nrequest = "GET"\ndecision = "allow" | 11: test.0.request:
        "public" | "public"\n[[test]]\nrequest = "GET /a"\nroute = "two"\ndecision = "allow" | 12: test.0.route:
        "public" | "public"\n[[test]]\nrequest = "GET /a"\ndecision = "maybe" | 12: test.0.decision:
        ["127.0.0.1:2"] | [8915] | 4: upstream.a.addresses.0: must be a string, not an integer
        upstream = "a" | upstream = 7 | 8: route.0.upstream: must be the name of an upstream
        upstream = "a" | upstream = { a = "x" } | 8: route.0.upstream.a: must be an integer, not a string
        "public" | "public"\ncompression = 1 | 10: route.0.compression: must be an object
        "public" | "public"\nmirror = { share = 1 } | 10: route.0.mirror.upstream:
        "public" | "public"\nmirror = { upstream = "c" } | 10: route.0.mirror.upstream: there is no
        "public" | "public"\nmirror = { upstream = "a", share = 1.1 } | 10: route.0.mirror.share:
        "public" | "public"\nmirror = { upstream = "b" }\n[upstream.b]\naddresses = ["127.0.0.1:3"]\nhttp2 = true | 10: route.0.mirror.upstream: must be an
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
    let reported = "{ services = \"any\" }\nreport_only = true";
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
    let files = CertificateFolder::new();
    files.issue("own", &["localhost"]);
    files.issue("other", &["localhost"]);
    files.write("empty.pem", "");
    let at = files.folder().display();
    let check = |upstream: &str, log: &str| {
        let text =
            format!("{UPSTREAM}[access_log]\nto = \"{log}\"\n[upstream.a.tls]\n{upstream}\n");
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
    check(&pair("own.key"), &log).expect("valid");
    let ca = format!("ca = \"{at}/empty.pem\"");
    let said = check(&ca, "no-such/access.log").expect_err("invalid");
    for place in [
        "p.toml:6: access_log.to: no-such: there is no such folder",
        "p.toml:8: upstream.a.tls.ca: empty.pem: holds no certificate",
    ] {
        assert!(said.contains(place), "{said}");
    }
    let said = check(&pair("other.key"), &log).expect_err("another key");
    assert!(said.contains("upstream.a.tls: "), "{said}");
}
