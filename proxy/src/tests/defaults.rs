//! `[defaults]`.

use super::*;

/// Returns a public route whose path is its name.
fn public(name: &str, more: &str) -> String {
    route(
        name,
        &format!("/{name}"),
        &format!("policy = \"public\"\n{more}"),
    )
}

/// Returns a configuration file with these tables.
fn text(tables: &str) -> String {
    format!(
        "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.origin]\naddresses = [\"127.0.0.1:2\"]\n{tables}"
    )
}

fn read(tables: &str) -> Result<Config, String> {
    let env = Env::default();
    parse("p.toml", &text(tables), |root| Config::read(root, &env))
        .map_err(|exit| exit.message().to_owned())
}

#[test]
fn route_replaces_each_default_as_a_whole() {
    let defaults = "[defaults]\nbody_bytes = 7\ndeadline = \"3s\"\nread_timeout = \"2s\"\nretries = 0\n\
                    websocket = true\noutlives_token = true\ncookies = true\n\
                    limits = [{ by = \"address\", requests = 5 }, { by = \"principal\", requests = 6 }]\n\
                    response_headers = { set = { X-A = \"1\", X-B = \"2\" } }\n\
                    cors = { origins = [\"https://a\"], max_age = \"1s\" }\n";
    let own = "body_bytes = 8\ndeadline = \"4s\"\nread_timeout = \"5s\"\nretries = 2\nwebsocket = false\n\
               outlives_token = false\ncookies = false\nlimits = []\nresponse_headers = { set = { X-C = \"3\" } }\n\
               cors = { origins = [] }\n";
    let config = read(&format!(
        "{defaults}{}{}",
        public("a", ""),
        public("b", own)
    ))
    .expect("reads");
    let [a, b] = [&config.routes[0].settings, &config.routes[1].settings];
    assert_eq!((a.body_bytes, b.body_bytes), (7, 8));
    assert_eq!((a.deadline.as_secs(), b.deadline.as_secs()), (3, 4));
    let timeouts = [a.read_timeout, b.read_timeout].map(|timeout| timeout.expect("set").as_secs());
    assert_eq!(timeouts, [2, 5]);
    assert_eq!((a.retries, b.retries), (Some(0), Some(2)));
    assert!(a.websocket && a.outlives_token && a.cookies);
    assert!(!b.websocket && !b.outlives_token && !b.cookies);
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
    let route = "[[route]]\nmethods = [\"POST\"]\nupstream = \"origin\"\npolicy = \"public\"\n";
    let routes = format!("{route}path = \"/a\"\n{route}path = \"/b\"\nbody_bytes = 8\n");
    let tables = format!("[defaults]\nbody_bytes = 4\n{routes}");
    let gateway = TestGateway::answering("", "", &tables).await;
    for (path, status) in [("/a", 413), ("/b", 200)] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: gate\r\nContent-Length: 6\r\n");
        let answer = gateway.send(&format!("{head}\r\n123456")).await;
        assert_eq!(answer.status, status, "{path}");
    }
}

#[test]
fn settings_without_a_default_are_rejected() {
    let said = read("[defaults]\npolicy = \"public\"\n").expect_err("no default");
    assert_eq!(said, "p.toml:6: defaults.policy: is not a known field");
    let limits = "limits = [{ by = \"principal\", requests = 6 }]";
    let said = read(&public("a", limits)).expect_err("no principal");
    assert!(said.contains("a public route has no principal"), "{said}");
}
