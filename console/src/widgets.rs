//! Parts of pages: badges, tables, charts, numbers and forms.
//!
//! Everything from outside is text to `maud`, which escapes it, and [`to_text`] reveals hidden
//! characters. Depends on no other module.

use maud::{Markup, html};
use postern_core::hidden_characters::reveal_in_html;
use serde_json::Value;

/// The channels of notifications.
pub(crate) const CHANNELS: [&str; 3] = ["email", "sms", "push"];
/// Samples of a chart, one every 5 s.
const SAMPLES_PER_MINUTE: usize = 12;

/// The meaning of a badge's colour. Each badge has a word as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Ok,
    Warn,
    Bad,
    Plain,
}

/// A column of a table of JSON objects.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) is_number: bool,
    pub(crate) cell: fn(&Value) -> Markup,
}

impl Column {
    pub(crate) const fn new(title: &'static str, cell: fn(&Value) -> Markup) -> Self {
        Self {
            title,
            is_number: false,
            cell,
        }
    }

    pub(crate) const fn number(title: &'static str, cell: fn(&Value) -> Markup) -> Self {
        Self {
            title,
            is_number: true,
            cell,
        }
    }
}

// === impl Tone ===

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Ok => "badge ok",
            Self::Warn => "badge warn",
            Self::Bad => "badge bad",
            Self::Plain => "badge plain",
        }
    }

    /// Returns the tone of a state, an outcome or a problem code of the processes.
    pub(crate) fn of(state: &str) -> Self {
        let state = state.to_ascii_lowercase();
        let is = |states: &str| states.split(' ').any(|known| known == state);
        if is("ok sent delivered read healthy closed ready up active") {
            Self::Ok
        } else if is("ejected paused draining half_open retrying degraded throttled pending") {
            Self::Warn
        } else if is("failed dead expired open unhealthy suppressed bounced internal_error")
            || is("upstream_failed upstream_unavailable upstream_timeout")
        {
            Self::Bad
        } else {
            Self::Plain
        }
    }
}

/// Returns the text of a page or a part of one, with hidden characters as their numbers: text from
/// outside must not reorder what is around it.
pub(crate) fn to_text(markup: Markup) -> String {
    reveal_in_html(markup.into_string())
}

/// Returns a word with the colour of its tone.
pub(crate) fn badge(tone: Tone, text: &str) -> Markup {
    html! { span class=(tone.class()) { (text) } }
}

/// Returns the badge of a state.
pub(crate) fn state(text: &str) -> Markup {
    if text.is_empty() {
        return html! {};
    }
    badge(Tone::of(text), text)
}

/// Returns a value of a JSON object as plain text: strings as they are, lists with commas.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| format!("{name}={}", plain(value)));
            members.collect::<Vec<_>>().join(" ")
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Returns the first member of these names that is present.
pub(crate) fn first<'a>(value: &'a Value, names: &[&str]) -> &'a Value {
    let found = names.iter().map(|name| &value[*name]);
    found
        .into_iter()
        .find(|value| !value.is_null())
        .unwrap_or(&Value::Null)
}

/// Returns an RFC 3339 instant in a short form, with the whole as its machine-readable value.
pub(crate) fn time(text: &str) -> Markup {
    let (date, clock) = text.split_once('T').unwrap_or(("", text));
    let clock = clock.trim_end_matches('Z');
    html! {
        @if text.is_empty() { span.muted { "–" } }
        @else { time datetime=(text) title=(text) { @if !date.is_empty() { span.date { (date) " " } } (clock) } }
    }
}

/// Returns the members of an object that are set and not shown elsewhere.
pub(crate) fn members(object: &Value, shown_elsewhere: &[&str]) -> Markup {
    let members = object.as_object().into_iter().flatten();
    let members = members.filter(|(name, value)| {
        !shown_elsewhere.contains(&name.as_str())
            && !value.is_null()
            && *value != &Value::Bool(false)
    });
    html! { @for (name, value) in members { span.member { (name) " " span.value { (plain(value)) } } " " } }
}

/// Returns an identifier in the font of code.
pub(crate) fn mono(text: &str) -> Markup {
    html! { span.mono { (text) } }
}

/// Returns a table, or a sentence if it has no rows.
pub(crate) fn table(caption: &str, rows: &[Value], columns: &[Column], empty: &str) -> Markup {
    html! {
        @if rows.is_empty() { p.muted { (empty) } }
        @else {
            div.scroll tabindex="0" role="region" aria-label=(caption) { table {
                thead { tr { @for column in columns { th scope="col" class=[column.is_number.then_some("num")] { (column.title) } } } }
                tbody { @for row in rows { tr { @for column in columns {
                    td class=[column.is_number.then_some("num")] { ((column.cell)(row)) }
                } } } }
            } }
        }
    }
}

/// Returns facts as a list of terms and values. Members without a value are left out.
pub(crate) fn facts(members: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (term, value) in members.iter().filter(|(_, value)| !value.0.is_empty()) {
                div { dt { (term) } dd { (value) } }
            }
        }
    }
}

/// Returns the minutes that charts of this number of samples show, up to the last hour: a console
/// that was started a minute ago has no empty charts.
pub(crate) fn chart_minutes(samples: usize) -> usize {
    [5, 15, 30]
        .into_iter()
        .find(|minutes| samples <= minutes * SAMPLES_PER_MINUTE)
        .unwrap_or(60)
}

/// Returns a line chart of the last [`chart_minutes`]. Gaps stay gaps.
pub(crate) fn sparkline(label: &str, values: &[Option<f64>], threshold: Option<f64>) -> Markup {
    const WIDTH: f64 = 240.0;
    const HEIGHT: f64 = 44.0;
    let slots = chart_minutes(values.len()) * SAMPLES_PER_MINUTE;
    let known = values.iter().flatten().copied();
    let max = known.chain(threshold).fold(0.0_f64, f64::max);
    let max = if max > 0.0 { max * 1.1 } else { 1.0 };
    let y = |value: f64| HEIGHT - 1.0 - value / max * (HEIGHT - 4.0);
    // The newest sample is at the right edge.
    let missing = slots.saturating_sub(values.len());
    let x = |index: usize| {
        let slot = u32::try_from(missing + index).unwrap_or(u32::MAX);
        f64::from(slot) / f64::from(u32::try_from(slots - 1).unwrap_or(1)) * WIDTH
    };
    let (mut line, mut area, mut is_open) = (String::new(), String::new(), false);
    for (index, value) in values.iter().enumerate() {
        let Some(value) = value else {
            if is_open {
                area.push_str(&format!("V{HEIGHT}z"));
            }
            is_open = false;
            continue;
        };
        let (px, py) = (x(index), y(*value));
        if is_open {
            line.push_str(&format!("L{px:.1} {py:.1}"));
            area.push_str(&format!("L{px:.1} {py:.1}"));
        } else {
            line.push_str(&format!("M{px:.1} {py:.1}"));
            area.push_str(&format!("M{px:.1} {HEIGHT}V{py:.1}"));
        }
        is_open = true;
    }
    if is_open {
        area.push_str(&format!("V{HEIGHT}z"));
    }
    html! {
        svg.spark viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(label) {
            path.area d=(area) {}
            path.line d=(line) vector-effect="non-scaling-stroke" {}
            @if let Some(threshold) = threshold {
                line.threshold x1="0" x2=(WIDTH) y1=(format!("{:.1}", y(threshold))) y2=(format!("{:.1}", y(threshold))) {}
            }
        }
    }
}

/// Formats a number with thousands separators and at most one decimal below 100.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value.abs() < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// Formats seconds: `3.1 ms`, `2.4 s`, `3 min 12 s`, `6 d 2 h`.
pub(crate) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "–".to_owned();
    }
    if seconds < 1.0 {
        return format!("{} ms", number((seconds * 10_000.0).round() / 10.0));
    }
    if seconds < 60.0 {
        return format!("{} s", number((seconds * 10.0).round() / 10.0));
    }
    let minutes = (seconds / 60.0).floor();
    if minutes < 60.0 {
        return format!("{minutes:.0} min {:.0} s", (seconds % 60.0).floor());
    }
    let hours = (minutes / 60.0).floor();
    if hours < 48.0 {
        return format!("{hours:.0} h {:.0} min", minutes % 60.0);
    }
    format!("{:.0} d {:.0} h", (hours / 24.0).floor(), hours % 24.0)
}

/// Formats bytes.
pub(crate) fn bytes(value: f64) -> String {
    format!("{} MiB", number((value / 1_048_576.0).round()))
}

/// Formats a fraction as a percentage.
pub(crate) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        small if small < 0.01 => "< 0.01 %".to_owned(),
        small if small < 10.0 => format!("{small:.2} %"),
        large => format!("{large:.0} %"),
    }
}

/// Returns JSON in the font of code, indented.
pub(crate) fn json_block(value: &Value) -> Markup {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    html! { pre.code tabindex="0" { code { (text) } } }
}

/// Returns a button that makes a change after a confirmation. The script sends its fields.
pub(crate) fn action(
    name: &str,
    label: &str,
    fields: &[(&str, &str)],
    confirm: &str,
    tone: Tone,
) -> Markup {
    html! {
        form.inline data-action=(name) data-confirm=(confirm) {
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button type="submit" class=[(tone == Tone::Bad).then_some("danger")] { (label) }
        }
    }
}

/// Returns a message in a frame.
pub(crate) fn notice(tone: Tone, title: &str, text: &str) -> Markup {
    let class = if tone == Tone::Bad {
        "alert"
    } else {
        "alert warn"
    };
    html! { div class=(class) role="status" { strong { (title) } span { (text) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_reading() {
        assert_eq!(number(4812.4), "4,812");
        assert_eq!(number(1_204_000.0), "1,204,000");
        assert_eq!(
            (number(3.12), number(-1234.0)),
            ("3.1".to_owned(), "-1,234".to_owned())
        );
        assert_eq!(duration(0.0031), "3.1 ms");
        assert_eq!(
            (duration(192.0), duration(180_000.0)),
            ("3 min 12 s".to_owned(), "2 d 2 h".to_owned())
        );
        assert_eq!(
            (percent(0.0034), percent(0.0)),
            ("0.34 %".to_owned(), "0 %".to_owned())
        );
        assert_eq!(number(f64::NAN), "–");
    }

    #[test]
    fn chart_has_a_gap_where_values_are_missing() {
        let values = [Some(1.0), Some(2.0), None, Some(3.0)];
        let chart = sparkline("x", &values, None).into_string();
        let line = chart.split("class=\"line\" d=\"").nth(1).expect("a line");
        let line = line.split('"').next().expect("the end");
        assert_eq!(line.matches('M').count(), 2, "{line}");
        assert!(!chart.contains("NaN"), "{chart}");
        assert!(!sparkline("x", &[], None).into_string().contains("NaN"));
    }
}
