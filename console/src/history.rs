//! Time ranges, and the figures of all replicas over six hours, each time range in its own resolution.
//!
//! Input: what was counted between two samples. Output: the [`Interval`]s of a [`Range`]. Depends on
//! `traffic`.

use std::collections::VecDeque;
use std::time::Duration;

use postern_core::clock::Timestamp;

use crate::traffic::{Interval, ROUTE};

/// Points of a range: in 15 minutes, one for each sample.
const MAX_POINTS: u32 = 180;

/// A time range of charts, which ends now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Its name in addresses.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) duration: Duration,
    /// The time between two marks of an axis.
    pub(crate) mark: Duration,
}

/// The ranges, the shortest first.
pub(crate) static RANGES: [Range; 5] = [
    Range::new("15m", "15 minutes", 15, 5),
    Range::new("1h", "1 hour", 60, 15),
    Range::new("6h", "6 hours", 360, 60),
    Range::new("24h", "24 hours", 24 * 60, 240),
    Range::new("7d", "7 days", 7 * 24 * 60, 24 * 60),
];
/// The first of them are in memory, the others in Prometheus.
const IN_MEMORY: usize = 3;

/// The points of each range in memory.
#[derive(Debug, Default)]
pub(crate) struct History([VecDeque<Interval>; IN_MEMORY]);

// === impl Range ===

impl Range {
    const fn new(name: &'static str, title: &'static str, minutes: u64, mark: u64) -> Self {
        Self {
            name,
            title,
            duration: Duration::from_secs(60 * minutes),
            mark: Duration::from_secs(60 * mark),
        }
    }

    /// Returns the ranges that are offered with Prometheus, or those in memory.
    pub(crate) fn offered(has_prometheus: bool) -> &'static [Self] {
        match has_prometheus {
            true => &RANGES,
            false => &RANGES[..IN_MEMORY],
        }
    }

    /// Returns the range of a name, by default the shortest.
    pub(crate) fn named(name: &str, offered: &'static [Self]) -> &'static Self {
        let found = offered.iter().find(|range| range.name == name);
        found.unwrap_or(&RANGES[0])
    }

    /// Returns the time between two points.
    pub(crate) fn step(&self) -> Duration {
        self.duration / MAX_POINTS
    }
}

// === impl History ===

impl History {
    /// Adds an interval, without its routes, to each range: as a new point, or to the last one if that is
    /// of the same step.
    pub(crate) fn add(&mut self, interval: &Interval) {
        let mut point = interval.clone();
        point.parts.retain(|(kind, _), _| *kind != ROUTE);
        for (range, points) in RANGES.iter().zip(&mut self.0) {
            let slot =
                |at: Timestamp| at.since(Timestamp(0)).as_millis() / range.step().as_millis();
            match points.back_mut() {
                Some(last) if slot(last.at) == slot(point.at) => last.merge(&point),
                Some(_) | None => points.push_back(point.clone()),
            }
            let surplus = points.len().saturating_sub(MAX_POINTS as usize);
            points.drain(..surplus);
        }
    }

    /// Returns the points of a range, the oldest first.
    pub(crate) fn of(&self, range: &Range) -> Vec<&Interval> {
        let rings = RANGES.iter().zip(&self.0);
        let of_range = rings.filter(|(known, _)| *known == range);
        of_range.flat_map(|(_, points)| points).collect()
    }
}

#[cfg(test)]
mod tests;
