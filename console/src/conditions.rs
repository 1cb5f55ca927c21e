//! The conditions that say that something is wrong: one table, from which the overview, the alert rules
//! (`conf/observability/rules.yml`) and the meanings in `docs/runbook.md` are made. What to do is in the
//! latter.
//!
//! Input: labels of a series. Output: texts and addresses of pages. Depends on `actions`,
//! `prometheus_text` and `widgets`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::actions::path_segment;
use crate::prometheus_text::{Scrape, Series};
use crate::widgets::{duration, number, percent};

/// The labels of what a condition names.
pub(crate) type Labels = BTreeMap<String, String>;

/// How the console judges a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// A gauge is above the number.
    Above,
    /// A gauge has the number.
    Is,
    /// A counter has increased by more than the number within a minute.
    Rises,
    /// A time is less than this number of seconds away.
    Ends,
    /// By `findings`, from several series.
    Judged,
    /// Another condition, which the sign names, says the same sooner.
    Covered,
}

/// A condition that says that something is wrong.
#[derive(Debug)]
pub(crate) struct Condition {
    /// The name of the alert, without `Postern`.
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    /// `page`: part of the work is not done; `ticket`: it is done, with less margin.
    pub(crate) severity: &'static str,
    pub(crate) watch: Watch,
    /// The series and the number of `watch`. A label has one of the values between `|`, or is not the
    /// value after `!`.
    pub(crate) sign: Option<Series>,
    /// The page with more; `{label}` stands for its value.
    pub(crate) page: &'static str,
    pub(crate) title: &'static str,
    /// What is wrong, with the templates of Prometheus. The labels that it has identify a finding.
    description: &'static str,
    /// The lines of the table.
    #[cfg(test)]
    lines: [&'static str; 4],
}

/// Every condition, causes before their consequences.
pub(crate) static CONDITIONS: LazyLock<Vec<Condition>> = LazyLock::new(|| {
    let rows = include_str!("conditions/table.txt").split("\n\n").skip(1);
    rows.filter_map(Condition::parse).collect()
});

/// Says what to do about each condition.
const RUNBOOK: &str = include_str!("../../docs/runbook.md");

/// Returns what to do about the condition of a name: the remedy of its section in the runbook, or of
/// the one to which that refers.
pub(crate) fn remedy(name: &str) -> Option<String> {
    let (_, section) = RUNBOOK.split_once(&format!("### Postern{name}\n"))?;
    let section = section.split("\n#").next()?;
    let Some((_, text)) = section.split_once("**Remedy.** ") else {
        let (_, other) = section.split_once("**As for** [Postern")?;
        return remedy(other.split(']').next()?);
    };
    let mut text = text.trim_end().replace('`', "");
    while let Some((before, after)) = text.split_once("](") {
        let (start, title) = before.rsplit_once('[')?;
        let (_, rest) = after.split_once(')')?;
        text = format!("{start}{title}{rest}");
    }
    Some(text)
}

/// Returns a condition of the table.
pub(crate) fn named(name: &str) -> Option<&'static Condition> {
    CONDITIONS.iter().find(|condition| condition.name == name)
}

// === impl Condition ===

impl Condition {
    fn parse(row: &'static str) -> Option<Self> {
        let mut lines = row.lines();
        let (head, sign, _expression, text) =
            (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
        let mut words = head.split(' ');
        let (name, group, severity, _hold) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let watch = match words.next()? {
            "Above" => Watch::Above,
            "Is" => Watch::Is,
            "Rises" => Watch::Rises,
            "Ends" => Watch::Ends,
            "Judged" => Watch::Judged,
            _ => Watch::Covered,
        };
        let (title, description) = text.split_once(" | ")?;
        Some(Self {
            name,
            group,
            severity,
            watch,
            sign: Scrape::parse(sign).0.pop(),
            page: words.next().unwrap_or("/"),
            title,
            description,
            #[cfg(test)]
            lines: [head, sign, _expression, text],
        })
    }

    /// Returns whether a series is one of those that the sign names.
    pub(crate) fn selects(&self, series: &Series) -> bool {
        let has = |(name, wanted): &(String, String)| {
            let value = series.label(name);
            match wanted.strip_prefix('!') {
                Some(other) => value != other,
                None => wanted.split('|').any(|wanted| wanted == value),
            }
        };
        let sign = self.sign.as_ref().filter(|sign| sign.name == series.name);
        sign.is_some_and(|sign| sign.labels.iter().all(has))
    }

    /// Returns the labels that the description names, in its order.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &'static str> {
        let parts = self.description.split("{{ $labels.").skip(1);
        parts.filter_map(|part| Some(part.split_once(" }}")?.0))
    }

    /// Returns the description with the values of labels, and with the value of the expression.
    pub(crate) fn describe(&self, labels: &Labels, value: f64) -> String {
        self.fill(|template| match template.strip_prefix("$labels.") {
            Some(label) => labels.get(label).cloned().unwrap_or_default(),
            None if template.ends_with("humanizeDuration") => duration(value),
            None if template.ends_with("humanizePercentage") => percent(value),
            None => number(value),
        })
    }

    fn fill(&self, value: impl Fn(&str) -> String) -> String {
        let mut parts = self.description.split("{{ ");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (template, rest) = part.split_once(" }}").unwrap_or((part, ""));
            text.push_str(&value(template));
            text.push_str(rest);
        }
        text
    }

    /// Returns the address of the page with more.
    pub(crate) fn page(&self, labels: &Labels) -> String {
        let fill = |page: String, (label, value): (&String, &String)| {
            page.replace(&format!("{{{label}}}"), &path_segment(value))
        };
        labels.iter().fold(self.page.to_owned(), fill)
    }
}

#[cfg(test)]
mod tests;
