//! The state of the queue by channel and priority.

use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_service::http::json;
use serde::Serialize;
use serde_json::json as value;

use super::Api;
use crate::notification::{Channel, Lane, Priority, order_time};

/// Maximum number of rows counted per lane, which bounds the cost of counting.
const MAX_COUNTED_ROWS: i64 = 100_000;

/// The waiting and claimed notifications of a channel and priority.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueView {
    channel: &'static str,
    priority: &'static str,
    /// First attempts, waiting or in delivery, counted up to 100,000.
    depth: i64,
    /// Retries that are due, waiting or in delivery, counted up to 100,000.
    retries: i64,
    /// The acceptance of the oldest waiting first attempt, or the due time of the oldest retry.
    oldest_at: Option<Timestamp>,
    oldest_age_seconds: Option<f64>,
    /// `PROVIDER_PAUSED`, `PROVIDER_UNAVAILABLE`, `LOW_THROTTLED` or `LOW_PAUSED`, as in the status of a notification.
    wait_reason: Option<&'static str>,
    /// The time of the next probe, while no provider of the channel can be called.
    next_probe_at: Option<Timestamp>,
}

/// Handles `GET /admin/queue`. The restrictions are those of this process.
pub(super) async fn view(Api(api): Api) -> Result<Response, Problem> {
    let (store, now) = (&api.store, api.clock.now());
    let depths = store.queue_depths(MAX_COUNTED_ROWS).await?;
    let lanes: Vec<Lane> = Channel::ALL.into_iter().flat_map(Lane::of).collect();
    let heads = store.lane_heads(&lanes, &[], &[]).await?;
    let rows = |lane: Lane| {
        let of_lane = depths.iter().filter(|depth| depth.lane == lane);
        of_lane.map(|depth| depth.rows).sum::<i64>()
    };
    let mut views = Vec::with_capacity(Channel::ALL.len() * Priority::ALL.len());
    for channel in Channel::ALL {
        let flow = api.dispatch_state.channel(channel).flow();
        for priority in Priority::ALL {
            let lane = Lane::first(channel, priority);
            let lanes = [lane, lane.retries()];
            let heads = heads.iter().filter(|head| lanes.contains(&head.lane));
            let oldest_at = heads.map(|head| order_time(head.order)).min();
            let wait_reason = if flow.is_paused {
                Some("PROVIDER_PAUSED")
            } else if flow.next_probe_at.is_some() {
                Some("PROVIDER_UNAVAILABLE")
            } else {
                let throttle = flow.low_throttle.wait_reason();
                throttle.filter(|_| priority == Priority::Low)
            };
            views.push(QueueView {
                channel: channel.as_str(),
                priority: priority.as_str(),
                depth: rows(lane),
                retries: rows(lane.retries()),
                oldest_at,
                oldest_age_seconds: oldest_at.map(|at| seconds_between(at, now)),
                wait_reason,
                next_probe_at: flow.next_probe_at,
            });
        }
    }
    Ok(json(StatusCode::OK, &value!({ "queues": views })))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an age has some billion milliseconds"
)]
fn seconds_between(start: Timestamp, end: Timestamp) -> f64 {
    end.0.saturating_sub(start.0).max(0) as f64 / 1000.0
}
