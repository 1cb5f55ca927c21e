//! Mistakes in redirects and fixed responses, and their descriptions in `explain` and route tests.

use http::HeaderMap;
use postern_core::config::{Env, parse};

use super::answers::ROUTES;
use crate::config::TestToken;
use crate::{CallerSource, Config, explain};

fn read(tables: &str) -> Result<Config, String> {
    let env = Env::default();
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.a]\naddresses = [\"127.0.0.1:2\"]\n{tables}"
    );
    parse("p.toml", &text, |root| Config::read(root, &env))
        .map_err(|exit| exit.message().to_owned())
}

#[test]
fn contradictory_answer_is_rejected_at_its_line() {
    let with = |lines: &str| {
        let route = "[[route]]\npath = \"/a/{id}\"\nmethods = [\"GET\"]\npolicy = \"public\"\n";
        read(&format!("{route}{lines}\n"))
    };
    for (lines, said) in [
        (
            "",
            "p.toml:5: route.0: must have upstream, redirect or respond",
        ),
        (
            "upstream = \"a\"\nrespond = {}",
            "p.toml:5: route.0: must have one of upstream, redirect and respond",
        ),
        (
            "respond = {}\nrewrite = { add = \"/x\" }",
            "p.toml:5: route.0: rewrite is for routes with an upstream",
        ),
        (
            "redirect = { to = \"https://{host}/\" }",
            "p.toml:9: route.0.redirect.to: must not use {host} without hosts in the route: the client chooses \
             the host of a request",
        ),
        (
            "redirect = { to = \"https://x/{path.other}\" }",
            "p.toml:9: route.0.redirect.to: has {path.other}, but the path has no {other}",
        ),
        (
            "redirect = { to = \"https://x/{user}\" }",
            "p.toml:9: route.0.redirect.to: has the unknown variable {user}: must be one of principal, issuer, \
             request_id, client_address, host, port, path, query, method, scheme, route, upstream, path.NAME, path.*",
        ),
        (
            "redirect = { to = \"/x\", status = 304 }",
            "p.toml:9: route.0.redirect.status: must be 301, 302, 303, 307 or 308",
        ),
        (
            "respond = { status = 199 }",
            "p.toml:9: route.0.respond.status: must be 200 to 599",
        ),
        (
            "respond = { status = 204, body = \"x\" }",
            "p.toml:9: route.0.respond: a response with this status has no body",
        ),
        (
            "respond = { body = \"x\", file = \"y\" }",
            "p.toml:9: route.0.respond: must have body or file, not both",
        ),
        (
            "respond = { headers = { Content-Length = \"1\" } }",
            "p.toml:9: route.0.respond.headers.Content-Length: is a header that the configuration must not \
             change: the gateway controls it",
        ),
        (
            "upstream = \"a\"\nrequest_headers = { set = { X-A = \"a{\" } }",
            "p.toml:10: route.0.request_headers.set.X-A: has a brace without its counterpart; {{ and }} stand \
             for braces",
        ),
    ] {
        assert_eq!(with(lines).expect_err(lines), said);
    }
    let listen = "[[listen]]\naddress = \"127.0.0.1:3\"\nredirect_to_https = true\n";
    read(listen).expect("without TLS");
    let tls = "[listen.tls]\ncertificate = \"a\"\nkey = \"b\"\n";
    let said = read(&format!("{listen}{tls}")).expect_err("with TLS");
    assert_eq!(
        said,
        "p.toml:7: listen.1.redirect_to_https: is for listeners without TLS"
    );
}

#[test]
fn unusable_response_file_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'x'; (1 << 20) + 1]).expect("writes");
    let at = folder.path().display();
    for (file, said) in [
        (
            "none",
            "none: cannot read: No such file or directory (os error 2)",
        ),
        ("large", "large: cannot read: is larger than 1 MiB"),
        (".", ".: cannot read: is not a regular file"),
    ] {
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:1\"\n[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"\n\
             respond = {{ file = \"{at}/{file}\" }}\n"
        );
        let env = Env::default();
        let exit = parse("p.toml", &text, |root| {
            let config = Config::read(root, &env)?;
            crate::check_files(root, &config);
            Some(config)
        })
        .expect_err("unusable");
        assert_eq!(
            exit.message(),
            format!("p.toml:7: route.0.respond.file: {at}/{said}")
        );
    }
}

#[test]
fn explain_and_route_tests_show_answers() {
    let user = CallerSource::Assumed(TestToken::user("test"));
    let none = CallerSource::Assumed(TestToken::None);
    let config = read(ROUTES).expect("reads");
    for (method, url, caller, decision) in [
        (
            "GET",
            "http://gate/old/1/a?b",
            &none,
            "redirect 301 https://gate/new/a/1?b",
        ),
        (
            "GET",
            "https://h/whole/a",
            &user,
            "redirect 307 https://example.org:8443/whole/a",
        ),
        (
            "GET",
            "https://h/whole/a",
            &none,
            "401 authentication_required: ",
        ),
        (
            "GET",
            "/text",
            &none,
            "respond 200 text/plain; charset=utf-8, 17 bytes",
        ),
        ("GET", "/empty", &none, "respond 204 no body"),
    ] {
        let explained = explain(&config, method, url, &HeaderMap::new(), caller, None);
        assert!(
            explained.contains(&format!("decision   {decision}")),
            "{explained}"
        );
    }
    let test = |lines: &str| {
        read(&format!(
            "{ROUTES}[[test]]\nrequest = \"GET /old/1/a?b\"\nhost = \"gate\"\n{lines}"
        ))
    };
    let good = "decision = \"redirect\"\nstatus = 301\nlocation = \"https://gate/new/a/1?b\"\n";
    test(good).expect("passes");
    for (from, to, said) in [
        (
            "\"redirect\"",
            "\"allow\"",
            "is decided redirect, not allow",
        ),
        ("301", "308", "has the status 301"),
        ("a/1?b", "a/2", "leads to https://gate/new/a/1?b"),
    ] {
        let exit = test(&good.replace(from, to)).expect_err("fails");
        assert!(exit.ends_with(said), "{exit}");
    }
    let refused =
        "[[test]]\nrequest = \"GET /user\"\ndecision = \"authentication_required\"\nstatus = 401\n";
    read(&format!("{ROUTES}{refused}")).expect("passes");
}
