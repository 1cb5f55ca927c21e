//! The routes of the admin listener.

use postern_core::Secret;
use postern_core::testing::assert_problem;
use postern_service::admin_api::protect;
use postern_store::database::testing;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::http::admin_routes;
use crate::testing::{Fixture, PASSWORD, http, serve_router};

pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(super) async fn serve_admin(fixture: &Fixture) -> String {
    let service = &fixture.service;
    let routes = admin_routes(&service.audit_trail.reader, &service.flows);
    let router = protect(Some(&Secret::from(TOKEN)), routes);
    format!("{}/admin", serve_router(router).await)
}

pub(super) async fn call(
    url: &str,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> (u16, Value) {
    let mut request = http().request(method, format!("{url}/{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    let response = request.send().await.expect("a response");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

pub(super) async fn read(url: &str, path: &str) -> (u16, Value) {
    ask(url, Method::GET, path).await
}

async fn ask(url: &str, method: Method, path: &str) -> (u16, Value) {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    call(url, (method, path), &headers, None).await
}

/// Signs up and in, and guesses a password twice, one second apart.
async fn fixture_with_events(database: testing::TestDatabase) -> Fixture {
    let fixture = Fixture::with_database(database).await;
    fixture.register(PASSWORD).await.expect("registered");
    for password in ["wrong-1", "wrong-2", PASSWORD] {
        fixture.clock.advance(std::time::Duration::from_secs(1));
        let _outcome = fixture.sign_in_at("192.0.2.77", password).await;
    }
    let writer = fixture.service.audit_trail.take_writer();
    let stop = CancellationToken::new();
    stop.cancel();
    writer.expect("not taken yet").run(stop).await;
    fixture
}

fn outcomes(page: &Value) -> Vec<&str> {
    let events = page["signIns"].as_array().expect("a list").iter();
    let outcomes = events.map(|event| event["outcome"].as_str());
    outcomes.map(|outcome| outcome.expect("text")).collect()
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
        let newest = &all["signIns"][0];
        let facts = [&newest["event"], &newest["network"], &newest["provider"]];
        assert_eq!(facts, ["sign_in", "192.0.2.0/24", "password"], "{all}");
        assert_eq!(newest["at"], json!(fixture.clock.now()), "{all}");
        assert!(
            newest["emailHash"].is_string() && newest["id"].is_string(),
            "{all}"
        );
        assert!(!all.to_string().contains("ada@"), "no address: {all}");
        let by_user = format!("sign-ins?user={subject}&outcome=ok");
        assert_eq!(outcomes(&read(&url, &by_user).await.1), ["ok", "ok"]);
        let by_email = "sign-ins?email=Ada@example.com&outcome=invalid_credentials";
        assert_eq!(outcomes(&read(&url, by_email).await.1), [failed, failed]);
        for nothing in [
            "email=eve@example.com",
            "user=%25",
            "reason=throttled",
            "since=2100-01-01T00:00:00Z",
            "until=2000-01-01T00:00:00Z",
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
async fn invalid_queries_of_sign_ins_are_refused() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    for (query, parameter) in [
        ("sign-ins?email=nonsense", "?email"),
        ("sign-ins?user=", "?user"),
        ("sign-ins?limit=0", "?limit"),
        ("sign-ins?limit=201", "?limit"),
        ("sign-ins?cursor=1.2", "?cursor"),
        ("sign-ins?cursor=%27", "?cursor"),
        ("sign-ins?until=yesterday", "?until"),
        ("sign-ins?token=1", "?token"),
        ("sign-ins?limit=1&limit=2", "?limit"),
    ] {
        let found = read(&url, query).await;
        assert_problem(&found, 400, "invalid_request", Some(parameter));
    }
}

#[tokio::test]
async fn other_methods_of_admin_routes_are_not_allowed() {
    let fixture = Fixture::new().await;
    let url = serve_admin(&fixture).await;
    for (method, path) in [
        (Method::POST, "sign-ins"),
        (Method::DELETE, "users"),
        (Method::PUT, "users/x"),
        (Method::GET, "users/x/enable"),
    ] {
        let found = ask(&url, method, path).await;
        assert_problem(&found, 405, "method_not_allowed", None);
    }
}
