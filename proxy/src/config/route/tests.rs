use std::time::Duration;

use crate::config::{Config, Route};
use crate::tests::{read_config, read_tables, rows};

/// Reads a route for `/v1x` with these additional lines.
fn read(lines: &str) -> Result<Config, String> {
    let route = "[[route]]\npath = \"/v1x\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n";
    read_tables(&format!("{route}{lines}\n"))
}

fn is_good(lines: &str) -> bool {
    read(lines).is_ok()
}

#[test]
fn rewrite_strips_whole_segments_only() {
    assert!(is_good("rewrite = { strip = \"/v1x\" }"));
    assert!(is_good("rewrite = { add = \"/api\" }"));
    assert!(!is_good("rewrite = { strip = \"/v1\", add = \"/api\" }"));
}

#[test]
fn rewrite_replaces_the_beginning_of_the_target() {
    for [strip, add, target, forwarded] in rows(
        "/v1x | /api | /v1x | /api
         /v1x | /api | /v1x?a=b | /api?a=b
         /v1x | | /v1x | /
         /v1x | | /v1x?a=b | /?a=b
         /v1x | /api | /v1x/a?b | /api/a?b
         /v1x | | /V1x/A | /A
         | /api | /v1x | /api/v1x",
    ) {
        let config = read(&format!(
            "rewrite = {{ strip = \"{strip}\", add = \"{add}\" }}"
        ));
        let rewrite = config.expect("reads").routes.remove(0).rewrite;
        let found = rewrite.expect("a rewrite").apply(target.as_bytes());
        let actual = String::from_utf8_lossy(&found);
        assert_eq!(actual, forwarded, "{strip} {add} {target}");
    }
}

#[test]
fn framing_and_identity_headers_cannot_be_changed() {
    for table in ["request_headers", "response_headers"] {
        for change in [
            "set = { NAME = \"5\" }",
            "add = { NAME = \"5\" }",
            "remove = [\"NAME\"]",
        ] {
            let reads =
                |name: &str| is_good(&format!("{table} = {{ {} }}", change.replace("NAME", name)));
            assert!(reads("X-Frame-Options"), "{table} {change}");
            let names = "Content-Length content_length transfer-encoding Transfer_Encoding Connection \
                Keep-Alive TE Upgrade Host Expect X-Postern-Kind x_postern_subject \
                X-Forwarded-For X-Request-Id traceparent";
            for name in names.split(' ') {
                assert!(!reads(name), "{table} {change} {name}");
            }
        }
    }
}

/// Reads a file whose tables begin in line 6.
fn read_two_upstreams(tables: &str) -> Result<Config, String> {
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\n[upstream]\norigin.addresses = [\"127.0.0.1:1\"]\n\
         other.addresses = [\"127.0.0.1:2\"]\n{tables}"
    );
    read_config(&text).map_err(|exit| exit.message().to_owned())
}

const GROUP: &str = r#"
[defaults]
body_bytes = 7
retries = 0
deadline = "3s"
response_headers = { set = { X-A = "defaults", X-B = "defaults" } }

[[route]]
name = "single"
path = "/api"
methods = ["GET"]
upstream = "other"
policy = "public"

[[group]]
prefix = "/api/{id}"
hosts = ["example.com"]
methods = ["GET"]
upstream = "origin"
policy = { users = { owner = "id" } }
rewrite = { strip = "/api" }
body_bytes = 8
deadline = "4s"
response_headers = { inherit = true, set = { X-B = "group", X-C = "{path.id}" } }
test = [
    { request = "GET /api/42", host = "example.com", token = "user:42", upstream = "origin", decision = "allow" },
]

[[group.route]]
path = ""

[[group.route]]
name = "own"
path = "/own/*"
hosts = []
methods = ["PUT"]
upstream = "other"
policy = "public"
deadline = "5s"
response_headers = { set = { X-D = "route" } }

[[group.route]]
path = "/none"
respond = { status = 204 }
response_headers = { inherit = true, set = { X-C = "route" } }
"#;

#[test]
fn route_has_the_keys_of_its_group_and_of_the_defaults() {
    let config = read_two_upstreams(GROUP).expect("reads");
    let names = config.routes.iter().map(|route| route.name.as_str());
    let expected = ["single", "GET /api/{id}", "own", "GET /api/{id}/none"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    let [single, first, own, none] = &config.routes[..] else {
        panic!("four routes");
    };
    assert_eq!(own.pattern.path.template, "/api/{id}/own/*");
    let targets = [single, first, own, none].map(|it| it.targets.first().map(|it| it.upstream));
    assert_eq!(targets, [Some(1), Some(0), Some(1), None]);
    let is_public = [single, first, own, none].map(|it| it.policy.is_public());
    assert_eq!(is_public, [true, false, true, false]);
    assert_eq!(first.policy.owner("/api/42/none"), Some("42"));
    let hosts = [single, first, own, none].map(|it| it.pattern.hosts.len());
    assert_eq!(hosts, [0, 1, 0, 1]);
    let has_rewrite = [single, first, own, none].map(|it| it.rewrite.is_some());
    assert_eq!(has_rewrite, [false, true, true, false]);
    for (route, body_bytes, seconds) in [(single, 7, 3), (first, 8, 4), (own, 8, 5), (none, 8, 4)] {
        let settings = &route.settings;
        let expected = (body_bytes, Duration::from_secs(seconds), Some(0));
        let found = (settings.body_bytes, settings.deadline, settings.retries);
        assert_eq!(found, expected, "{}", route.name);
    }
    let fields = |route: &Route| {
        let changes = route.settings.response_headers.as_ref().expect("changes");
        let mut names: Vec<_> = changes.set.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.join(" ")
    };
    let fields = [single, first, own, none].map(fields);
    assert_eq!(fields, ["x-a x-b", "x-a x-b x-c", "x-d", "x-a x-b x-c"]);
    assert_eq!(config.tests.len(), 1);
}

#[test]
fn mistake_in_a_group_has_its_line_and_key() {
    let read = |lines: &str| {
        let message = read_two_upstreams(&format!("[[group]]\n{lines}\n")).expect_err(lines);
        message.replace("p.toml:", "")
    };
    let routes = "[[group.route]]\npath = \"/a\"\nmethods = [\"GET\"]\n[[group.route]]\npath = \"/b\"\nmethods = [\"GET\"]";
    let group = "upstream = \"origin\"\npolicy = \"public\"";
    for [lines, expected] in rows(
        r#"GROUP\npolcy = 1\nROUTES | 9: group.0.polcy: is not a known field; did you mean `policy`?
        GROUP\nROUTES\nbody_byte = 1 | 15: group.0.route.1.body_byte: is not a known field; did you mean `body_bytes`?
        GROUP\ndeadline = "0s"\nROUTES | 9: group.0.deadline: must be more than 0
        GROUP\npath = "/"\nROUTES | 9: group.0.path: is a key of routes; the key of groups is `prefix`
        GROUP\nname = "a"\nROUTES | 9: group.0.name: is a key of routes; the key of groups is `prefix`
        GROUP\nprefix = "/a/"\nROUTES | 9: group.0.prefix: must not end with / or /*
        GROUP\nprefix = "/a/*"\nROUTES | 9: group.0.prefix: must not end with / or /*
        GROUP\nprefix = "a"\nROUTES | 9: group.0.prefix: must begin with /
        GROUP\ngroup = []\nROUTES | 9: group.0.group: is not a known field
        GROUP | 6: group.0: must have routes: [[group.route]]
        GROUP\nroute = [] | 6: group.0: must have routes: [[group.route]]
        GROUP\nroute = [{ path = "b", methods = ["GET"] }] | 9: group.0.route.0.path: must begin with /
        policy = "public"\nupstream = "none"\nROUTES | 8: group.0.upstream: there is no
        upstream = "origin"\npolicy = { users = { owner = "id" } }\nROUTES | 8: group.0.policy.users.owner: the path has no {id}
        GROUP\nROUTES\n[[group.route]]\nname = "c"\npath = "/a"\nmethods = ["GET"] | 15: group.0.route.2: can never be taken: GET /a takes all its requests (9)
        GROUP\ntest = [{ request = "GET /a", route = "none", decision = "allow" }]\nROUTES | 9: group.0.test.0.route: there is no route called none
        GROUP\ntest = [{ request = "GET /a", decision = "not_found" }]\nROUTES | 9: group.0.test.0: test "GET /a":
        upstream = "origin"\nROUTES | 8: group.0.route.0.policy: is required
        GROUP\nROUTES\nupstream = "other"\nrespond = {} | 12: group.0.route.1: must have one of upstream, redirect and respond"#,
    ) {
        let said = read(&lines.replace("GROUP", group).replace("ROUTES", routes));
        assert!(said.starts_with(&expected), "{lines}: {said}");
    }
}
