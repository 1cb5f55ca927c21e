//! Load balancing algorithms, from the configuration to the choice of an address.

use std::collections::BTreeSet;

use super::harness::{ROUTES, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

/// The responses of the three addresses.
const TEXTS: [&str; 3] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nc",
];

/// Starts a gateway with three addresses and these settings of the upstream.
async fn start(settings: &str) -> TestGateway {
    let [one, two, three] = TEXTS.map(OriginBehavior::Text);
    let (one, two) = (TestOrigin::start(one).await, TestOrigin::start(two).await);
    let three = TestOrigin::start(three).await;
    let upstream = format!(
        "addresses = [\"{}\", \"{}\", \"{}\"]\n{settings}",
        one.address, two.address, three.address
    );
    TestGateway::before(three, &upstream, "", ROUTES).await
}

/// Returns the addresses that answer four requests.
async fn answers(gateway: &TestGateway, target: &str, headers: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for _ in 0..4 {
        let answer = gateway.get(target, headers).await;
        assert_eq!(answer.status, 200);
        found.insert(answer.body);
    }
    found
}

#[tokio::test]
async fn requests_with_the_same_key_use_one_address() {
    for key in ["{ header = \"X-User\" }", "{ query = \"user\" }"] {
        let settings = format!("load_balancing = \"consistent\"\nconsistent_key = {key}");
        let gateway = start(&settings).await;
        let mut used = BTreeSet::new();
        for user in 0..40 {
            let (target, header) = match key.contains("header") {
                true => ("/open".to_owned(), format!("X-User: {user}\r\n")),
                false => (format!("/open?a&user={user}&user=b"), String::new()),
            };
            let found = answers(&gateway, &target, &header).await;
            assert_eq!(found.len(), 1, "{key} {user}: {found:?}");
            used.extend(found);
        }
        assert_eq!(used.len(), 3, "{key}: 40 keys use all addresses");
        let without = answers(&gateway, "/open", "").await;
        assert_eq!(without.len(), 1, "{key}: by client address");
    }
}

#[tokio::test]
async fn round_robin_and_random_choice_use_all_addresses() {
    for algorithm in ["round_robin", "random"] {
        let gateway = start(&format!("load_balancing = \"{algorithm}\"")).await;
        let mut used = answers(&gateway, "/open", "").await;
        for _ in 0..9 {
            used.extend(answers(&gateway, "/open", "").await);
        }
        assert_eq!(used.len(), 3, "{algorithm}");
    }
}
