//! Measured figures and their targets.

/// A measured figure with its target.
#[derive(Clone, Debug)]
pub(crate) struct TargetFigure {
    /// Name, as in the table.
    pub(crate) what: String,
    /// Target.
    pub(crate) reach: String,
    /// Measured value, or the reason why there is none.
    pub(crate) value: String,
    /// Whether the target was reached; `None` if it was not measured.
    pub(crate) reached: Option<bool>,
}

/// Direction of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl TargetFigure {
    /// Creates a figure from a number and its bound, both with `unit`.
    pub(crate) fn number(what: &str, bound: Bound, value: f64, unit: &str) -> Self {
        let (reach, reached) = match bound {
            Bound::AtMost(most) => (format!("at most {}{unit}", short(most)), value <= most),
            Bound::AtLeast(least) => (format!("at least {}{unit}", short(least)), value >= least),
        };
        Self {
            what: what.to_owned(),
            reach,
            value: format!("{}{unit}", short(value)),
            reached: value.is_finite().then_some(reached),
        }
    }

    /// Appends a note to the value.
    pub(crate) fn noting(mut self, note: &str) -> Self {
        self.value = format!("{} ({note})", self.value);
        self
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match self.reached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        }
    }
}

/// Formats three significant digits, with thousands separators.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value.abs() < 100.0 {
        let digits = if value.abs() < 10.0 { 2 } else { 1 };
        let text = format!("{value:.digits$}");
        return if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        };
    }
    let whole = format!("{value:.0}");
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
