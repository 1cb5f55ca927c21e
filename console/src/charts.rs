//! Line charts over a time range, as SVG that fits every width: everything but the lines is placed in
//! percent and keeps its size.
//!
//! The script shows the values under pointer and keyboard focus; it reads them, formatted, from
//! `data-values`. Input: [`Interval`]s. Output: markup. Depends on `history`, `traffic` and `widgets`.

use std::time::Duration;

use maud::{Markup, html};
use postern_core::clock::Timestamp;

use crate::history::Range;
use crate::traffic::Interval;
use crate::widgets::{Tone, duration, notice, number, percent};

/// Intervals of the value axis.
const MAX_INTERVALS: f64 = 4.0;
/// Steps of times from 15 s on, up to a day.
const LONG_STEPS: [f64; 12] = [
    15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0, 86_400.0,
];
/// Intervals that are further apart than this number of steps have a gap between them.
const MAX_STEPS: u32 = 2;
/// Units of the time axis.
const WIDTH: f64 = 1000.0;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Count,
    PerSecond,
    Ratio,
    Seconds,
}

/// A line: its name, empty if it is the only one, and its value at a point.
pub(crate) type Line = (&'static str, fn(&Interval) -> Option<f64>);

/// What all charts of a page share.
#[derive(Clone, Debug)]
pub(crate) struct Charts<'a> {
    /// The points of the range, the oldest first.
    pub(crate) points: Vec<&'a Interval>,
    /// Why there are none.
    pub(crate) problem: Option<&'a str>,
    pub(crate) offered: &'static [Range],
    pub(crate) range: &'static Range,
    /// The end of the range.
    pub(crate) now: Timestamp,
}

// === impl Unit ===

impl Unit {
    /// Returns the lowest upper end of an axis: noise of a quiet system is not drawn large.
    const fn least(self) -> f64 {
        match self {
            Self::Count => 4.0,
            Self::PerSecond => 1.0,
            Self::Ratio | Self::Seconds => 0.01,
        }
    }

    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Count => number(value),
            Self::PerSecond => format!("{} /s", number((value * 10.0).round() / 10.0)),
            Self::Ratio => percent(value),
            Self::Seconds => duration(value),
        }
    }

    /// Returns the round values of an axis from zero to at least `max`.
    fn ticks(self, max: f64) -> Vec<f64> {
        let top = max.max(self.least());
        let least = top / MAX_INTERVALS;
        let magnitude = 10_f64.powf(least.log10().floor());
        let decimal = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
        let is_long = self == Self::Seconds && least > 10.0;
        let long = LONG_STEPS.into_iter().filter(|_| is_long);
        let mut steps = long.chain(decimal);
        let step = steps.find(|step| *step >= least * 0.999).unwrap_or(least);
        let values = (0..=8_u32).map(|index| f64::from(index) * step);
        let needed = values.clone().position(|value| value >= top * 0.999);
        values.take(needed.unwrap_or(8) + 1).collect()
    }
}

// === impl Charts ===

impl Charts<'_> {
    /// Returns the choice of the time range, which is part of the address, and why it has no figures.
    pub(crate) fn ranges(&self, page: &str) -> Markup {
        html! {
            nav.ranges aria-label="Time range" { @for range in self.offered {
                a href={ (page) "?range=" (range.name) } aria-current=[(range == self.range).then_some("true")] { (range.title) }
            } }
            @if let Some(problem) = self.problem { (notice(Tone::Warn, "No figures of this range", problem)) }
        }
    }

    /// Returns a chart. `threshold` is a value that it marks.
    pub(crate) fn chart(
        &self,
        title: &str,
        unit: Unit,
        threshold: Option<f64>,
        lines: &[Line],
    ) -> Markup {
        let mut points = self.points.clone();
        points.retain(|it| self.now.since(it.at) <= self.range.duration);
        let values = |(_, value): &Line| points.iter().map(|it| value(it)).collect::<Vec<_>>();
        let values: Vec<Vec<Option<f64>>> = lines.iter().map(values).collect();
        let known = values.iter().flatten().flatten().copied();
        let ticks = unit.ticks(known.chain(threshold).fold(0.0, f64::max));
        let max = ticks.last().copied().unwrap_or(1.0);
        let y = |value: f64| format!("{:.1}%", 100.0 - 100.0 * value / max);
        let text = |value: Option<f64>| value.map_or("–".to_owned(), |value| unit.text(value));
        let readings = points.iter().enumerate().map(|(index, it)| {
            let texts: Vec<String> = values.iter().map(|line| text(line[index])).collect();
            let x = self.x(it.at);
            format!("{x:.1}\t{}\t{}", self.time(it.at, false), texts.join("\t"))
        });
        let is_new = |it: &&Interval| self.now.since(it.at) <= self.max_gap();
        let is_new = points.last().is_some_and(is_new);
        let newest = |line: &[Option<f64>]| text(line.last().copied().flatten().filter(|_| is_new));
        html! {
            figure.panel.chart {
                figcaption { strong { (title) } span.at {}
                    @for (index, (name, _)) in lines.iter().enumerate() { span class={ "key s" (index) } { (name) " " em { (newest(&values[index])) } } }
                }
                div.plot tabindex="0" role="slider" aria-label={ (title) ", last " (self.range.title) } aria-valuemin="0" aria-valuemax="1000"
                    aria-valuenow="1000" aria-valuetext="the newest" data-values=(readings.collect::<Vec<_>>().join("\n")) {
                    svg aria-hidden="true" {
                        @for tick in &ticks {
                            line.tick x1="0" x2="100%" y1=(y(*tick)) y2=(y(*tick)) {}
                            text x="-8" y=(y(*tick)) dy="4" text-anchor="end" { (unit.text(*tick)) }
                        }
                        @for at in self.marks() { text x=(format!("{:.1}%", self.x(at) / 10.0)) y="100%" dy="18" text-anchor="middle" { (self.time(at, true)) } }
                        @if let Some(value) = threshold { line.threshold x1="0" x2="100%" y1=(y(value)) y2=(y(value)) {} }
                        svg viewBox={ "0 0 " (WIDTH) " 100" } preserveAspectRatio="none" {
                            @for (index, line) in values.iter().enumerate() { path class={ "line s" (index) } d=(self.path(&points, line, max)) vector-effect="non-scaling-stroke" {} }
                        }
                        line.cursor y1="0" y2="100%" {}
                    }
                }
            }
        }
    }

    /// Returns the place of an instant on the time axis.
    fn x(&self, at: Timestamp) -> f64 {
        let left = self.now.since(at).as_secs_f64() / self.range.duration.as_secs_f64();
        WIDTH * (1.0 - left)
    }

    /// Returns an instant, of a value or on the axis: the time of day, in a range of days the date.
    fn time(&self, at: Timestamp, is_mark: bool) -> String {
        let has_date = self.range.mark >= DAY;
        let (start, whole) = [(11, 8), (5, 11)][usize::from(has_date)];
        let characters = if is_mark { 5 } else { whole };
        let text = at.to_string().replace('T', " ");
        text.chars().skip(start).take(characters).collect()
    }

    /// Returns the round times of the axis, the newest first.
    fn marks(&self) -> Vec<Timestamp> {
        let mark = self.range.mark.as_secs().cast_signed();
        let last = self.now.unix_seconds().div_euclid(mark) * mark;
        let all = (0..).map(|index| Timestamp::from_unix_seconds(last - index * mark));
        all.take_while(|at| self.now.since(*at) <= self.range.duration)
            .collect()
    }

    /// Returns the time between two points of a line without a gap.
    fn max_gap(&self) -> Duration {
        MAX_STEPS * self.range.step()
    }

    /// Returns a line with gaps where values are missing. A point without neighbours is a dot.
    fn path(&self, points: &[&Interval], values: &[Option<f64>], max: f64) -> String {
        let (mut path, mut last) = (String::new(), None);
        for (point, value) in points.iter().zip(values) {
            let is_near = |at: Timestamp| point.at.since(at) <= self.max_gap();
            if let Some(value) = value {
                let is_joined = last.is_some_and(is_near);
                let (x, y) = (self.x(point.at), 100.0 - 100.0 * value / max);
                let place = format!("{x:.1} {y:.1}");
                path.push_str(&if is_joined {
                    format!("L{place}")
                } else {
                    format!("M{place}h0")
                });
            }
            last = value.map(|_| point.at);
        }
        path
    }
}

/// Returns the beginning of the time of day of an instant.
pub(crate) fn clock(at: Timestamp, characters: usize) -> String {
    at.to_string().chars().skip(11).take(characters).collect()
}

#[cfg(test)]
mod tests;
