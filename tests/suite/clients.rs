//! What clients of the world send by default is served (`tests/peers/clients`). gRPC is tested in
//! `proxy/src/tests/grpc_peer.rs`.

use std::collections::BTreeMap;
use std::process::Command;

use postern_harness::Origin;
use postern_harness::paths::{peer, repository};
use postern_harness::systems::succeed;
use postern_harness::{Browser, Gateway, Pools, skipped};

const ROUTE: &str = "
[[route]]
path = \"/world\"
methods = [\"GET\", \"HEAD\", \"POST\"]
upstream = \"actor\"
policy = \"public\"
";

const CLIENTS: [&str; 11] = [
    "curl--http1.0",
    "curl--http1.1",
    "curl--http2",
    "curl--http2-prior-knowledge",
    "fetch",
    "go",
    "httpx/1.1",
    "httpx/2",
    "java",
    "lwp",
    "undici",
];

/// Starts a gateway with a public route for HTTP/1.1 and HTTP/2, and its upstream.
async fn start() -> (Pools, Origin, Gateway) {
    let (pools, upstream) = (Pools::start().await, Origin::start().await);
    let file = Gateway::config(upstream.address())
        .replace("# h2c = true\n", "h2c = true\n")
        .append(ROUTE);
    let gateway = Gateway::start(&file, &pools.env()).await;
    (pools, upstream, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_of_the_world_is_served() {
    if !peer("clients/installed").exists() {
        // `tests/run` installs them.
        let is_run = std::env::var_os("POSTERN_TEST_SKIPPED").is_some();
        assert!(!is_run, "tests/peers/clients/install has not succeeded");
        let test = "every_client_of_the_world_is_served";
        return skipped(test, "run tests/peers/clients/install first");
    }
    let (_pools, upstream, gateway) = start().await;
    let mut run = Command::new(repository().join("tests/peers/clients/run"));
    run.arg(format!("{}world?q=a%20b", gateway.client().base()));
    let printed = tokio::task::spawn_blocking(move || succeed(&mut run)).await;
    let printed = printed.expect("the clients end");
    let mut statuses: Vec<&str> = printed.lines().collect();
    statuses.sort_unstable();
    let of_client = |client| ["GET", "HEAD", "POST"].map(|it| format!("{client} {it} 200"));
    let mut expected = CLIENTS.map(of_client).concat();
    expected.sort_unstable();
    assert_eq!(statuses, expected, "{printed}");
    let mut bodies = BTreeMap::new();
    for seen in upstream.seen() {
        assert_eq!(seen.target, "/world?q=a%20b");
        *bodies.entry((seen.method, seen.body)).or_insert(0) += 1;
    }
    let count = |method: &str, body: &'static str| {
        let request = (method.to_owned(), body.into());
        (request, CLIENTS.len())
    };
    let expected = [count("GET", ""), count("HEAD", ""), count("POST", "hello")];
    assert_eq!(bodies, BTreeMap::from(expected));
    gateway.stop().await;
}

/// Browsers leave many characters of a query as they are, and escape what is no text.
#[tokio::test]
async fn browser_is_served_with_any_query() {
    let Some(browser) = Browser::start("browser_is_served_with_any_query").await else {
        return;
    };
    let (_pools, upstream, gateway) = start().await;
    let printable: String = (' '..='~').filter(|it| !"#%&".contains(*it)).collect();
    let base = gateway.client().base();
    let url = format!("{base}world?q={printable}%&r=%E9%00");
    browser.open(&url).await;
    let seen = upstream.seen();
    let target = seen.iter().find(|it| it.target.starts_with("/world"));
    let target = &target.expect("a request").target;
    assert!(
        target.contains("[\\]^_`a") && target.ends_with("{|}~%&r=%E9%00"),
        "{target}"
    );
    let status = "return performance.getEntriesByType('navigation')[0].responseStatus;";
    assert_eq!(browser.run(status).await, 200);
    browser.close().await;
    gateway.stop().await;
}
