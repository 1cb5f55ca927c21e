//! `GET /admin/routes`: the routes in force, with what the metrics count of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use prometheus::core::Collector;
use prometheus::proto::Metric;
use serde::Serialize;

use crate::routing::listing::{self, RouteSummary};
use crate::state::GatewayState;

/// A route with its counts since the start of the process.
#[derive(Debug, Serialize)]
pub(super) struct ListedRoute {
    #[serde(flatten)]
    summary: RouteSummary,
    #[serde(flatten)]
    counts: RouteCounts,
}

/// What `postern_requests_total` and `postern_request_seconds` count of a route name.
#[derive(Clone, Debug, Default, Serialize)]
struct RouteCounts {
    /// Requests by status class, such as `2xx`.
    requests: BTreeMap<String, u64>,
    latency: LatencySum,
}

/// The sum of durations from the request head to the end of the response.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct LatencySum {
    count: u64,
    sum_seconds: f64,
}

pub(super) async fn list(Shared(state): Shared<Arc<GatewayState>>) -> Json<Vec<ListedRoute>> {
    let mut counts = counts(&state);
    let config = state.runtime_config.load();
    let pools = config.pools.iter();
    let upstreams: Vec<&str> = pools.map(|pool| pool.config.name.as_str()).collect();
    let routes = config.route_table.routes.iter().map(|route| ListedRoute {
        counts: counts.remove(&route.name).unwrap_or_default(),
        summary: listing::summary(route, &upstreams),
    });
    Json(routes.collect())
}

fn counts(state: &GatewayState) -> HashMap<String, RouteCounts> {
    let mut all: HashMap<String, RouteCounts> = HashMap::new();
    for metric in series(&state.metrics.requests) {
        let (route, class) = (label(&metric, "route"), label(&metric, "class"));
        // A counter of requests is an integer below 2^53.
        let count = metric.get_counter().get_value() as u64;
        let requests = &mut all.entry(route.to_owned()).or_default().requests;
        *requests.entry(class.to_owned()).or_default() += count;
    }
    for metric in series(&state.metrics.duration) {
        let histogram = metric.get_histogram();
        let counts = all.entry(label(&metric, "route").to_owned()).or_default();
        counts.latency = LatencySum {
            count: histogram.get_sample_count(),
            sum_seconds: histogram.get_sample_sum(),
        };
    }
    all
}

fn series(metrics: &impl Collector) -> Vec<Metric> {
    let families = metrics.collect();
    families
        .iter()
        .flat_map(|it| it.get_metric().to_vec())
        .collect()
}

fn label<'m>(metric: &'m Metric, name: &str) -> &'m str {
    let mut labels = metric.get_label().iter();
    labels
        .find(|label| label.name() == name)
        .map_or("", |label| label.value())
}
