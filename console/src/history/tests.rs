//! Downsampling.

use super::*;
use crate::config::ProcessKind::{Gateway, Notify};
use crate::testing::process;
use crate::traffic::{REQUESTS, WAITING};

/// Returns an interval of 5 s with 10 requests and this number of waiting notifications.
fn interval(tick: i64, waiting: u32) -> Interval {
    let mut interval = Interval::new(Timestamp(5000 * tick));
    let requests = "postern_requests_total{route=\"r\",class=\"2xx\"} 10\n";
    let rows = format!("postern_notify_queue_rows{{priority=\"LOW\"}} {waiting}\n");
    for status in [process(Gateway, requests), process(Notify, &rows)] {
        let series = &status.scrape.0;
        interval.add(status.kind, series, 5.0, &mut |series| series.value);
    }
    interval
}

#[test]
fn longer_ranges_have_fewer_points_with_the_same_counts() {
    let mut history = History::default();
    for tick in 0..72 {
        history.add(&interval(tick, if tick == 60 { 7 } else { 1 }));
    }
    for (range, points) in RANGES.iter().zip([72, 18, 3]) {
        let all = history.of(range);
        assert_eq!(all.len(), points, "{}", range.name);
        let requests = all.iter().map(|it| it.part(REQUESTS, ""));
        let total: f64 = requests.clone().map(|it| it.requests).sum();
        assert_eq!(total, 720.0, "{}", range.name);
        let rates = all
            .iter()
            .zip(requests)
            .map(|(it, traffic)| it.per_second(Gateway, &traffic));
        assert!(
            rates.into_iter().all(|rate| rate == Some(2.0)),
            "{}",
            range.name
        );
        // A peak stays visible.
        let waiting = all.iter().filter_map(|it| it.gauge(WAITING, "LOW"));
        assert_eq!(waiting.fold(0.0, f64::max), 7.0, "{}", range.name);
        assert_eq!(
            all[0].of_kind(ROUTE).count(),
            0,
            "routes need too much memory"
        );
    }
}

#[test]
fn six_hours_are_kept_in_a_bounded_number_of_points() {
    let mut history = History::default();
    for tick in 0..20_000 {
        history.add(&interval(tick, 0));
    }
    for range in Range::offered(false) {
        let points = history.of(range);
        assert_eq!(points.len(), MAX_POINTS as usize, "{}", range.name);
        let covered = points[points.len() - 1].at.since(points[0].at) + 2 * range.step();
        assert!(covered >= range.duration, "{} {covered:?}", range.name);
    }
}

#[test]
fn figures_that_nobody_tells_are_unknown() {
    let interval = Interval::new(Timestamp(0));
    let requests = interval.part(REQUESTS, "");
    assert_eq!(interval.per_second(Gateway, &requests), None);
    assert_eq!(
        (requests.error_ratio(), interval.all_waiting()),
        (None, None)
    );
    let mut idle = interval;
    let queue = "postern_notify_oldest_waiting_seconds NaN\n";
    let series = process(Notify, queue).scrape.0;
    idle.add(Notify, &series, 5.0, &mut |series| series.value);
    assert_eq!(idle.gauge(crate::traffic::OLDEST, ""), None);
    assert_eq!(idle.per_second(Notify, &requests), Some(0.0));
}
