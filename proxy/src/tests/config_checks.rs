//! Mistakes and route tests of a configuration, `[defaults]`, and the files that a configuration names.

use std::os::unix::fs::PermissionsExt as _;

use super::answers::answering_routes;
use super::*;
use crate::check_files;

/// Returns the mistakes of a configuration with these tables, and of the files that it names.
fn mistakes(tables: &str) -> String {
    let text = format!("{LISTENER_AND_ORIGIN}{tables}\n");
    let read = parse("p.toml", &text, |root| {
        check_files(root, &Config::read(root, &env())?);
        Some(())
    });
    read.map_or_else(|exit| exit.message().to_owned(), |()| String::new())
}

/// Checks that there is this mistake; that there is none if it is empty.
#[track_caller]
fn assert_mistake(found: &str, expected: &str, case: &str) {
    let is_expected = found.is_empty() == expected.is_empty() && found.contains(expected);
    assert!(is_expected, "{case}: {found}");
}

/// Checks that this is the only mistake, with its line.
#[track_caller]
fn assert_only_mistake(tables: &str, expected: &str) {
    let found = read_tables(tables).expect_err(expected);
    let is_expected = found.starts_with(&format!("p.toml:{expected}"));
    assert!(is_expected && found.lines().count() == 1, "{found}");
}

#[test]
fn failed_route_test_names_the_difference() {
    let public = "headers = { X-Beta = \"1\" }\npolicy = \"public\"";
    let routes = route("old", "/a", "policy = { users = \"any\" }") + &route("beta", "/a", public);
    for [test, said] in rows(
        r#"
        headers = { x-beta = "1" }\nroute = "beta"\ndecision = "allow" |
        headers = { x-beta = "3" }\nroute = "beta"\ndecision = "allow" | p.toml:18: test.0: test "GET /a": takes old, not beta
        headers = { "x beta" = "1" }\ndecision = "allow" | test.0.headers.x beta: is not a header
        token = "user"\ndecision = "insufficient_scope" | is decided allow, not insufficient_scope
        client_address = "10.0.0.0/8"\ndecision = "allow" | test.0.client_address: must be an IP address such as 192.0.2.1
        "#,
    ) {
        let found = read_tables(&format!("{routes}[[test]]\nrequest = \"GET /a\"\n{test}\n"));
        assert_mistake(&found.err().unwrap_or_default(), &said, &test);
    }
}

#[test]
fn contradictory_setting_is_rejected_at_its_line() {
    let route = "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"";
    for [text, said] in rows(
        r#"
        ROUTE\nname = "first"\nupstream = "origin"\nROUTE\nupstream = "origin" | 11: route.1: can never be taken: first takes all its requests
        ROUTE\nupstream = { origin = 0 } | 9: route.0.upstream: at least one weight must be more than 0
        [stop]\nlinger = "5s"\ndrain = "5s" | 6: stop.linger: must be less than drain, or 0
        [stop]\nlinger = "30s" | 6: stop.linger: must be less than drain, or 0
        "#,
    ) {
        let found = read_tables(&text.replace("ROUTE", route)).expect_err(&said);
        assert_mistake(&found, &format!("p.toml:{said}"), &text);
    }
    let stop = |text: &str| read_tables(&format!("[stop]\n{text}")).expect("reads").stop;
    // Linger is less than drain.
    assert_eq!(stop("drain = \"1s\"").linger.as_millis(), 500);
    assert!(stop("drain = \"0s\"\nlinger = \"0s\"").linger.is_zero());
}

#[test]
fn each_mistake_is_reported_once() {
    let route = "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n";
    let text = format!("{LISTENER_AND_ORIGIN}{route}");
    for [from, to, expected] in rows(
        r#"
        ["GET"] | ["get"] | 7: route.0.methods.0: must be a registered method such as GET, HEAD, POST
        ["GET"] | [] | 7: route.0.methods: must not be empty
        "127.0.0.1:1" | "nowhere" | 2: listen.0.address:
        [upstream.origin] | [limits]\nhead_timeut = "1s"\n[upstream.origin] | 4: limits.head_timeut: is not a known field; did you mean `head_timeout`
        [upstream.origin] | [defaults]\npolicy = "public"\n[upstream.origin] | 4: defaults.policy: is not a known field
        "/a" | "/a//b" | 6: route.0.path:
        "public" | {} | 9: route.0.policy:
        "public" | "public"\nlimits = [{ by = "principal", requests = 6 }] | 5: route.0: a public route has no principal to limit by
        "public" | "public"\n[[test]]\nrequest = "GET"\ndecision = "allow" | 11: test.0.request:
        "public" | "public"\n[[test]]\nrequest = "GET /a"\nroute = "two"\ndecision = "allow" | 12: test.0.route:
        "public" | "public"\n[[test]]\nrequest = "GET /a"\ndecision = "maybe" | 12: test.0.decision:
        ["127.0.0.1:2"] | [8915] | 4: upstream.origin.addresses.0: must be a string, not an integer
        upstream = "origin" | upstream = 7 | 8: route.0.upstream: must be the name of an upstream
        upstream = "origin" | upstream = { origin = "x" } | 8: route.0.upstream.origin: must be an integer, not a string
        "public" | "public"\ncompression = 1 | 10: route.0.compression: must be an object
        "public" | "public"\nmirror = { share = 1 } | 10: route.0.mirror.upstream:
        "public" | "public"\nmirror = { upstream = "c" } | 10: route.0.mirror.upstream: there is no
        "public" | "public"\nmirror = { upstream = "origin", share = 1.1 } | 10: route.0.mirror.share:
        "public" | "public"\nmirror = { upstream = "b" }\n[upstream.b]\naddresses = ["127.0.0.1:3"]\nhttp2 = true | 10: route.0.mirror.upstream: must be an
        "public" | { users = 1 } | 9: route.0.policy.users: must be "any" or a table
        "public" | { users = { owner = "id" } } | 9: route.0.policy.users.owner: the path has no {id}
        "public" | { services = "auth" } | 9: route.0.policy.services: must be "any", a list
        [upstream.origin] | [upstream.origin]\nretries = 0\n[upstream.origin] | 5: duplicate key `upstream.origin`
        "public" | "public"\n[upstream.actor]\naddresses = ["127.0.0.1:3"]\n[[route]]\npath = "/b"\nmethods = ["GET"]\npolicy = "public"\nupstream = "actr" | 16: route.1.upstream: there is no [upstream.actr]; did you mean `actor`?
        "public" | "public"\n[[test]]\nrequest = "GET /a"\ntoken = 1\ndecision = "allow" | 12: test.0.token: must be none, user, user:SUBJECT, service:NAME or a table
        "public" | "public"\n[[test]]\nrequest = "GET /a"\ndecision = "authentication_required" | 10: test.0: test "GET /a": is decided allow, not authentication_required
        "#,
    ) {
        let found = read_config(&text.replace(&from, &to)).expect_err(&expected);
        let found = found.message();
        let is_expected = found.starts_with(&format!("p.toml:{expected}"));
        assert!(is_expected && found.lines().count() == 1, "{found}");
    }
}

#[test]
fn policy_that_nobody_can_satisfy_is_a_mistake() {
    let issuer = |kind: &str| {
        format!(
            "[[identity.issuer]]\nkind = \"{kind}\"\nissuer = \"https://{kind}.example\"\nclients = [\"a\"]\n"
        )
    };
    for [callers, policies, mistaken, further] in rows(
        "| public | |
         | public, users, services | route.1.policy | 1
         | reported | route.0.policy | 0
         users | users, both, reported | |
         users | users, services | route.1.policy | 0
         services | services, both | |
         services | users | route.0.policy | 0
         keys | services, both | |
         keys | users | route.0.policy | 0",
    ) {
        let tables = match &*callers {
            "users" => issuer("user"),
            "services" => issuer("service") + "services = [\"a\"]\n",
            "keys" => "[api_keys]\nfile = \"keys.toml\"\n".to_owned(),
            _ => String::new(),
        };
        let policy = |(at, name): (usize, &str)| {
            let policy = match name {
                "users" => "{ users = \"any\" }",
                "services" => "{ services = \"any\" }",
                "both" => "{ users = \"any\", services = \"any\" }",
                "reported" => "{ services = \"any\" }\nreport_only = true",
                _ => "\"public\"",
            };
            route(
                &format!("r{at}"),
                &format!("/{at}"),
                &format!("policy = {policy}"),
            )
        };
        let routes: String = policies.split(", ").enumerate().map(policy).collect();
        let text = format!("{LISTENER_AND_ORIGIN}{tables}{routes}");
        let read = parse("p.toml", &text, |root| {
            let config = Config::read(root, &Env::default())?;
            crate::config::check_callers(root, &config);
            Some(())
        });
        let said = read.map_or_else(|exit| exit.message().to_owned(), |()| String::new());
        let case = format!("{callers}: {policies}: {said}");
        let actual = said.lines().count();
        assert_eq!(actual, usize::from(!mistaken.is_empty()), "{case}");
        if !mistaken.is_empty() {
            assert!(said.contains(&format!("{mistaken}: nothing")), "{case}");
            let count = format!("({further} further routes are alike)");
            assert!(said.contains(&count), "{case}");
        }
    }
}

#[test]
fn contradictory_answer_is_rejected_at_its_line() {
    let route = "[[route]]\npath = \"/a/{id}\"\nmethods = [\"GET\"]\npolicy = \"public\"\n";
    for [lines, said] in rows(
        r#"
        | 5: route.0: must have upstream, redirect or respond
        upstream = "origin"\nrespond = {} | 5: route.0: must have one of upstream, redirect and respond
        respond = {}\nrewrite = { add = "/x" } | 5: route.0: rewrite is for routes with an upstream
        redirect = { to = "https://{host}/" } | 9: route.0.redirect.to: must not use {host} without hosts in the route
        redirect = { to = "https://x/{path.other}" } | 9: route.0.redirect.to: has {path.other}, but the path has no {other}
        redirect = { to = "https://x/{user}" } | 9: route.0.redirect.to: has the unknown variable {user}: must be one of principal, issuer,
        redirect = { to = "/x", status = 304 } | 9: route.0.redirect.status: must be 301, 302, 303, 307 or 308
        respond = { status = 199 } | 9: route.0.respond.status: must be 200 to 599
        respond = { status = 204, body = "x" } | 9: route.0.respond: a response with this status has no body
        upstream = "origin"\nrequest_headers = { set = { X-A = "a{" } } | 10: route.0.request_headers.set.X-A: has a brace without its counterpart; {{ and }} stand for braces
        "#,
    ) {
        assert_only_mistake(&format!("{route}{lines}\n"), &said);
    }
    let listen = "[[listen]]\naddress = \"127.0.0.1:3\"\nredirect_to_https = true\n";
    read_tables(listen).expect("without TLS");
    let tls = "[listen.tls]\ncertificate = \"a\"\nkey = \"b\"\n";
    let said = "7: listen.1.redirect_to_https: is for listeners without TLS";
    assert_only_mistake(&format!("{listen}{tls}"), said);
}

#[test]
fn route_tests_compare_answers() {
    let routes = answering_routes();
    let test = |lines: &str| read_tables(&format!("{routes}[[test]]\nrequest = {lines}"));
    let good = "\"GET /old/1/a?b\"\nhost = \"gate\"\ndecision = \"redirect\"\nstatus = 301\nlocation = \"https://gate/new/a/1?b\"\n";
    test(good).expect("passes");
    for [from, to, said] in rows(
        r#""redirect" | "allow" | is decided redirect, not allow
        301 | 308 | has the status 301
        a/1?b | a/2 | leads to https://gate/new/a/1?b"#,
    ) {
        let exit = test(&good.replace(&from, &to)).expect_err("fails");
        assert!(exit.ends_with(&said), "{exit}");
    }
    test("\"GET /user\"\ndecision = \"authentication_required\"\nstatus = 401\n").expect("passes");
}

#[test]
fn route_replaces_each_default_as_a_whole() {
    let defaults = "[defaults]\nbody_bytes = 7\ndeadline = \"3s\"\nread_timeout = \"2s\"\nretries = 0\n\
                    websocket = true\ncookies = true\n\
                    limits = [{ by = \"address\", requests = 5 }, { by = \"principal\", requests = 6 }]\n\
                    response_headers = { set = { X-A = \"1\", X-B = \"2\" } }\n\
                    cors = { origins = [\"https://a\"], max_age = \"1s\" }\n";
    let own = "policy = \"public\"\nbody_bytes = 8\ndeadline = \"4s\"\nread_timeout = \"5s\"\nretries = 2\nwebsocket = false\n\
               cookies = false\nlimits = []\nresponse_headers = { set = { X-C = \"3\" } }\n\
               cors = { origins = [] }\n";
    let routes = route("a", "/a", "policy = \"public\"") + &route("b", "/b", own);
    let config = read_tables(&format!("{defaults}{routes}")).expect("reads");
    let [a, b] = [&config.routes[0].settings, &config.routes[1].settings];
    assert_eq!((a.body_bytes, b.body_bytes), (7, 8));
    assert_eq!((a.deadline.as_secs(), b.deadline.as_secs()), (3, 4));
    let timeouts = [a.read_timeout, b.read_timeout].map(|timeout| timeout.expect("set").as_secs());
    assert_eq!(timeouts, [2, 5]);
    assert_eq!((a.retries, b.retries), (Some(0), Some(2)));
    assert!(a.websocket && a.cookies);
    assert!(!b.websocket && !b.cookies);
    // A public route has no principal.
    assert_eq!((a.limits.len(), b.limits.len()), (1, 0));
    let set = [a, b].map(|settings| settings.response_headers.as_ref().expect("set").set.len());
    assert_eq!(set, [2, 1]);
    let [a, b] = [a, b].map(|settings| settings.cors.as_ref().expect("a policy"));
    assert_eq!((a.origins.len(), b.origins.len()), (1, 0));
    // The table is replaced, not merged.
    assert_eq!((a.max_age.as_secs(), b.max_age.as_secs()), (1, 600));
    assert_eq!(config.limits.http.deadline, Duration::from_secs(3));
    assert_eq!(config.cors.expect("a fallback").origins.len(), 1);
}

#[tokio::test]
async fn request_gets_the_default_or_the_setting_of_its_route() {
    let own = route("b", "/b", "policy = \"public\"\nbody_bytes = 8");
    let routes = route("a", "/a", "policy = \"public\"") + &own;
    let gateway = TestGateway::answering("", "body_bytes = 4", &routes).await;
    for (path, status) in [("/a", 413), ("/b", 200)] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: gate\r\nContent-Length: 6\r\n");
        let answer = gateway.send(&format!("{head}\r\n123456")).await;
        assert_eq!(answer.status, status, "{path}");
    }
}

#[test]
fn key_folder_that_others_may_write_is_a_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |path: &Path| mistakes(&format!("[tokens]\njwks_dir = \"{}\"", path.display()));
    assert_eq!(check(&folder.path().join("created-later")), "");
    for (mode, is_mistake) in [(0o700, false), (0o755, false), (0o775, true), (0o777, true)] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).expect("own folder");
        let found = check(folder.path());
        let is_reported = found.contains("tokens.jwks_dir: ");
        assert_eq!(is_reported, is_mistake, "{mode:o}: {found}");
    }
}

#[test]
fn missing_files_are_reported_at_their_lines() {
    let files = CertificateFolder::new();
    files.issue("own", &["localhost"]);
    files.issue("other", &["localhost"]);
    files.write("empty.pem", "");
    let at = files.folder().display().to_string();
    for [upstream, log, expected] in rows(
        r#"
        certificate = "$/own.pem"\nkey = "$/own.key" | $/access.log |
        ca = "$/empty.pem" | no-such/access.log | p.toml:6: access_log.to: no-such: there is no such folder
        ca = "$/empty.pem" | no-such/access.log | p.toml:8: upstream.origin.tls.ca: $/empty.pem: holds no certificate
        certificate = "$/own.pem"\nkey = "$/other.key" | $/access.log | upstream.origin.tls:
        "#,
    ) {
        let tables = format!("[access_log]\nto = \"{log}\"\n[upstream.origin.tls]\n{upstream}");
        let found = mistakes(&tables.replace('$', &at)).replace(&at, "$");
        assert_mistake(&found, &expected, &tables);
    }
}

#[test]
fn contradictory_tls_setting_is_rejected() {
    let pair = "certificate = \"a\"\nkey = \"b\"";
    let acme = "[acme]\naccept_terms = true\nstore = \"s\"";
    for [tls, expected] in rows(
        r#"
        PAIR |
        | certificate and key are required
        key = "b" | certificate and key are required
        certificates = [] | certificate and key are required
        acme = [] | certificate and key are required
        PAIR\nclient_auth = "optional" | require client_ca
        PAIR\nclient_certificates = [{ uri = "u", service = "s" }] | require client_ca
        PAIR\nclient_ca = "c"\nclient_auth = "off" | client_auth is off, with a client_ca
        PAIR\nclient_ca = "c"\nclient_certificates = [{ service = "s" }] | exactly one of uri and dns
        PAIR\nclient_ca = "c"\nclient_certificates = [{ uri = "u", dns = "d", service = "s" }] | exactly one of uri and dns
        PAIR\nclient_ca = "c"\nclient_certificates = [{ uri = "ü", service = "s" }] | must be visible ASCII
        PAIR\nclient_ca = "c"\nclient_certificates = [{ uri = "u", service = "s" }, { uri = "u", service = "t" }] | u occurs twice
        PAIR\nmin_version = "1.1" | must be one of 1.2, 1.3
        acme = ["a.test"] | requires the table [acme]
        PAIR\nACME | no listener has tls.acme
        acme = ["a.test"]\nACME |
        acme = ["*.a.test"]\nACME | dns-01
        acme = ["192.0.2.1"]\nACME | must be a host name
        acme = ["localhost"]\nACME | must be a host name
        acme = ["../a.test"]\nACME | must be a host name
        acme = ["a.test"]\n[acme]\naccept_terms = false\nstore = "s" | agrees to the terms of service
        acme = ["a.test"]\nACME\ndirectory = "http://a.test/" | must be an https URL
        "#,
    ) {
        let tls = tls.replace("PAIR", pair).replace("ACME", acme);
        let found = read_tables(&format!("[listen.tls]\n{tls}\n"));
        assert_mistake(&found.err().unwrap_or_default(), &expected, &tls);
    }
}

#[test]
fn unusable_tls_file_is_reported_at_its_key() {
    let files = CertificateFolder::new();
    files.issue("first", &["a.test", "b.test"]);
    files.issue("second", &["b.test"]);
    files.issue("nameless", &[]);
    files.write("text", "no PEM");
    let folder = files.folder().display().to_string();
    for [tls, expected] in rows(
        r#"
        FIRST FURTHER SECOND |
        certificate = "$/first.pem"\nkey = "$/text" | p.toml:7: listen.0.tls.key:
        FIRST client_ca = "$/text" | p.toml:8: listen.0.tls.client_ca:
        FIRST client_ca = "$/ca.pem"\nclient_crl = "$/ca.pem" | p.toml:9: listen.0.tls.client_crl:
        certificate = "$/first.pem"\nkey = "$/second.key" | p.toml:5: listen.0.tls:
        FIRST FURTHER certificate = "$/text"\nkey = "$/second.key" | p.toml:9: listen.0.tls.certificates.0.certificate:
        FIRST FURTHER NAMELESS | contains no DNS name
        FIRST FURTHER SECOND client_ca = "$/ca.pem" | b.test is a name of two certificates with different client authentication
        "#,
    ) {
        let keys = |tls: String, name: &&str| tls.replace(&name.to_uppercase(), &files.keys(name));
        let tls = ["first", "second", "nameless"].iter().fold(tls, keys);
        let tls = tls.replace("FURTHER", "[[listen.tls.certificates]]\n");
        let found = mistakes(&format!("[listen.tls]\n{}", tls.replace('$', &folder)));
        assert_mistake(&found, &expected, &tls);
    }
}
