//! The routes of the admin listener.

use postern_common::Secret;
use postern_common::admin_api::{OPERATOR, protect};
use postern_common::database::testing;
use postern_common::http::{Limits, serve};
use reqwest::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::http::admin_routes;
use crate::testing::{Fixture, FixtureOptions, client_at, login};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Serves the admin routes and returns their URL.
async fn serve_admin(fixture: &Fixture) -> String {
    let service = &fixture.service;
    let (reader, limiter) = (&service.audit_trail.reader, &service.limiter);
    let routes = admin_routes(reader, limiter, &fixture.clock);
    let router = protect(Some(&Secret::from(TOKEN)), routes);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let url = format!("http://{}/admin", listener.local_addr().expect("bound"));
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, router, Limits::default(), stop));
    url
}

async fn read(url: &str, path: &str) -> (u16, Value) {
    let request = Client::new().get(format!("{url}/{path}"));
    let response = request.bearer_auth(TOKEN).send().await.expect("a response");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

/// Signs up and in, and guesses a password twice, one second apart.
async fn fixture_with_events(database: testing::TestDatabase) -> Fixture {
    let fixture = Fixture::with(FixtureOptions {
        database: Some(database),
        ..FixtureOptions::default()
    })
    .await;
    let registered = fixture.register("ada@example.com", "Password-1").await;
    registered.expect("registered");
    for password in ["wrong-1", "wrong-2", "Password-1"] {
        fixture.clock.advance(std::time::Duration::from_secs(1));
        let client = client_at("192.0.2.77");
        let request = login("ada@example.com", password);
        let _audited = fixture.service.flows.login.sign_in(&client, &request).await;
    }
    let writer = fixture.service.audit_trail.take_writer();
    let stop = CancellationToken::new();
    stop.cancel();
    writer.expect("not taken yet").run(stop).await;
    fixture
}

fn outcomes(page: &Value) -> Vec<&str> {
    let events = page["signIns"].as_array().expect("a list");
    let outcome = |event: &'_ Value| event["outcome"].as_str().is_some();
    assert!(events.iter().all(outcome), "{page}");
    events
        .iter()
        .filter_map(|event| event["outcome"].as_str())
        .collect()
}

#[tokio::test]
async fn sign_ins_are_listed_by_every_property() {
    for database in testing::both().await {
        let fixture = Box::pin(fixture_with_events(database)).await;
        let url = serve_admin(&fixture).await;
        let (status, all) = read(&url, "sign-ins").await;
        let failed = "invalid_credentials";
        assert_eq!(
            (status, outcomes(&all)),
            (200, vec!["ok", failed, failed, "ok"]),
            "{all}"
        );
        let subject = all["signIns"][0]["subject"].as_str().expect("known");
        let by_user = format!("sign-ins?user={subject}&outcome=ok");
        assert_eq!(outcomes(&read(&url, &by_user).await.1), ["ok", "ok"]);
        let by_email = "sign-ins?email=Ada@example.com&outcome=invalid_credentials";
        assert_eq!(outcomes(&read(&url, by_email).await.1), [failed, failed]);
        for nothing in [
            "email=eve@example.com",
            "user=%25",
            "reason=throttled",
            "since=2100-01-01T00:00:00Z",
        ] {
            let (status, found) = read(&url, &format!("sign-ins?{nothing}")).await;
            assert_eq!((status, outcomes(&found).len()), (200, 0), "{nothing}");
        }
        let mut pages = Vec::new();
        let mut cursor = String::new();
        for _ in 0..4 {
            let (_, page) = read(&url, &format!("sign-ins?limit=1{cursor}")).await;
            pages.extend(outcomes(&page).into_iter().map(str::to_owned));
            cursor = page["nextCursor"]
                .as_str()
                .map_or_else(String::new, |next| format!("&cursor={next}"));
        }
        assert_eq!(pages, ["ok", failed, failed, "ok"]);
        assert_eq!(cursor, "", "the last page has no cursor");
    }
}

#[tokio::test]
async fn sign_ins_are_counted_by_time_and_outcome() {
    for database in testing::both().await {
        let fixture = Box::pin(fixture_with_events(database)).await;
        let url = serve_admin(&fixture).await;
        fixture.clock.advance(std::time::Duration::from_secs(1));
        let (status, summary) = read(&url, "sign-ins/summary?since=1h&step=1h").await;
        assert_eq!(status, 200, "{summary}");
        let counts = summary["counts"].as_array().expect("counts");
        let count = |event: &str, outcome: &str| {
            let matching = counts
                .iter()
                .filter(|row| row["event"] == event && row["outcome"] == outcome);
            matching
                .filter_map(|row| row["count"].as_i64())
                .sum::<i64>()
        };
        assert_eq!(count("register", "ok"), 1, "{summary}");
        assert_eq!(count("sign_in", "invalid_credentials"), 2, "{summary}");
        assert_eq!(count("sign_in", "ok"), 1, "{summary}");
        let (_, finer) = read(&url, "sign-ins/summary?since=10s&step=1s").await;
        let finer = finer["counts"].as_array().map(Vec::len);
        assert_eq!(finer, Some(4), "one event each second");
    }
}

#[tokio::test]
async fn invalid_queries_of_sign_ins_are_refused() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    for query in [
        "sign-ins?email=nonsense",
        "sign-ins?limit=201",
        "sign-ins?cursor=1.2",
        "sign-ins?cursor=%27",
        "sign-ins?until=yesterday",
        "sign-ins?token=1",
        "sign-ins/summary?step=0s",
        "sign-ins/summary?since=100d",
        "sign-ins/summary?since=90d&step=1s",
    ] {
        let (status, problem) = read(&url, query).await;
        assert_eq!(
            (status, &problem["code"]),
            (400, &"invalid_request".into()),
            "{query}"
        );
    }
    let without = Client::new().get(format!("{url}/sign-ins")).send().await;
    assert_eq!(without.expect("a response").status(), 401);
}

async fn release(url: &str, operator: Option<&str>, body: &Value) -> (u16, Value) {
    let request = Client::new().post(format!("{url}/throttled/release"));
    let mut request = request.bearer_auth(TOKEN).json(body);
    if let Some(name) = operator {
        request = request.header(OPERATOR, name);
    }
    let response = request.send().await.expect("a response");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

/// Throttles the account `ada@example.com` from one network.
async fn throttle(fixture: &Fixture) {
    for _ in 0..4 {
        let request = login("ada@example.com", "wrong-1");
        let client = client_at("192.0.2.77");
        let _audited = fixture.service.flows.login.sign_in(&client, &request).await;
    }
}

#[tokio::test]
async fn throttled_account_is_listed_and_released() {
    let fixture = Fixture::with_config("[abuse]\naccount = 1\n").await;
    let url = serve_admin(&fixture).await;
    let registered = fixture.register("ada@example.com", "Password-1").await;
    registered.expect("registered");
    throttle(&fixture).await;
    let (status, list) = read(&url, "throttled").await;
    let entry = &list["throttled"][0];
    assert_eq!(
        (status, &entry["scope"], &entry["kind"]),
        (200, &"account".into(), &"password".into()),
        "{list}"
    );
    assert_eq!(entry["account"].as_str().map(str::len), Some(8));
    assert!(entry["remainingSeconds"].is_u64());
    assert!(!list.to_string().contains("ada@"), "{list}");
    let sign_in = login("ada@example.com", "Password-1");
    let flow = &fixture.service.flows.login;
    let refused = flow.sign_in(&client_at("192.0.2.77"), &sign_in).await;
    assert!(refused.is_err(), "the right password is throttled as well");
    let by_email = json!({ "email": "Ada@example.com" });
    assert_eq!(
        release(&url, None, &by_email).await.0,
        400,
        "without an operator"
    );
    let (status, released) = release(&url, Some("ada"), &by_email).await;
    assert_eq!((status, &released["released"]), (200, &1.into()));
    let signed_in = flow.sign_in(&client_at("192.0.2.77"), &sign_in).await;
    assert!(signed_in.is_ok(), "released");
    assert_eq!(read(&url, "throttled").await.1["throttled"], json!([]));
}

#[tokio::test]
async fn throttled_network_is_released_by_id_or_name() {
    for by_id in [true, false] {
        let fixture = Fixture::with_config("[abuse]\naccount = 100\nnetwork = 1\n").await;
        let url = serve_admin(&fixture).await;
        throttle(&fixture).await;
        let (_, list) = read(&url, "throttled").await;
        let entry = &list["throttled"][0];
        assert_eq!(
            (&entry["scope"], &entry["network"]),
            (&"network".into(), &"192.0.2.0/24".into()),
            "{list}"
        );
        let body = if by_id {
            json!({ "id": entry["id"] })
        } else {
            json!({ "network": "192.0.2.9" })
        };
        assert_eq!(release(&url, Some("ada"), &body).await.1["released"], 1);
        assert_eq!(read(&url, "throttled").await.1["throttled"], json!([]));
    }
}

#[tokio::test]
async fn release_requires_exactly_one_target() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    for body in [
        json!({}),
        json!({ "email": "ada@example.com", "id": "x" }),
        json!({ "email": "nonsense" }),
        json!({ "network": "x'--" }),
        json!({ "all": true }),
    ] {
        let (status, _) = release(&url, Some("ada"), &body).await;
        assert!(matches!(status, 400 | 422), "{body}: {status}");
    }
    let (status, released) = release(&url, Some("ada"), &json!({ "id": "unknown" })).await;
    assert_eq!((status, &released["released"]), (200, &0.into()));
}
