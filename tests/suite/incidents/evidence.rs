//! The evidence of an incident: its row of `incidents.txt`, compared with the logs, the metrics, the
//! commands and the console of running processes, and its alert, evaluated by `promtool` over the
//! exported series.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use postern_core::Clock;
use postern_harness::console::events;
use postern_harness::note;
use postern_harness::public_api::PASSWORD;
use postern_harness::systems::succeed;
use postern_harness::wait::answer;
use serde_json::Value;

use super::console_view::ConsoleView;
use super::rules::Rules;
use super::samples::{Samples, Selector};
use crate::observability::{folder, program};

/// An incident that lasts for this time, and fails once per second, must make its alert fire.
const INCIDENT_MINUTES: u32 = 40;

/// A row of `incidents.txt`.
#[derive(Clone, Debug)]
pub(super) struct Incident {
    pub(super) name: String,
    pub(super) message: String,
    /// Fields of the log event, and the text that their values contain.
    fields: Vec<(String, String)>,
    pub(super) metric: Selector,
    /// The value of a gauge; a counter must have increased.
    value: Option<f64>,
    pub(super) alert: String,
    /// Text that the output of the command contains.
    output: Vec<String>,
    /// A page of the console, and text that it contains.
    page: String,
    shown: Vec<String>,
}

/// The incidents of one section, with what was found about them.
#[derive(Debug)]
pub(super) struct Evidence {
    incidents: Vec<Incident>,
    jobs: Vec<(&'static str, u16)>,
    console: ConsoleView,
    /// The metrics before the fault, and when they were read.
    before: (Samples, Instant),
    /// Time from the reading of the metrics before a fault until the console names its cause.
    shown_after: Vec<Duration>,
    proven: BTreeSet<String>,
    cases: String,
    rules: Rules,
}

impl Incident {
    /// Reads the rows of the sections with these headings.
    pub(super) fn read(sections: &[&str]) -> Vec<Self> {
        let page = include_str!("incidents.txt");
        let mut incidents = Vec::new();
        for section in page.split("\n## ").skip(1) {
            let heading = section.lines().next().unwrap_or_default();
            if sections.contains(&heading) {
                let rows = section.lines().filter(|line| line.starts_with("| "));
                incidents.extend(rows.skip(1).map(Self::of_row));
            }
        }
        assert!(!incidents.is_empty(), "{sections:?} have rows");
        incidents
    }

    fn of_row(row: &str) -> Self {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, event, metric, alert, look, page] = cells[..] else {
            panic!("a row has six cells: {row}");
        };
        let code = |cell: &str| -> Vec<String> {
            let spans = cell.split('`').skip(1).step_by(2);
            spans.map(str::to_owned).collect()
        };
        let (event, look, page) = (code(event), code(look), code(page));
        let field = |text: &String| {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            (name.to_owned(), value.to_owned())
        };
        let value = metric.rsplit_once("` is ").map(|(_, value)| value);
        Self {
            name: name.to_owned(),
            message: event[0].clone(),
            fields: event[1..].iter().map(field).collect(),
            metric: Selector::parse(&code(metric)[0]),
            value: value.map(|value| value.parse().expect("a number")),
            alert: alert.to_owned(),
            output: look[1..].to_vec(),
            page: page[0].clone(),
            shown: page[1..].to_vec(),
        }
    }

    /// Returns whether a log has the event.
    fn is_logged(&self, log: &str) -> bool {
        let has_field = |event: &Value, (name, expected): &(String, String)| match event.get(name) {
            None => false,
            Some(Value::String(text)) => text.contains(expected),
            Some(other) => expected.is_empty() || *expected == format!("{other}"),
        };
        let mut events = events(log, &self.message, &Value::Null).into_iter();
        events.any(|event| self.fields.iter().all(|field| has_field(&event, field)))
    }

    fn has_moved(&self, before: &Samples, after: &Samples) -> bool {
        let now = after.sum(&self.metric);
        match self.value {
            Some(value) => now == Some(value),
            None => now.unwrap_or_default() > before.sum(&self.metric).unwrap_or_default(),
        }
    }
}

impl Evidence {
    /// Creates the evidence of the incidents of these sections, over processes with these admin ports.
    /// `token` is that of the service that reads the console.
    pub(super) async fn of(sections: &[&str], jobs: &[(&'static str, u16)], token: &str) -> Self {
        Self {
            console: ConsoleView::start(jobs, token).await,
            incidents: Incident::read(sections),
            jobs: jobs.to_vec(),
            before: (Samples::default(), Instant::now()),
            shown_after: Vec::new(),
            proven: BTreeSet::new(),
            cases: String::new(),
            rules: Rules::read(),
        }
    }

    /// Returns the current metrics of all processes.
    pub(super) async fn samples(&self) -> Samples {
        let mut samples = Samples::default();
        for (job, port) in &self.jobs {
            samples.scrape(job, *port).await;
        }
        samples
    }

    /// Reads the metrics before a fault.
    pub(super) async fn begin(&mut self) {
        self.before = (self.samples().await, Instant::now());
    }

    /// Waits for the log event and the metric of an incident, checks the output of its command, and
    /// waits for the text on a page of the console.
    pub(super) async fn prove(&mut self, name: &str, log: impl Fn() -> String, output: &str) {
        let (before, planted_at) = self.before.clone();
        let known = self.incidents.iter().find(|incident| incident.name == name);
        let incident = known.unwrap_or_else(|| panic!("incidents.txt has no row {name}"));
        let incident = incident.clone();
        answer(async || {
            let log = log();
            let event = incident.is_logged(&log).then_some(());
            event.ok_or_else(|| format!("{name}: no event {incident:?} in\n{log}"))
        })
        .await;
        let metric = &incident.metric;
        let after = answer(async || {
            let after = self.samples().await;
            match incident.has_moved(&before, &after) {
                true => Ok(after),
                false => Err(format!("{name}: {metric:?}:\n{}", after.text(&metric.name))),
            }
        })
        .await;
        for part in &incident.output {
            assert!(output.contains(part), "{name}: no {part:?} in\n{output}");
        }
        let (page, shown) = (&incident.page, &incident.shown);
        self.console.expect(name, page, shown).await;
        self.shown_after.push(planted_at.elapsed());
        self.console.forget_requests();
        self.add_case(&incident, &before, &after);
        self.proven.insert(name.to_owned());
    }

    /// Waits until a page of the console contains all texts.
    pub(super) async fn until_shown(&self, what: &str, page: &str, texts: &[String]) {
        self.console.expect(what, page, texts).await;
    }

    /// Adds a test of `promtool`: the series of the incident, if it goes on.
    fn add_case(&mut self, incident: &Incident, before: &Samples, after: &Samples) {
        let now_s = Clock::system().now().unix_seconds();
        let names = self.rules.metrics_of(&incident.alert);
        let series = after.series(before, &names, &incident.metric, now_s, INCIDENT_MINUTES);
        let (name, alert) = (&incident.name, &incident.alert);
        assert!(!series.is_empty(), "{name}: no process exports {names:?}");
        self.cases.push_str(&format!(
            "  - name: {name}\n    interval: 1m\n    input_series:\n{series}    promql_expr_test:\n      \
             - expr: count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}) > bool 0\n        \
             eval_time: {INCIDENT_MINUTES}m\n        exp_samples:\n          - labels: '{{}}'\n            value: 1\n",
        ));
    }

    /// Reports how soon the console named the causes.
    fn note_times(&self) {
        let mut times = self.shown_after.clone();
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        note(&format!(
            "console: the causes of {} incidents are shown after {median:.1?} (median), {:.1?} (maximum)",
            times.len(),
            times.last().copied().unwrap_or_default()
        ));
    }

    /// Asserts that every incident of the sections was proven, that its alert fires, and that the log
    /// has no secret.
    pub(super) fn finish(self, log: &str, work: &Path) {
        let names: BTreeSet<String> = self.incidents.iter().map(|one| one.name.clone()).collect();
        assert_eq!(self.proven, names, "every row is planted");
        self.note_times();
        for secret in [PASSWORD, "eyJ", "Bearer", "Authorization", "pk_"] {
            assert!(!log.contains(secret), "{secret} was logged");
        }
        let rules = folder().join("rules.yml").canonicalize().expect("rules");
        let tests = work.join("incidents.yml");
        let text = format!(
            "rule_files: [{}]\nevaluation_interval: 1m\ntests:\n{}",
            rules.display(),
            self.cases
        );
        std::fs::write(&tests, text).expect("the folder can be written");
        let mut promtool = Command::new(program("promtool"));
        let _output = succeed(promtool.args(["test", "rules"]).arg(&tests));
    }
}
