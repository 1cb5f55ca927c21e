//! Refused settings of compression, mirroring and slow start.

use super::read_config;

/// Returns the message for a route with these lines before an upstream with those.
fn rejection(route: &str, upstream: &str) -> String {
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:1\"\n[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\n\
         policy = \"public\"\n{route}\n[upstream.b]\naddresses = [\"127.0.0.1:3\"]\nhttp2 = true\n\
         [upstream.a]\naddresses = [\"127.0.0.1:2\"]\n{upstream}\n"
    );
    match read_config(&text) {
        Ok(_) => "accepted".to_owned(),
        Err(exit) => exit.message().to_owned(),
    }
}

#[test]
fn refused_setting_is_reported_with_its_key() {
    for (route, upstream, want) in [
        ("compression = false", "", "accepted"),
        (
            "compression = { level = 9 }",
            "slow_start = \"1s\"",
            "accepted",
        ),
        ("mirror = { upstream = \"a\", share = 0.5 }", "", "accepted"),
        (
            "compression = 1",
            "",
            "p.toml:8: route.0.compression: must be an object",
        ),
        (
            "compression = { level = 0 }",
            "",
            "p.toml:8: route.0.compression.level: must be 1 to 9",
        ),
        (
            "compression = { level = 10 }",
            "",
            "p.toml:8: route.0.compression.level: must be 1 to 9",
        ),
        (
            "compression = { algorithms = [\"deflate\"] }",
            "",
            "p.toml:8: route.0.compression.algorithms.0: must be one of zstd, br, gzip",
        ),
        (
            "compression = { algorithms = [\"br\", \"br\"] }",
            "",
            "p.toml:8: route.0.compression.algorithms.1: is listed twice",
        ),
        (
            "compression = { algorithms = [] }",
            "",
            "p.toml:8: route.0.compression.algorithms: ",
        ),
        (
            "compression = { types = [\"*/*\"] }",
            "",
            "p.toml:8: route.0.compression.types.0: must be a media type",
        ),
        (
            "compression = { types = [\"text/event-stream\"] }",
            "",
            "p.toml:8: route.0.compression.types.0: is never compressed",
        ),
        (
            "mirror = { share = 1 }",
            "",
            "p.toml:8: route.0.mirror.upstream: ",
        ),
        (
            "mirror = { upstream = \"c\" }",
            "",
            "p.toml:8: route.0.mirror.upstream: there is no",
        ),
        (
            "mirror = { upstream = \"b\" }",
            "",
            "p.toml:8: route.0.mirror.upstream: must be an",
        ),
        (
            "mirror = { upstream = \"a\", share = 1.1 }",
            "",
            "p.toml:8: route.0.mirror.share: ",
        ),
        (
            "",
            "slow_start = \"0s\"",
            "p.toml:14: upstream.a.slow_start: must be more than 0",
        ),
        (
            "",
            "load_balancing = \"consistent\"\nslow_start = \"1s\"",
            "p.toml:15: upstream.a.slow_start: is not possible with load_balancing",
        ),
    ] {
        let message = rejection(route, upstream);
        assert!(
            message.starts_with(want),
            "{route}{upstream}: {message}, not {want}"
        );
    }
}
