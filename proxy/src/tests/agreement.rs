//! `explain`, the route tests and the running gateway agree on random configurations and requests.

use http::{HeaderName, HeaderValue};
use postern_core::Code;

use super::random_routes::{EXTERNAL_AUTHORIZATION, routes_text};
use super::*;
use crate::config::TestToken;
use crate::{CallerSource, explain};

/// Random configurations, and random requests to each of them.
const CONFIGURATIONS: usize = 60;
const REQUESTS: usize = 50;

const METHODS: [&str; 5] = ["GET", "POST", "DELETE", "OPTIONS", "PUT"];

const CLIENTS: [&str; 4] = ["10.0.0.1", "10.1.2.3", "192.0.2.1", "2001:db8::1"];

/// The upstreams of random routes, in which `{origin}` is replaced.
const UPSTREAMS: &str =
    "\n[upstream.one]\naddresses = [\"{origin}\"]\n[upstream.two]\naddresses = [\"{origin}\"]\n";

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

/// Returns a configuration that contains only what `explain` and route tests need.
fn config(text: &str) -> Result<Config, String> {
    let upstreams = UPSTREAMS.replace("{origin}", "127.0.0.1:1");
    let text = format!("[[listen]]\naddress = \"127.0.0.1:0\"\n{upstreams}{text}");
    read_config(&text).map_err(|error| error.to_string())
}

fn callers(gateway: &TestGateway) -> Vec<TestCaller> {
    let user = TestToken::User {
        subject: "ada".to_owned(),
        groups: Vec::new(),
        scopes: vec!["read".to_owned(), "write".to_owned()],
        claims: Vec::new(),
    };
    let ada = "token = { subject = \"ada\", scopes = [\"read\", \"write\"] }\n";
    let known = |token: &str, test: TestToken, route_test| TestCaller {
        authorization: bearer(token),
        source: CallerSource::Assumed(test),
        route_test: Some(route_test),
    };
    let service = |name, route_test| {
        let token = gateway.service(name);
        known(&token, TestToken::service(name), route_test)
    };
    let (mut nobody, mut stranger) = (known("", TestToken::None, ""), known("x", user.clone(), ""));
    nobody.authorization.clear();
    stranger.source = CallerSource::Rejected(Code::TokenMalformed.as_str());
    stranger.route_test = None;
    vec![
        nobody,
        known(&gateway.user(), user, ada),
        service("auth", "token = \"service:auth\"\n"),
        service("other", "token = \"service:other\"\n"),
        stranger,
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
    /// Requests of which a refusal is reported only.
    reported: usize,
    /// Route tests with the decisions of `explain`.
    route_tests: String,
}

impl Expectations<'_> {
    /// Sends a random request and compares the decision of `explain` with the answer.
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
        self.reported += usize::from(line(&explained, "reported").is_some());

        let sent = |(name, value): &(&str, &str)| format!("{name}: {value}\r\n");
        let lines: String = fields.iter().map(sent).collect();
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
            let adds_identity = explained.contains("X-Postern-Subject");
            assert_eq!(has_identity, adds_identity, "{case}");
        } else if let Some((_, answered)) = own_answer(decision) {
            let (status, described) = answered.split_once(' ').expect("a status");
            assert_eq!(answer.status.to_string(), status, "{case}");
            let bytes = format!("{} bytes", answer.body.len());
            match decision.starts_with("redirect") {
                true => assert_eq!(answer.header("location"), Some(described), "{case}"),
                false if answer.body.is_empty() => {}
                false => assert!(described.contains(&bytes), "{case}"),
            }
        } else {
            assert_eq!(answer.status.to_string(), decision[..3], "{case}");
            let code = code_of(decision);
            assert!(answer.body.contains(&format!("\"{code}\"")), "{case}");
        }
        assert_eq!(seen.len(), self.forwarded, "{case}");
        if let Some(token) = caller.route_test {
            let field = |(name, value): &(&str, &str)| format!("{name} = \"{value}\"");
            let fields = fields.iter().map(field).collect::<Vec<_>>().join(", ");
            let code = code_of(decision);
            self.route_tests.push_str(&format!(
                "[[test]]\nrequest = \"{method} {target}\"\nhost = \"{host}\"\nheaders = {{ {fields} }}\n{token}client_address = \"{client}\"\n\
                 decision = \"{code}\"\n"
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
    while number < CONFIGURATIONS {
        let parts: Vec<_> = (0..=random.below(7)).map(|_| random.parts()).collect();
        // The gateway would ask the service.
        let routes = routes_text(&parts).replace(EXTERNAL_AUTHORIZATION, "");
        // Some configurations are rejected, because a route is unreachable.
        let Ok(loaded) = config(&routes) else {
            continue;
        };
        number += 1;
        let gateway =
            TestGateway::routed(OriginBehavior::Answer, UPSTREAMS, PROXIES, &routes).await;
        let callers = callers(&gateway);
        let mut expectations = Expectations {
            routes: &routes,
            config: &loaded,
            forwarded: 0,
            reported: 0,
            route_tests: String::new(),
        };
        for _ in 0..REQUESTS {
            expectations.check(&gateway, &callers, &mut random).await;
        }
        let events = gateway.finish().await;
        let reported = events.iter().filter(|it| it["report_only"].is_string());
        assert_eq!(reported.count(), expectations.reported, "{routes}");
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
