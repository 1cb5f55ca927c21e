//! Axes and lines.

use super::*;
use crate::config::ProcessKind::Gateway;
use crate::history::{History, RANGES};
use crate::traffic::REQUESTS;

const RATE: &[Line] = &[("", |it| it.per_second(Gateway, &it.part(REQUESTS, "")))];

/// Returns empty charts of a range.
fn without_points(range: &str) -> Charts<'static> {
    Charts {
        points: Vec::new(),
        problem: None,
        offered: &RANGES,
        range: Range::named(range, &RANGES),
        now: Timestamp::parse("2027-01-15T08:07:30Z").expect("a time"),
    }
}

#[test]
fn axis_has_few_round_values_that_reach_the_maximum() {
    for (unit, max, expected) in [
        (Unit::Count, 0.0, vec!["0", "1", "2", "3", "4"]),
        (Unit::Count, 37.0, vec!["0", "10", "20", "30", "40"]),
        (Unit::Count, 4812.0, vec!["0", "2,000", "4,000", "6,000"]),
        (
            Unit::PerSecond,
            7.2,
            vec!["0 /s", "2 /s", "4 /s", "6 /s", "8 /s"],
        ),
        (Unit::Ratio, 0.001, vec!["0 %", "0.5 %", "1 %"]),
        (Unit::Ratio, 1.0, vec!["0 %", "50 %", "100 %"]),
        (
            Unit::Seconds,
            0.047,
            vec!["0 ms", "20 ms", "40 ms", "60 ms"],
        ),
        (
            Unit::Seconds,
            150.0,
            vec!["0 ms", "1 min", "2 min", "3 min"],
        ),
        (
            Unit::Seconds,
            700.0,
            vec!["0 ms", "5 min", "10 min", "15 min"],
        ),
        (Unit::Seconds, 20_000.0, vec!["0 ms", "2 h", "4 h", "6 h"]),
    ] {
        let ticks = unit.ticks(max);
        let texts: Vec<String> = ticks.iter().map(|tick| unit.text(*tick)).collect();
        assert_eq!(texts, expected, "{unit:?} {max}");
    }
}

#[test]
fn line_has_a_gap_where_values_are_missing() {
    let mut history = History::default();
    for (second, is_counted) in [(0, true), (5, true), (10, false), (15, true), (60, true)] {
        let mut interval = Interval::new(Timestamp(1000 * second));
        if is_counted {
            interval.add(Gateway, &[], 5.0, &mut |_| 0.0);
        }
        history.add(&interval);
    }
    let charts = Charts {
        points: history.of(Range::named("15m", &RANGES)),
        now: Timestamp(60_000),
        ..without_points("15m")
    };
    let chart = charts.chart("x", Unit::PerSecond, None, RATE).into_string();
    let line = chart
        .split("class=\"line s0\" d=\"")
        .nth(1)
        .expect("a line");
    let line = line.split('"').next().expect("the end");
    assert_eq!(line.matches('M').count(), 3, "{line}");
    assert!(chart.contains("\t00:00:10\t–"), "{chart}");
    assert!(!chart.contains("NaN"), "{chart}");
    // The newest value is no longer the present one.
    let later = Charts {
        now: Timestamp(80_000),
        ..charts
    };
    let chart = later.chart("x", Unit::PerSecond, None, RATE).into_string();
    assert!(chart.contains("<em>–</em>"), "{chart}");
}

#[test]
fn chart_marks_round_times() {
    for (range, expected, reading) in [
        ("1h", "08:00 07:45 07:30 07:15", "08:00:00"),
        ("24h", "08:00 04:00 00:00 20:00 16:00 12:00", "08:00:00"),
        (
            "7d",
            "01-15 01-14 01-13 01-12 01-11 01-10 01-09",
            "01-15 00:00",
        ),
    ] {
        let charts = without_points(range);
        let marks = charts.marks();
        let texts: Vec<String> = marks.iter().map(|at| charts.time(*at, true)).collect();
        assert_eq!(texts.join(" "), expected, "{range}");
        assert_eq!(charts.time(marks[0], false), reading, "{range}");
    }
    let charts = without_points("1h");
    let chart = charts
        .chart("x", Unit::Ratio, Some(0.001), &[])
        .into_string();
    assert!(
        chart.contains("class=\"threshold\"") && chart.contains("data-values=\"\""),
        "{chart}"
    );
    assert_eq!(Range::named("1 year", &RANGES).name, "15m");
    assert_eq!(Range::named("24h", Range::offered(false)).name, "15m");
}
