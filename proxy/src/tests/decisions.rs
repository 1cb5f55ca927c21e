//! What a configuration says before it is live: its mistakes, and its tests. And an audit-only policy, which decides nothing.

use postern_common::config::{Env, parse};
use postern_common::exit::Exit;

use super::harness::Gateway;
use super::origin::{Manner, Origin};
use crate::Config;

fn read(text: &str) -> Result<Config, Exit> {
    let env = Env::from([
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "web"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "machines"),
    ]);
    parse("p.toml", text, |root| Config::read(root, &env))
}

const UPSTREAM: &str = "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.a]\naddresses = [\"127.0.0.1:2\"]\n";

#[test]
fn an_audit_only_policy_decides_nothing_in_a_test_either() {
    let route = "[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\nupstream = \"a\"\n";
    let test = "[[test]]\nrequest = \"GET /a\"\ntoken = \"user\"\ndecision = \"service_not_allowed\"\n";
    let with = |policy: &str| {
        crate::check(&read(&format!("{UPSTREAM}{route}policy = {policy}\n{test}")).expect("reads"))
    };
    with("{ services = \"any\" }").expect("refused");
    let exit = with("{ services = \"any\", audit = true }").expect_err("let through");
    assert!(exit.message().contains("is decided allow"), "{exit}");
}

#[test]
fn a_test_of_the_configuration_has_headers_and_claims() {
    let text = r#"
[[route]]
name = "old"
path = "/a"
methods = ["GET"]
upstream = "a"
policy = { users = { claims = { tier = 2 } } }
[[route]]
name = "beta"
path = "/a"
methods = ["GET"]
headers = { X-Beta = "1" }
upstream = "a"
policy = "public"
[[test]]
request = "GET /a"
headers = { x-beta = "1" }
route = "beta"
decision = "allow"
[[test]]
request = "GET /a"
headers = { X-Beta = "2" }
token = { claims = { tier = 2 } }
route = "old"
decision = "allow"
[[test]]
request = "GET /a"
token = { claims = { tier = "2" } }
decision = "insufficient_scope"
"#;
    let check = |text: &str| crate::check(&read(&format!("{UPSTREAM}{text}")).expect("reads"));
    check(text).expect("they hold");
    let exit = check(&text.replace("x-beta = \"1\"", "x-beta = \"3\"")).expect_err("another route");
    assert!(exit.message().contains("\"GET /a\": takes old, not beta"), "{exit}");
    let exit = check(&text.replace("{ tier = \"2\" }", "{ tier = 2 }")).expect_err("let through");
    assert!(exit.message().contains("is decided allow, not insufficient_scope"), "{exit}");
    let wrong = text.replace("x-beta", "\"x beta\"");
    let exit = read(&format!("{UPSTREAM}{wrong}")).expect_err("no header");
    assert!(exit.message().contains("test.0.headers.x beta: is not a header"), "{exit}");
}

#[test]
fn what_can_never_be_meant_is_refused_at_its_line() {
    let route =
        |more: &str| format!("[[route]]\npath = \"/a\"\nmethods = [\"GET\"]\npolicy = \"public\"\n{more}");
    let one = route("name = \"first\"\nupstream = \"a\"\n");
    let twice = route("name = \"second\"\nupstream = \"a\"\n");
    let unweighted = route("upstream = { a = 0 }\n");
    for (text, line, said) in [
        (format!("{one}{twice}"), 11, "route.1: can never be taken: first takes all its requests"),
        (unweighted, 9, "route.0.upstream: at least one weight must be more than 0"),
        (
            "[limits]\nstore = \"redis://user:hidden@h:1\"\n".to_owned(),
            6,
            "limits.store: must not hold a password: set POSTERN_LIMITS_STORE instead",
        ),
        (
            "[stop]\nlinger = \"5s\"\ndrain = \"5s\"\n".to_owned(),
            6,
            "stop.linger: must be less than drain, or 0",
        ),
        ("[stop]\nlinger = \"30s\"\n".to_owned(), 6, "stop.linger: must be less than drain, or 0"),
    ] {
        let exit = read(&format!("{UPSTREAM}{text}")).expect_err(said);
        assert!(exit.message().contains(&format!("p.toml:{line}: {said}")), "{exit}");
        assert!(!exit.message().contains("hidden"), "{exit}");
    }
    let stop = |text: &str| read(&format!("{UPSTREAM}[stop]\n{text}\n")).expect("reads").stop;
    assert_eq!(stop("drain = \"1s\"").linger.as_millis(), 500, "never as long as the drain");
    assert!(stop("drain = \"0s\"\nlinger = \"0s\"").linger.is_zero());
}

#[tokio::test]
async fn what_an_audit_only_policy_would_refuse_is_let_through_and_told() {
    let route = "[[route]]\nname = \"watched\"\npath = \"/watched\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n\
                 policy = { services = [\"auth\"], audit = true }\n";
    let origin = Origin::start(Manner::Answer).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    let gateway = Gateway::before(origin, &upstream, "", route).await;
    let ask = async |token: String| {
        gateway.get("/watched", &format!("Authorization: Bearer {token}\r\n")).await.status
    };
    assert_eq!(
        gateway.get("/watched", "").await.code(),
        "authentication_required",
        "a token is needed still"
    );
    assert_eq!(ask(gateway.user()).await, 200);
    assert_eq!(ask(gateway.service("notify")).await, 200);
    assert_eq!(ask(gateway.service("auth")).await, 200);
    assert_eq!(gateway.origin.seen().len(), 3);
    let metrics = gateway.ask("/metrics").await;
    let counted = "postern_audited_total{code=\"service_not_allowed\",route=\"watched\"} 2";
    assert!(metrics.contains(counted), "{metrics}");
    let events = gateway.finish().await;
    let audits: Vec<_> =
        events.iter().filter(|event| event["status"] == 200).map(|event| &event["audit"]).collect();
    assert_eq!(
        audits,
        ["service_not_allowed", "service_not_allowed", ""]
            .map(|code| match code {
                "" => serde_json::Value::Null,
                code => code.into(),
            })
            .iter()
            .collect::<Vec<_>>()
    );
}
