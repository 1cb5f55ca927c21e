//! The state of the queue by channel and priority.

use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_service::http::json;
use serde_json::json as value;

use super::Api;
use crate::notification::{Channel, Lane, Priority, order_time};

/// Maximum number of rows counted per lane, which bounds the cost of counting.
const MAX_COUNTED_ROWS: i64 = 100_000;

/// Handles `GET /admin/queue`. The restrictions are those of this process.
pub(super) async fn view(Api(api): Api) -> Result<Response, Problem> {
    let (store, now) = (&api.store, api.clock.now());
    let depths = store.queue_depths(MAX_COUNTED_ROWS).await?;
    let lanes: Vec<Lane> = Channel::ALL.into_iter().flat_map(Lane::of).collect();
    let heads = store.lane_heads(&lanes, &[], &[]).await?;
    let rows = |lane: Lane| {
        let of_lane = depths.iter().find(|(of, _)| *of == lane);
        of_lane.map_or(0, |(_, rows)| *rows)
    };
    let mut views = Vec::with_capacity(Channel::ALL.len() * Priority::ALL.len());
    for channel in Channel::ALL {
        let flow = api.dispatch_state.channel(channel).flow();
        for priority in Priority::ALL {
            let lane = Lane::first(channel, priority);
            let lanes = [lane, lane.retries()];
            let heads = heads.iter().filter(|(lane, _)| lanes.contains(lane));
            // The acceptance of the oldest waiting first attempt, or the due time of a retry.
            let oldest_at = heads.map(|(_, order)| order_time(*order)).min();
            views.push(value!({
                "channel": channel.as_str(),
                "priority": priority.as_str(),
                "depth": rows(lane),
                "retries": rows(lane.retries()),
                "oldestAt": oldest_at,
                "oldestAgeSeconds": oldest_at.map(|at| now.since(at).as_secs_f64()),
                "waitReason": flow.wait_reason(priority),
                "nextProbeAt": flow.next_probe_at,
            }));
        }
    }
    Ok(json(StatusCode::OK, &value!({ "queues": views })))
}
