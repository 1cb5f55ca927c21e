//! Mistakes in redirects and fixed responses, and their descriptions in `explain` and route tests.

use super::answers::answering_routes;
use super::*;

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
    let route = "[[route]]\npath = \"/a/{id}\"\nmethods = [\"GET\"]\npolicy = \"public\"\n";
    for [lines, said] in rows(
        r#"
        | 5: route.0: must have upstream, redirect or respond
        upstream = "a"\nrespond = {} | 5: route.0: must have one of upstream, redirect and respond
        respond = {}\nrewrite = { add = "/x" } | 5: route.0: rewrite is for routes with an upstream
        redirect = { to = "https://{host}/" } | 9: route.0.redirect.to: must not use {host} without hosts in the route
        redirect = { to = "https://x/{path.other}" } | 9: route.0.redirect.to: has {path.other}, but the path has no {other}
        redirect = { to = "https://x/{user}" } | 9: route.0.redirect.to: has the unknown variable {user}: must be one of principal, issuer,
        redirect = { to = "/x", status = 304 } | 9: route.0.redirect.status: must be 301, 302, 303, 307 or 308
        respond = { status = 199 } | 9: route.0.respond.status: must be 200 to 599
        respond = { status = 204, body = "x" } | 9: route.0.respond: a response with this status has no body
        upstream = "a"\nrequest_headers = { set = { X-A = "a{" } } | 10: route.0.request_headers.set.X-A: has a brace without its counterpart; {{ and }} stand for braces
        "#,
    ) {
        let found = read(&format!("{route}{lines}\n")).expect_err(&lines);
        let is_expected = found.starts_with(&format!("p.toml:{said}"));
        assert!(is_expected && found.lines().count() == 1, "{found}");
    }
    let listen = "[[listen]]\naddress = \"127.0.0.1:3\"\nredirect_to_https = true\n";
    read(listen).expect("without TLS");
    let tls = "[listen.tls]\ncertificate = \"a\"\nkey = \"b\"\n";
    let said = read(&format!("{listen}{tls}")).expect_err("with TLS");
    let expected = "p.toml:7: listen.1.redirect_to_https: is for listeners without TLS";
    assert_eq!(said, expected);
}

#[test]
fn route_tests_compare_answers() {
    let routes = answering_routes();
    let test = |lines: &str| {
        read(&format!(
            "{routes}[[test]]\nrequest = \"GET /old/1/a?b\"\nhost = \"gate\"\n{lines}"
        ))
    };
    let good = "decision = \"redirect\"\nstatus = 301\nlocation = \"https://gate/new/a/1?b\"\n";
    test(good).expect("passes");
    for [from, to, said] in rows(
        r#""redirect" | "allow" | is decided redirect, not allow
        301 | 308 | has the status 301
        a/1?b | a/2 | leads to https://gate/new/a/1?b"#,
    ) {
        let exit = test(&good.replace(&from, &to)).expect_err("fails");
        assert!(exit.ends_with(&said), "{exit}");
    }
    let refused =
        "[[test]]\nrequest = \"GET /user\"\ndecision = \"authentication_required\"\nstatus = 401\n";
    read(&format!("{routes}{refused}")).expect("passes");
}
