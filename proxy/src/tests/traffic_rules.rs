//! Refused settings of compression and mirroring.

use super::*;

/// Returns the message for a route with these lines.
fn rejection(route: &str) -> String {
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:1\"\n[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\n\
         policy = \"public\"\n{route}\n[upstream.b]\naddresses = [\"127.0.0.1:3\"]\nhttp2 = true\n\
         [upstream.a]\naddresses = [\"127.0.0.1:2\"]\n"
    );
    match read_config(&text) {
        Ok(_) => "accepted".to_owned(),
        Err(exit) => exit.message().to_owned(),
    }
}

#[test]
fn refused_setting_is_reported_with_its_key() {
    for [route, want] in rows(
        r#"
        compression = false | accepted
        compression = { authenticated = true } | accepted
        mirror = { upstream = "a", share = 0.5 } | accepted
        compression = 1 | p.toml:8: route.0.compression: must be an object
        mirror = { share = 1 } | p.toml:8: route.0.mirror.upstream:
        mirror = { upstream = "c" } | p.toml:8: route.0.mirror.upstream: there is no
        mirror = { upstream = "b" } | p.toml:8: route.0.mirror.upstream: must be an
        mirror = { upstream = "a", share = 1.1 } | p.toml:8: route.0.mirror.share:
        "#,
    ) {
        let message = rejection(&route);
        assert!(message.starts_with(&want), "{route}: {message}, not {want}");
    }
}
