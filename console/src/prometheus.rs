//! The figures of ranges that are longer than the memory of the console, from the HTTP API of Prometheus.
//!
//! They become the same [`Interval`]s as those of samples, so that charts have the same meaning: a point
//! has what was counted in its step, and the largest values of gauges.
//!
//! Input: PromQL. Output: [`Figures`]. Depends on `config`, `history`, `processes`, `prometheus_text`,
//! `traffic` and `widgets`.

use std::collections::{BTreeMap, HashMap};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use postern_core::Secret;
use postern_core::clock::Timestamp;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::config::ProcessKind::{self, Gateway, Notify};
use crate::history::Range;
use crate::processes::{Reply, Unreachable};
use crate::prometheus_text::Series;
use crate::traffic::Interval;
use crate::widgets::plain;

/// Maximum time of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Time from an error to the next queries: pages are rendered again every few seconds.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum bytes of a response. A range has some 20 series of 180 points.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Maximum characters of an error of Prometheus.
const MAX_ERROR_CHARACTERS: usize = 300;

/// The rate of a counter in `STEP`, the time between two points, by what [`Interval`] tells apart.
const RATE: &str = "sum by (class, le, outcome) (rate(METRIC[STEP]))";
/// The largest value of a gauge: a peak stays visible.
const PEAK: &str = "max(max_over_time(METRIC[STEP]))";
/// The same of the rows of a queue, which all replicas report.
const ROWS: &str = "max_over_time(\
    max by (priority) (sum by (job, instance, priority) (METRIC))[STEP:1m])";

/// Who has a metric, its name, and what is asked of it.
const QUERIES: [(ProcessKind, &str, &str); 7] = [
    // It exists while a gateway answers, also without requests.
    (Gateway, "postern_connections", PEAK),
    (Gateway, "postern_requests_total", RATE),
    (Gateway, "postern_request_seconds_bucket", RATE),
    (Notify, "postern_notify_queue_rows", ROWS),
    (Notify, "postern_notify_oldest_waiting_seconds", PEAK),
    (Notify, "postern_notify_accepted_total", RATE),
    (Notify, "postern_notify_attempts_total", RATE),
];

/// The points of a range, the oldest first, or why there are none.
pub(crate) type Figures = Result<Arc<[Interval]>, String>;

/// A Prometheus server, and what it answered last.
#[derive(Debug)]
pub(crate) struct Prometheus {
    client: reqwest::Client,
    /// The base of its API, which may contain a password.
    url: Secret,
    /// By the name of the range: its end in Unix seconds, when it was asked, and the answer.
    answers: Mutex<HashMap<&'static str, (i64, Timestamp, Figures)>>,
}

// === impl Prometheus ===

impl Prometheus {
    pub(crate) fn new(client: reqwest::Client, url: Secret) -> Self {
        let answers = Mutex::default();
        Self {
            client,
            url,
            answers,
        }
    }

    /// Returns the figures of a range that ends now. All callers share the answers, until there is a
    /// new point.
    pub(crate) async fn figures(&self, range: &'static Range, now: Timestamp) -> Figures {
        let step_s = range.step().as_secs().cast_signed();
        let end_s = now.unix_seconds().div_euclid(step_s) * step_s;
        let start_s = end_s + step_s - range.duration.as_secs().cast_signed();
        let mut answers = self.answers.lock().await;
        if let Some((known_end_s, asked_at, figures)) = answers.get(range.name)
            && *known_end_s == end_s
            && (figures.is_ok() || now.since(*asked_at) < RETRY_INTERVAL)
        {
            return figures.clone();
        }
        let times_s = [("start", start_s), ("end", end_s), ("step", step_s)];
        let queries = QUERIES.iter().map(|(_, metric, query)| {
            let query = query.replace("METRIC", metric);
            self.ask(query.replace("STEP", &format!("{step_s}s")), times_s)
        });
        let figures = try_join_all(queries).await;
        let figures = figures.map(|answers| to_intervals(&answers).into());
        answers.insert(range.name, (end_s, now, figures.clone()));
        figures
    }

    /// Returns the series of a query, or what is wrong.
    async fn ask(&self, query: String, times_s: [(&str, i64); 3]) -> Result<Vec<Value>, String> {
        let url = format!("{}/api/v1/query_range", self.url.expose());
        let request = self.client.get(url).query(&[("query", query)]);
        let request = request.query(&times_s).timeout(QUERY_TIMEOUT);
        let reply = async {
            let response = request.send().await;
            let response = response.map_err(|error| Unreachable::of(&error.without_url()))?;
            Reply::read(response, MAX_RESPONSE_BYTES).await
        };
        let silent = |error: Unreachable| format!("Prometheus does not answer: {}", error.reason);
        let reply = reply.await.map_err(silent)?;
        let mut answer = reply.json();
        let result = answer.pointer_mut("/data/result").map(Value::take);
        if let Some(Value::Array(series)) = result {
            return Ok(series);
        }
        let [kind, error] = ["errorType", "error"].map(|name| plain(&answer[name]));
        let text = format!("Prometheus answers {} {kind} {error}", reply.status);
        Err(text.chars().take(MAX_ERROR_CHARACTERS).collect())
    }
}

/// Returns the points of the answers to all queries. What is not a number is unknown.
fn to_intervals(answers: &[Vec<Value>]) -> Vec<Interval> {
    let mut intervals: BTreeMap<Timestamp, Interval> = BTreeMap::new();
    for ((kind, metric, _), answer) in QUERIES.iter().zip(answers) {
        for answered in answer {
            let labels = answered["metric"].as_object().into_iter().flatten();
            let label = |(name, value): (&String, &Value)| (name.clone(), plain(value));
            let mut series = Series {
                name: (*metric).to_owned(),
                labels: labels.map(label).collect(),
                value: 0.0,
            };
            for point in answered["values"].as_array().into_iter().flatten() {
                let at_s = point[0].as_f64().unwrap_or_default();
                let at = Timestamp((at_s * 1000.0) as i64);
                series.value = plain(&point[1]).parse().unwrap_or(f64::NAN);
                if series.value.is_finite() {
                    let interval = intervals.entry(at).or_insert_with(|| Interval::new(at));
                    interval.add(*kind, slice::from_ref(&series), 1.0, &mut |it| it.value);
                }
            }
        }
    }
    intervals.into_values().collect()
}

#[cfg(test)]
mod tests;
