//! Samples of `/metrics`, and the series of an incident that goes on.

use std::collections::{BTreeMap, BTreeSet};

use postern_harness::Client;

use crate::metrics_reference::{Sample, labels, samples};

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// The metrics of several processes at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<Sample>);

/// The name of a metric, and labels that a series must have.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    pub(super) name: String,
    labels: BTreeMap<String, String>,
}

impl Samples {
    /// Adds the metrics of a process, with its job as a label.
    pub(super) async fn scrape(&mut self, job: &str, port: u16) {
        let admin = Client::new(&format!("http://127.0.0.1:{port}"));
        let text = admin.fetch("/metrics", 200).await.text();
        for mut sample in samples(&text) {
            let labels = &mut sample.labels;
            labels.insert("job".to_owned(), job.to_owned());
            labels.insert("instance".to_owned(), format!("127.0.0.1:{port}"));
            self.0.push(sample);
        }
    }

    /// Returns the sum of the series that a selector matches, or `None` if there is none.
    pub(super) fn sum(&self, selector: &Selector) -> Option<f64> {
        let selected = self.0.iter().filter(|sample| selector.selects(sample));
        let values = selected.map(|sample| sample.value);
        values.reduce(|sum, value| sum + value)
    }

    /// Returns all series of a metric, for messages.
    pub(super) fn text(&self, name: &str) -> String {
        let found = self.0.iter().filter(|sample| sample.name == name);
        found.map(|sample| format!("{sample:?}\n")).collect()
    }

    /// Returns the series of these metrics in the notation of `promtool`, from time 0: counters
    /// increase every second by what the fault added to `before`; ages are those of a fault that began a
    /// day ago; times are relative to `now_s`; other gauges are constant. Of the gauge of the incident,
    /// only the series that it selects is used, because that of another incident could fire as well.
    pub(super) fn series(
        &self,
        before: &Self,
        names: &BTreeSet<String>,
        incident: &Selector,
        now_s: i64,
        minutes: u32,
    ) -> String {
        let mut text = String::new();
        for sample in self.0.iter().filter(|sample| names.contains(&sample.name)) {
            let (name, is_gauge) = (&sample.name, sample.is_gauge());
            let is_same = |other: &&Sample| other.name == *name && other.labels == sample.labels;
            let earlier = before.0.iter().find(is_same);
            let earlier = earlier.map_or(0.0, |other| other.value);
            if is_gauge && sample.name == incident.name && !incident.selects(sample) {
                continue;
            }
            let is_age = name.ends_with("_age_seconds") || name.contains("_waiting_seconds");
            let (first, per_minute) = match (is_gauge, is_age) {
                (false, _) => (sample.value, 60.0 * (sample.value - earlier)),
                (true, true) => (sample.value + DAY_S, 60.0),
                (true, false) if name.ends_with("_timestamp_seconds") => {
                    (sample.value - now_s as f64, 0.0)
                }
                (true, false) => (sample.value, 0.0),
            };
            let labels = sample.labels.iter();
            let labels = labels.map(|(name, value)| format!("{name}=\"{value}\""));
            let labels = labels.collect::<Vec<_>>().join(",").replace('\'', "''");
            text.push_str(&format!(
                "      - series: '{name}{{{labels}}}'\n        values: '{first}{per_minute:+}x{minutes}'\n"
            ));
        }
        text
    }
}

impl Selector {
    fn selects(&self, sample: &Sample) -> bool {
        let has = |(name, value): (&String, &String)| sample.labels.get(name) == Some(value);
        sample.name == self.name && self.labels.iter().all(has)
    }

    /// Parses `name{label="value"}`.
    pub(super) fn parse(text: &str) -> Self {
        let (name, rest) = text.split_once('{').unwrap_or((text, ""));
        Self {
            name: name.to_owned(),
            labels: labels(rest.trim_end_matches('}')),
        }
    }
}
