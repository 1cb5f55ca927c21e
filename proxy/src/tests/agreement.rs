//! `explain`, the route tests and the running gateway agree on random configurations and requests.

use http::{HeaderName, HeaderValue};
use postern_core::Code;

use super::*;
use crate::api_keys::{ApiKeys, NewApiKey, create};
use crate::config::TestToken;
use crate::{CallerSource, explain};

/// Random configurations, and random requests to each of them.
const CONFIGURATIONS: usize = 60;
const REQUESTS: usize = 50;

const METHODS: [&str; 5] = ["GET", "POST", "DELETE", "OPTIONS", "PUT"];

const ROUTE_PATHS: [&str; 8] = [
    "/a", "/a/{x}", "/a/b", "/a/b/*", "/*", "/b/{x}/c", "/b/*", "/a/{x}/c",
];

const POLICIES: [&str; 8] = [
    "\"public\"",
    "{ users = \"any\" }",
    "{ services = \"any\" }",
    "{ users = \"any\", services = [\"auth\"] }",
    "{ users = { scopes = [\"admin\"] } }",
    "{ users = { scopes = [\"read\"] }, services = [\"auth\"] }",
    "{ services = [\"auth\"], report_only = true }",
    "{ users = { owner = \"x\" }, services = [\"auth\"] }",
];

const ACCESS_LISTS: [&str; 4] = [
    "{ allow = [\"192.0.2.0/24\"] }",
    "{ deny = [\"192.0.2.9\"] }",
    "{ allow = [\"2001:db8::/32\"], deny = [\"2001:db8:1::/48\"], report_only = true }",
    "{ deny = [\"192.0.2.0/24\"], report_only = true }",
];

const CLIENTS: [&str; 4] = ["192.0.2.1", "192.0.2.9", "2001:db8:1::1", "2001:db8:2::1"];

const ANSWERS: [&str; 4] = [
    "redirect = { to = \"https://example.com{path}?{query}\", status = 307 }",
    "redirect = { to = \"/moved{path}\" }",
    "respond = { status = 410, body = \"gone\" }",
    "respond = { status = 204 }",
];

/// The service of the API key.
const KEY_SERVICE: &str = "partner";

const TARGETS: [&str; 17] = [
    "/a", "/a/", "/a/b", "/a/x", "/a/b/c", "/b/x/c", "/b/x", "/", "/c", "//a", "/a/../b", "/a%2Fb",
    "/a/x/c", "/a;v=1", "/a/ada", "/b/ada/c", "/A/b",
];

/// The test is a proxy that reports the client address.
const PROXIES: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

/// A caller, as the running gateway, `explain` and a route test see it.
struct TestCaller {
    authorization: String,
    source: CallerSource,
    /// The token of a route test; `None` if there is no such test.
    route_test: Option<&'static str>,
}

impl Choices {
    /// Returns the routes of a configuration, some of which may be unreachable.
    fn routes(&mut self) -> String {
        (0..=self.below(7))
            .map(|number| self.route(number))
            .collect()
    }

    fn route(&mut self, number: usize) -> String {
        let path = self.of(&ROUTE_PATHS);
        let mut methods: Vec<&str> = (0..=self.below(3)).map(|_| self.of(&METHODS)).collect();
        methods.sort_unstable();
        methods.dedup();
        let policy = self.of(&POLICIES);
        let mut route = format!(
            "[[route]]\nname = \"r{number}\"\npath = \"{path}\"\nmethods = {methods:?}\n\
             policy = {policy}\n"
        );
        if self.one_in(3) {
            route.push_str("hosts = [\"a.test\"]\n");
        }
        if self.one_in(4) {
            route.push_str("ignore_case = true\n");
        }
        if self.one_in(4) {
            route.push_str("headers = { x-kind = \"one\" }\n");
        }
        if self.one_in(4) {
            route.push_str("cors = { origins = [\"https://page.test\"] }\n");
        }
        if self.one_in(3) {
            let list = self.of(&ACCESS_LISTS);
            route.push_str(&format!("access = {list}\n"));
        }
        if self.one_in(4) {
            route.push_str(&format!("{}\n", self.of(&ANSWERS)));
            return route;
        }
        route.push_str("upstream = \"origin\"\n");
        if self.one_in(3) {
            let strip = if path.starts_with("/a") { "/a" } else { "" };
            let add = self.of(&["/api", "/v1/x"]);
            route.push_str(&format!(
                "rewrite = {{ strip = \"{strip}\", add = \"{add}\" }}\n"
            ));
        }
        route
    }
}

/// Returns a configuration that contains only what `explain` and route tests need.
fn config(text: &str) -> Result<Config, String> {
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\n[upstream.origin]\naddresses = [\"127.0.0.1:1\"]\n{text}"
    );
    read_config(&text).map_err(|error| error.to_string())
}

/// The callers; `key` is an API key, and `key_file` the file with its entry.
fn callers(gateway: &TestGateway, key: &str, key_file: &Path) -> Vec<TestCaller> {
    let keys = ApiKeys::load(key_file).expect("loads");
    let key_caller = keys.verify(key, Clock::system().now()).expect("a good key");
    let user = TestToken::User {
        subject: "ada".to_owned(),
        groups: Vec::new(),
        scopes: vec!["read".to_owned(), "write".to_owned()],
        claims: Vec::new(),
    };
    let known = |token: String, test: TestToken, route_test| TestCaller {
        authorization: format!("Authorization: Bearer {token}\r\n"),
        source: CallerSource::Assumed(test),
        route_test: Some(route_test),
    };
    vec![
        TestCaller {
            authorization: String::new(),
            source: CallerSource::Assumed(TestToken::None),
            route_test: Some(""),
        },
        known(
            gateway.user(),
            user,
            "token = { subject = \"ada\", scopes = [\"read\", \"write\"] }\n",
        ),
        known(
            gateway.service("auth"),
            TestToken::Service("auth".to_owned()),
            "token = \"service:auth\"\n",
        ),
        known(
            gateway.service("other"),
            TestToken::Service("other".to_owned()),
            "token = \"service:other\"\n",
        ),
        TestCaller {
            authorization: format!("Authorization: Bearer {key}\r\n"),
            source: CallerSource::Verified(key_caller),
            route_test: Some("token = \"service:partner\"\n"),
        },
        TestCaller {
            authorization: format!("Authorization: Bearer {}x\r\n", &key[..key.len() - 1]),
            source: CallerSource::Rejected(Code::InvalidApiKey.as_str()),
            route_test: None,
        },
        TestCaller {
            authorization: "Authorization: Bearer x\r\n".to_owned(),
            source: CallerSource::Rejected(Code::TokenMalformed.as_str()),
            route_test: None,
        },
    ]
}

/// Returns the value of a line of `explain`.
fn line<'e>(explained: &'e str, name: &str) -> Option<&'e str> {
    let mut lines = explained.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.trim_start()))
}

/// The expected results of the requests to one configuration.
struct Expectations<'c> {
    routes: &'c str,
    config: &'c Config,
    /// Requests that the origin has received.
    forwarded: usize,
    /// Route tests with the decisions of `explain`.
    route_tests: String,
    /// The codes of checks in report-only mode, as in the access log.
    reported: Vec<String>,
}

impl Expectations<'_> {
    /// Sends a random request and compares the decision of `explain` with the answer.
    #[expect(clippy::too_many_lines, reason = "one request and what is known of it")]
    async fn check(&mut self, gateway: &TestGateway, callers: &[TestCaller], random: &mut Choices) {
        let (mut method, target) = (random.of(&METHODS), random.of(&TARGETS));
        let host = random.of(&["a.test", "b.test"]);
        let mut fields = Vec::new();
        if random.one_in(2) {
            fields.push(("x-kind", "one"));
        }
        if random.one_in(4) {
            fields.push(("origin", "https://page.test"));
            fields.push(("access-control-request-method", method));
            method = "OPTIONS";
        }
        let caller = &callers[random.below(callers.len())];
        let mut headers = HeaderMap::new();
        for (name, value) in &fields {
            let value = HeaderValue::from_str(value).expect("a value");
            headers.insert(HeaderName::from_static(name), value);
        }
        let client = random.of(&CLIENTS);
        let url = format!("http://{host}{target}");
        let address = client.parse().ok();
        let explained = explain(self.config, method, &url, &headers, &caller.source, address);
        let decision = line(&explained, "decision").expect("a decision");

        let lines = fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines = lines.collect::<String>();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\n{lines}{}\r\n",
            caller.authorization
        );
        let answer = gateway.send(&request).await;
        let case = format!("{}\n{request}\n{explained}\n{}", self.routes, answer.head);
        let seen = gateway.origin.seen();
        if decision == "allow" {
            self.forwarded += 1;
            assert_eq!(answer.status, 200, "{case}");
            let forwarded = line(&explained, "forwarded").unwrap_or(target);
            let sent = seen.last().expect("a request");
            let request_line = format!("{method} {forwarded} HTTP/1.1\r\n");
            assert!(sent.starts_with(&request_line), "{case}\n{sent}");
            let has_identity = sent.contains("\r\nx-postern-subject: ");
            assert_eq!(
                has_identity,
                explained.contains("X-Postern-Subject"),
                "{case}"
            );
        } else if let Some((_, answered)) = own_answer(decision) {
            let (status, described) = answered.split_once(' ').expect("a status");
            assert_eq!(answer.status.to_string(), status, "{case}");
            match decision.starts_with("redirect") {
                true => assert_eq!(answer.header("location"), Some(described), "{case}"),
                false => assert!(
                    described.contains(&format!("{} bytes", answer.body.len()))
                        || answer.body.is_empty(),
                    "{case}"
                ),
            }
        } else {
            assert_eq!(answer.status.to_string(), decision[..3], "{case}");
            let code = code_of(decision);
            assert!(answer.body.contains(&format!("\"{code}\"")), "{case}");
        }
        assert_eq!(seen.len(), self.forwarded, "{case}");
        let reported = line(&explained, "reported").map(|text| code_of(text).to_owned());
        self.reported.extend(reported.clone());
        if let Some(token) = caller.route_test {
            let reported = reported.as_deref().unwrap_or("none");
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name} = \"{value}\""));
            let fields = fields.collect::<Vec<_>>().join(", ");
            let code = code_of(decision);
            self.route_tests.push_str(&format!(
                "[[test]]\nrequest = \"{method} {target}\"\nhost = \"{host}\"\nheaders = {{ {fields} }}\n{token}client_address = \"{client}\"\n\
                 decision = \"{code}\"\nreport_only = \"{reported}\"\n"
            ));
        }
    }
}

/// Returns the kind and the rest of a decision such as `redirect 308 /moved`.
fn own_answer(decision: &str) -> Option<(&str, &str)> {
    let answer = decision.split_once(' ')?;
    matches!(answer.0, "redirect" | "respond").then_some(answer)
}

/// Returns `allow`, `redirect`, `respond` or the problem code of a decision such as `404 not_found: title`.
fn code_of(decision: &str) -> &str {
    if let Some((kind, _)) = own_answer(decision) {
        return kind;
    }
    match decision.split_once(' ') {
        Some((_status, rest)) => rest.split(':').next().unwrap_or_default(),
        None => decision,
    }
}

#[tokio::test]
async fn explain_route_tests_and_gateway_agree() {
    let mut random = Choices(0x2026_1125);
    let mut number = 0;
    let folder = tempfile::tempdir().expect("a folder");
    let key_file = folder.path().join("keys.toml");
    let new_key = NewApiKey {
        name: KEY_SERVICE.to_owned(),
        scopes: Vec::new(),
        lifetime: None,
    };
    let created = create(&new_key, &[7; 38], Timestamp::from_unix_seconds(0)).expect("created");
    let key = created.key.expose().to_owned();
    std::fs::write(&key_file, created.to_string()).expect("writes");
    let api_keys = format!("[api_keys]\nfile = {key_file:?}\n");
    while number < CONFIGURATIONS {
        let routes = format!("{api_keys}{}", random.routes());
        // Some configurations are rejected, because a route is unreachable.
        let Ok(loaded) = config(&routes) else {
            continue;
        };
        number += 1;
        let gateway = TestGateway::routed(OriginBehavior::Answer, "", PROXIES, &routes).await;
        let callers = callers(&gateway, &key, &key_file);
        let mut expectations = Expectations {
            routes: &routes,
            config: &loaded,
            forwarded: 0,
            route_tests: String::new(),
            reported: Vec::new(),
        };
        for _ in 0..REQUESTS {
            expectations.check(&gateway, &callers, &mut random).await;
        }
        let mut logged: Vec<String> = gateway
            .finish()
            .await
            .iter()
            .filter_map(|event| event["report_only"].as_str().map(str::to_owned))
            .collect();
        logged.sort_unstable();
        expectations.reported.sort_unstable();
        assert_eq!(logged, expectations.reported, "{routes}");
        let all = format!("{routes}{}", expectations.route_tests);
        if let Err(error) = config(&all) {
            panic!("{error}\n{all}");
        }
        let wrong = all.replacen("decision = \"allow\"", "decision = \"not_found\"", 1);
        if wrong != all {
            assert!(config(&wrong).is_err(), "{wrong}");
        }
    }
}
