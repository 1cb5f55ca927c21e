//! A scripted Prometheus.

use std::future::pending;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures_util::stream::repeat_with;
use http::{HeaderMap, StatusCode, Uri};
use postern_core::testing::CapturedLog;
use serde_json::json;

use super::*;
use crate::testing::{Answers, Console, serve, stub};

const PASSWORD: &str = "hidden-word";
/// A point of 7 days, whose points are 3,360 s apart.
const AT_S: i64 = 1_799_949_600;

/// Queries of 7 days, each with a label of its series, and their values at two points.
const MATRICES: &str = r"
max(max_over_time(postern_connections[3360s]))|a=b 2 2
sum by (class, le, outcome) (rate(postern_requests_total[3360s]))|class=2xx NaN 3|class=5xx NaN 1
sum by (class, le, outcome) (rate(postern_request_seconds_bucket[3360s]))|le=0.1 NaN 4|le=+Inf NaN 4
max_over_time(max by (priority) (sum by (job, instance, priority) (postern_notify_queue_rows))[3360s:1m])|priority=HIGH NaN 7|priority=LOW NaN 5
sum by (class, le, outcome) (rate(postern_notify_attempts_total[3360s]))|outcome=expired NaN 0.5
";

fn matrix(query: &str) -> Response {
    let series = |text: &str| {
        let (label, values) = text.split_once(' ').expect("values");
        let ((name, label), (first, second)) =
            (label.split_once('=').zip(values.split_once(' '))).expect("a label and two values");
        json!({ "metric": { name: label }, "values": [[AT_S, first], [AT_S + 3360, second]] })
    };
    let mut found = MATRICES.lines();
    let found = found.find_map(|line| line.strip_prefix(query)?.strip_prefix('|'));
    let result: Vec<Value> = found.map_or(vec![], |it| it.split('|').map(series).collect());
    let data = json!({ "resultType": "matrix", "result": result });
    Json(json!({ "status": "success", "data": data })).into_response()
}

/// What a Prometheus is asked.
type Asked = Arc<parking_lot::Mutex<Vec<BTreeMap<String, String>>>>;

/// Starts a console over a Prometheus that behaves as its name says. Returns what it is asked.
async fn console(name: &str) -> (Console, Asked) {
    let (asked, received) = (Asked::default(), Arc::default());
    let answer = async |uri: Uri, headers: HeaderMap, asked: Asked| {
        let authorization = headers["authorization"].to_str();
        assert!(authorization.is_ok_and(|it| it.starts_with("Basic ")));
        let query = uri.query().unwrap_or_default().as_bytes();
        let query: BTreeMap<_, _> = url::form_urlencoded::parse(query).into_owned().collect();
        asked.lock().push(query.clone());
        match uri.path().strip_suffix("/api/v1/query_range") {
            Some("/good") => matrix(&query["query"]),
            Some("/refusing") => {
                let error =
                    json!({ "status": "error", "errorType": "execution", "error": "<many>" });
                (StatusCode::UNPROCESSABLE_ENTITY, Json(error)).into_response()
            }
            Some("/endless") => {
                let chunk = || Ok::<_, std::io::Error>("[".repeat(4 << 10));
                Body::from_stream(repeat_with(chunk)).into_response()
            }
            Some("/silent") => pending().await,
            _ => Json(json!([1])).into_response(),
        }
    };
    let shared = Arc::clone(&asked);
    let answer = move |uri, headers| answer(uri, headers, Arc::clone(&shared));
    let mut url = serve(Router::new().fallback(answer)).await;
    url.set_username("user").expect("a name");
    url.set_password(Some(PASSWORD)).expect("a password");
    if name == "closed" {
        url.set_port(Some(1)).expect("a port");
    }
    let process = stub(Answers::Older, Arc::clone(&received)).await;
    let prometheus = format!("{url}{name}");
    let processes = vec![process.clone()];
    let console = Console::before(&process, processes, received, Some(&prometheus)).await;
    (console, asked)
}

/// Returns a page with a range.
async fn page(console: &Console, page: &str, range: &str) -> String {
    let path = format!("/fragments/{page}?range={range}");
    let (status, html) = console.get(&path, "viewer").await;
    assert_eq!(status, StatusCode::OK, "{html}");
    assert!(!html.contains(PASSWORD), "{html}");
    html
}

/// Returns the values of a chart, without their places.
fn readings(html: &str, chart: &str) -> Vec<String> {
    let (_, rest) = html.split_once(&format!("<strong>{chart}<")).expect("it");
    let (_, rest) = rest.split_once("data-values=\"").expect("values");
    let lines = rest.split('"').next().into_iter().flat_map(str::lines);
    let readings = lines.filter_map(|line| line.split_once('\t'));
    readings.map(|(_, reading)| reading.to_owned()).collect()
}

#[tokio::test]
async fn matrix_is_drawn_with_its_points_and_times() {
    let (console, asked) = console("good").await;
    let html = page(&console, "overview", "7d").await;
    for (chart, first, second) in [
        ("Requests", "0 /s", "4 /s"),
        ("Errors (5xx)", "–", "25 %"),
        ("Latency", "–\t–", "50 ms\t99 ms"),
        ("Waiting notifications", "–", "12"),
    ] {
        let points = [("18:00", first), ("18:56", second)];
        let points = points.map(|(time, values)| format!("01-14 {time}\t{values}"));
        assert_eq!(readings(&html, chart), points, "{chart}");
    }
    assert!(html.contains("aria-current=\"true\">7 days<"), "{html}");
    assert!(html.contains("class=\"line s0\" d=\"M"), "{html}");
    let number = |name: &str| asked.lock()[0][name].parse::<i64>().expect("a number");
    let (start_s, end_s, step_s) = (number("start"), number("end"), number("step"));
    assert_eq!((step_s, (end_s - start_s) / step_s), (3360, 179));
    assert!((0..step_s).contains(&(1_800_000_000 - end_s)), "{end_s}");
    // Another page shares the answers, and another range needs none.
    let html = page(&console, "notifications", "7d").await;
    let shown = readings(&html, "Accepted and attempted");
    assert_eq!(shown[1], "01-14 18:56\t0 /s\t0 /s\t0 /s\t0.5 /s");
    page(&console, "overview", "1h").await;
    assert_eq!(asked.lock().len(), QUERIES.len());
}

#[tokio::test]
async fn failure_of_prometheus_is_told_and_the_rest_works() {
    let (log, _guard) = CapturedLog::start();
    for (name, expected) in [
        ("refusing", "answers 422 execution &lt;many&gt;"),
        ("other", "answers 200"),
        (
            "endless",
            "does not answer: the response is larger than 1024 KiB",
        ),
        ("silent", "does not answer: operation timed out"),
        ("closed", "does not answer: "),
    ] {
        let (console, asked) = console(name).await;
        for shown in ["overview", "notifications"] {
            let html = page(&console, shown, "24h").await;
            let is_told = html.contains(&format!("Prometheus {expected}"));
            assert!(is_told && html.contains(">15 minutes<"), "{name}: {html}");
            let html = page(&console, shown, "1h").await;
            assert!(!html.contains("No figures"), "{name}: {html}");
        }
        let count = asked.lock().len();
        console.clock.advance(RETRY_INTERVAL);
        page(&console, "overview", "24h").await;
        assert!(name == "closed" || asked.lock().len() > count, "{name}");
    }
    assert!(!log.text().contains(PASSWORD), "{}", log.text());
}

#[tokio::test]
async fn longer_ranges_are_not_offered_without_prometheus() {
    let console = Console::start(Answers::Older).await;
    let html = page(&console, "overview", "24h").await;
    assert!(!html.contains(">24 hours<"), "{html}");
    assert!(html.contains("aria-current=\"true\">15 minutes<"), "{html}");
}

#[test]
fn queries_use_documented_metrics() {
    let reference = include_str!("../../../docs/reference/metrics.md");
    for (_, metric, _) in QUERIES {
        let name = metric.trim_end_matches("_bucket");
        assert!(reference.contains(&format!("| `{name}` |")), "{name}");
    }
}
