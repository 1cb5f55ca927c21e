//! Background tasks: due notifications, retention, store health and template reload.
//!
//! The tasks run beside the request and delivery path until shutdown. They depend on all stages.

mod cache_probe;
mod delayed_rows;
mod maintenance;
mod provider_pauses;
mod template_reload;

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

pub(crate) use cache_probe::CacheProbe;
pub(crate) use delayed_rows::DelayedRowMover;
pub(crate) use maintenance::StoreMaintenance;
pub(crate) use provider_pauses::ProviderPauses;
pub(crate) use template_reload::TemplateReloader;

/// Returns an interval that begins at once, and whose ticks keep their distance after a late one.
fn interval(period: Duration) -> Interval {
    let mut tick = tokio::time::interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}
