//! When the lanes of a channel are scanned: every second while there is work, and rarely while a
//! replica is idle and is woken by the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ChannelState;

/// Time between two scans of an idle channel. It bounds the delay of a row of which no wake-up
/// arrived although the connection for wake-ups appeared to be intact.
pub(super) const IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// The schedule of the scans of one channel.
#[derive(Debug, Default)]
pub(super) struct ScanSchedule {
    /// The start of the last scan.
    last: Option<Instant>,
    /// Whether the last scan found a row that waits.
    found_rows: bool,
    /// The dead workers of the last scan.
    dead: Arc<[i64]>,
}

// === impl ScanSchedule ===

impl ScanSchedule {
    /// Returns whether a scan is due. While rows wait or are in delivery, or wake-ups may have been
    /// missed since the last scan, each tick is due.
    pub(super) fn is_due(
        &self,
        channel: &ChannelState,
        listening_since: Option<Instant>,
        dead: &Arc<[i64]>,
    ) -> bool {
        let Some(last) = self.last else { return true };
        self.found_rows
            || channel.is_busy()
            || listening_since.is_none_or(|since| since > last)
            || *self.dead != **dead
            || last.elapsed() >= IDLE_SCAN_INTERVAL
    }

    /// Records a scan that began at `began`.
    pub(super) fn record(&mut self, began: Instant, found_rows: bool, dead: Arc<[i64]>) {
        (self.last, self.found_rows, self.dead) = (Some(began), found_rows, dead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::DispatchState;
    use crate::notification::{Channel, Lane, PerChannel, Priority};
    use crate::testing::START;
    use postern_common::Clock;

    /// Returns the state of a channel whose lanes have been scanned to their ends.
    fn idle_channel() -> Arc<ChannelState> {
        let clock = Clock::manual(START);
        let state = DispatchState::new(&PerChannel::from_fn(|_| 4), clock);
        let channel = Arc::clone(state.channel(Channel::Email));
        for lane in Lane::of(Channel::Email) {
            channel.mark_scanned(lane, 0);
        }
        channel
    }

    #[tokio::test(start_paused = true)]
    async fn idle_channel_is_scanned_every_ten_seconds() {
        let (channel, none) = (idle_channel(), Arc::from([]));
        let mut schedule = ScanSchedule::default();
        let listening = Some(Instant::now());
        assert!(schedule.is_due(&channel, listening, &none), "at the start");
        schedule.record(Instant::now(), false, Arc::clone(&none));
        assert!(!schedule.is_due(&channel, listening, &none));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!schedule.is_due(&channel, listening, &none));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(schedule.is_due(&channel, listening, &none));
    }

    #[tokio::test(start_paused = true)]
    async fn work_and_missed_wakeups_make_every_tick_due() {
        let (channel, none) = (idle_channel(), Arc::from([]));
        let listening = Some(Instant::now());
        let mut schedule = ScanSchedule::default();
        schedule.record(Instant::now(), false, Arc::clone(&none));
        assert!(schedule.is_due(&channel, None, &none), "no connection");
        let reconnected = Some(Instant::now() + Duration::from_millis(1));
        assert!(schedule.is_due(&channel, reconnected, &none));
        let died = Arc::from([7]);
        assert!(schedule.is_due(&channel, listening, &died), "a worker died");
        let lane = Lane::first(Channel::Email, Priority::Normal);
        let permit = channel.permits().take(lane, 1.0, 1);
        assert!(schedule.is_due(&channel, listening, &none), "in delivery");
        drop(permit);
        assert!(!schedule.is_due(&channel, listening, &none));
        channel.mark_waiting(lane);
        assert!(schedule.is_due(&channel, listening, &none), "a row waits");
        channel.mark_scanned(lane, channel.signals(lane));
        schedule.record(Instant::now(), true, Arc::clone(&none));
        assert!(schedule.is_due(&channel, listening, &none), "found one");
    }
}
