//! The list of routes, and the warnings of `check`.

use super::harness::route_of;
use super::*;
use crate::routing::listing::summary;
use crate::warnings;

fn config(text: &str) -> Config {
    read_tables(text).expect("reads")
}

#[test]
fn route_list_shows_match_policy_target_and_limits() {
    let config = config(&route_table(
        r#"
        reports | /reports/* | "GET", "POST" | hosts = ["*.example.com"]\nheaders = { x-beta = "1" }\npolicy = { services = ["auth"] }\nreport_only = true\naccess = { deny = ["192.0.2.0/24"] }\nlimits = [{ by = "route", requests = 5, per = "1m" }]
        old | /old | "GET" | redirect = { to = "/new" }\npolicy = "public"
        "#,
    ));
    let [reports, old] = [0, 1].map(|at| summary(&config.routes[at], &["origin"]));
    assert_eq!(reports.hosts, ["*.example.com"]);
    assert_eq!(reports.conditions, ["header x-beta"]);
    assert_eq!(reports.policy, "services: auth");
    assert_eq!(reports.target, "origin");
    let limits = "access all but 192.0.2.0/24|5 per 60s by route|report only";
    assert_eq!(reports.limits[..3].join("|"), limits);
    assert_eq!((&*old.policy, &*old.target), ("public", "redirect 308"));
}

#[test]
fn unused_and_untested_parts_are_warned_about() {
    let route = |name: &str, path: &str, policy: &str| {
        route_of([name, path, "\"GET\"", &format!("policy = {policy}")])
    };
    let users = "{ users = \"any\" }";
    let test = "[[test]]\nrequest = \"GET /a/x\"\nroute = \"all\"\ntoken = \"user\"\ndecision = \"allow\"\n";
    let looping = "[[listen]]\naddress = \"0.0.0.0:8500\"\n[upstream.own]\naddresses = [\"127.0.0.1:8500\"]\n";
    let spare = "[upstream.spare]\naddresses = [\"127.0.0.1:2\"]\n";
    let many = (0..4).map(|at| route(&format!("r{at}"), &format!("/r{at}"), users));
    let many: String = many.collect();
    let untested = "route open: no [[test]] selects it";
    let taken = "route open: is public, and takes requests that the protected route all would take; if this is \
                 meant, add a [[test]] of it without a token";
    let open = route("open", "/a/b", "\"public\"");
    let open_test = "[[test]]\nrequest = \"GET /a/b\"\ndecision = \"allow\"\n";
    for (extra, expected) in [
        (String::new(), &[][..]),
        (
            looping.to_owned(),
            &[
                "upstream.own: no route uses it",
                "upstream.own: 127.0.0.1:8500 is a listener of the gateway itself",
            ],
        ),
        (many, &["no [[test]] selects 4 of 5 routes: r0, r1, r2, …"]),
        (spare.to_owned(), &["upstream.spare: no route uses it"]),
        (route("open", "/b", users), &[untested]),
        (open.clone(), &[untested, taken]),
        (format!("{open}{open_test}token = \"user\"\n"), &[taken]),
        (format!("{open}{open_test}"), &[]),
        (route("open", "/c/*", "\"public\""), &[untested]),
    ] {
        let all = route("all", "/a/*", users);
        let found = warnings(&config(&format!("{all}{extra}{test}")));
        assert_eq!(found, expected, "{extra}");
    }
}

#[test]
fn unprotected_spelling_of_a_protected_path_is_warned_about() {
    let with = |admin: &str, lines: &str, site: &str| {
        let other = "[upstream.other]\naddresses = [\"127.0.0.1:2\"]\n";
        let lines = format!("upstream = \"origin\"\n{lines}");
        let admin = route_of(["admin", admin, "\"GET\"", &lines]);
        let site = route_of(["site", "/*", "\"*\"", site]);
        let mut all = warnings(&config(&format!("{other}{admin}{site}")));
        all.retain(|text| text.contains("less protection"));
        all
    };
    let (admins, public) = (
        "policy = { users = { groups = [\"admin\"] } }",
        "upstream = \"origin\"\npolicy = \"public\"",
    );
    let warned = |taken: &str, path: &str| {
        vec![format!(
            "route site: takes GET {taken}, which an upstream may read as {path} of the route admin, with less protection"
        )]
    };
    let listed = "policy = \"public\"\naccess = { allow = [\"10.0.0.0/8\"] }";
    for [admin, lines, site, taken, path] in rows(
        r#"
        /admin/* | ADMINS | PUBLIC | /ADMIN/X | /admin/x
        /admin/* | ADMINS\nignore_case = true | PUBLIC | |
        /admin | ADMINS\nignore_case = true | PUBLIC | /admin/ | /admin
        /admin/ | ADMINS\nignore_case = true | PUBLIC | /admin | /admin/
        /{id}/admin | ADMINS | PUBLIC | /X/ADMIN | /x/admin
        /admin/* | ADMINS | upstream = "origin"\npolicy = { users = "any" } | /ADMIN/X | /admin/x
        /admin/* | policy = "public"\naccess = { allow = ["10.0.0.0/8"] } | PUBLIC | /ADMIN/X | /admin/x
        /admin/* | ADMINS | upstream = "origin"\npolicy = { users = { groups = ["admin"] } }\nreport_only = true | /ADMIN/X | /admin/x
        /admin/* | ADMINS\nreport_only = true | upstream = "origin"\npolicy = { users = "any" } | |
        /admin/* | policy = "public" | PUBLIC | |
        /admin/* | ADMINS | upstream = "other"\npolicy = "public" | |
        /admin/* | ADMINS | respond = { status = 404 }\npolicy = "public" | |
        /1/* | ADMINS | PUBLIC | |
        "#,
    ) {
        let lines = lines.replace("ADMINS", admins);
        let expected = match taken.as_str() {
            "" => Vec::new(),
            taken => warned(taken, &path),
        };
        let found = with(&admin, &lines, &site.replace("PUBLIC", public));
        assert_eq!(found, expected, "{admin} {lines} {site}");
    }
    let inner = |path: &str, policy: &str| {
        let lines = format!("policy = {policy}");
        format!("{admins}\n{}", route_of(["inner", path, "\"GET\"", &lines]))
    };
    let elsewhere = public.replace("origin", "other");
    let any = "{ users = \"any\" }";
    for (path, policy, taken, read) in [
        ("/admin", any, "/admin", "/admin/"),
        ("/admin/", any, "/admin/", "/admin"),
        ("/Admin/*", any, "/Admin/x", "/admin/x"),
        ("/aDmin/*", "\"public\"", "/aDmin/x", "/admin/x"),
    ] {
        let warned = warned(taken, read)[0].replace("route site", "route inner");
        let actual = with("/admin/*", &inner(path, policy), &elsewhere);
        assert_eq!(actual, [warned], "{path}");
    }
    assert!(with("/admin/*", &inner("/admin/me", any), &elsewhere).is_empty());
    let allow = |network: &str| format!("{public}\naccess = {{ allow = [\"{network}\"] }}");
    let ask =
        |lines: &str, url: &str| format!("{lines}\nauthorize = {{ url = \"http://{url}/\" }}");
    let upper = || warned("/ADMIN/X", "/admin/x");
    let asked = ask("policy = \"public\"", "a.test");
    for (lines, site, expected) in [
        (listed, allow("10.0.0.0/7"), upper()),
        (listed, allow("10.0.0.0/9"), Vec::new()),
        (&*asked, ask(public, "b.test"), upper()),
        (&asked, ask(public, "a.test"), Vec::new()),
    ] {
        assert_eq!(with("/admin/*", lines, &site), expected, "{lines} {site}");
    }
}
