//! Parts of pages: badges, tables, numbers and forms.
//!
//! Everything from outside is text to `maud`, which escapes it, and [`to_text`] reveals hidden
//! characters. Depends on `actions` for addresses.

use maud::{Markup, html};
use postern_core::hidden_characters::reveal_in_html;
use serde_json::Value;

use crate::actions::path_segment;

/// The channels of notifications.
pub(crate) const CHANNELS: [&str; 3] = ["email", "sms", "push"];

/// The meaning of a badge's colour. Each badge has a word as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Ok,
    Warn,
    Bad,
    Plain,
}

/// What a cell of a table shows of its row.
#[derive(Clone, Copy)]
pub(crate) enum Cell {
    Text(&'static str),
    Number(&'static str),
    Mono(&'static str),
    Time(&'static str),
    /// A member, with a link to its page below a path.
    Link(&'static str, &'static str),
    Of(fn(&Value) -> Markup),
    /// As [`Cell::Of`], for numbers.
    NumberOf(fn(&Value) -> Markup),
}

/// A column of a table: its title and its cells.
pub(crate) type Column = (&'static str, Cell);

// === impl Cell ===

impl Cell {
    fn show(self, row: &Value) -> Markup {
        match self {
            Self::Text(name) | Self::Number(name) => html! { (plain(&row[name])) },
            Self::Mono(name) => mono(&plain(&row[name])),
            Self::Time(name) => time(&plain(&row[name])),
            Self::Link(path, name) => {
                let text = plain(&row[name]);
                html! { @if !text.is_empty() { a.mono href={ (path) (path_segment(&text)) } { (text) } } }
            }
            Self::Of(show) | Self::NumberOf(show) => show(row),
        }
    }

    const fn class(self) -> Option<&'static str> {
        match self {
            Self::Number(_) | Self::NumberOf(_) => Some("num"),
            Self::Text(_) | Self::Mono(_) | Self::Time(_) | Self::Link(..) | Self::Of(_) => None,
        }
    }
}

// === impl Tone ===

impl Tone {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
            Self::Plain => "plain",
        }
    }

    /// Returns the tone of a state, an outcome or a problem code of the processes.
    pub(crate) fn of(state: &str) -> Self {
        let state = state.to_ascii_lowercase();
        let is = |states: &str| states.split(' ').any(|known| known == state);
        if is("ok sent delivered read healthy closed ready up active") {
            Self::Ok
        } else if is("ejected paused half_open retrying degraded throttled pending") {
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
    html! { span class={ "badge " (tone.word()) } { (text) } }
}

/// Returns the badge of a state.
pub(crate) fn state(text: &str) -> Markup {
    html! { @if !text.is_empty() { (badge(Tone::of(text), text)) } }
}

/// Returns a value of a JSON object as plain text: strings as they are, lists with commas.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("{name}={}", plain(value));
            members.iter().map(member).collect::<Vec<_>>().join(" ")
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Returns the first member of these names that is present.
pub(crate) fn first<'a>(value: &'a Value, names: &[&str]) -> &'a Value {
    let mut members = names.iter().map(|name| &value[*name]);
    let found = members.find(|value| !value.is_null());
    found.unwrap_or(&Value::Null)
}

/// Returns the members of two objects together.
pub(crate) fn with(object: &Value, more: &Value) -> Value {
    let mut members = object.as_object().cloned().unwrap_or_default();
    members.extend(more.as_object().cloned().unwrap_or_default());
    Value::Object(members)
}

/// Returns an RFC 3339 instant, if there is one, in a short form, with the whole as its machine-readable
/// value.
pub(crate) fn time(text: &str) -> Markup {
    let (date, clock) = text.split_once('T').unwrap_or(("", text));
    let clock = clock.trim_end_matches('Z');
    html! {
        @if !text.is_empty() { time datetime=(text) title=(text) { @if !date.is_empty() { span.date { (date) " " } } (clock) } }
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
    html! { @for (name, value) in members { span.member { (words(name)) " " span.value { (plain(value)) } } " " } }
}

/// Returns a name of the processes, such as `HALF_OPEN` or `latencyUs`, as words.
pub(crate) fn words(name: &str) -> String {
    let is_camel_case = name.contains(char::is_lowercase);
    let word = |letter: char| match letter {
        '_' => " ".to_owned(),
        'A'..='Z' if is_camel_case => format!(" {}", letter.to_ascii_lowercase()),
        _ => letter.to_lowercase().to_string(),
    };
    name.chars().map(word).collect()
}

/// Returns an identifier in the font of code.
pub(crate) fn mono(text: &str) -> Markup {
    html! { span.mono { (text) } }
}

/// Returns a table, or a sentence if it has no rows. Each cell has the title of its column: on a narrow
/// window, rows are cards.
pub(crate) fn table(caption: &str, rows: &[Value], columns: &[Column], empty: &str) -> Markup {
    html! {
        @if rows.is_empty() { p.muted { (empty) } }
        @else {
            div.scroll tabindex="0" role="region" aria-label=(caption) { table {
                thead { tr { @for (title, cell) in columns { th scope="col" class=[cell.class()] { (title) } } } }
                tbody { @for row in rows { tr { @for (title, cell) in columns { td class=[cell.class()] data-label=(title) { (cell.show(row)) } } } } }
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

/// Formats a number, which is not negative, with thousands separators and at most one decimal below 100.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats seconds: `3.1 ms`, `2.4 s`, `3 min 12 s`, `2 h`, `6 d 2 h`.
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
    let hours = (minutes / 60.0).floor();
    let [(large, of_large), (small, of_small)] = match minutes {
        ..60.0 => [(minutes, "min"), (seconds % 60.0, "s")],
        ..2880.0 => [(hours, "h"), (minutes % 60.0, "min")],
        _ => [((hours / 24.0).floor(), "d"), (hours % 24.0, "h")],
    };
    match small.floor() {
        0.0 => format!("{large:.0} {of_large}"),
        small => format!("{large:.0} {of_large} {small:.0} {of_small}"),
    }
}

/// Formats a fraction as a percentage.
pub(crate) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        small if small < 0.01 => "< 0.01 %".to_owned(),
        small if small < 10.0 => {
            let digits = format!("{small:.2}");
            format!("{} %", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        large => format!("{large:.0} %"),
    }
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
    html! { div.alert.warn[tone != Tone::Bad] role="status" { strong { (title) } span { (text) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_reading() {
        assert_eq!(number(4812.4), "4,812");
        assert_eq!(number(1_204_000.0), "1,204,000");
        assert_eq!(number(3.12), "3.1");
        assert_eq!(duration(0.0031), "3.1 ms");
        assert_eq!(
            (duration(192.0), duration(180_000.0)),
            ("3 min 12 s".to_owned(), "2 d 2 h".to_owned())
        );
        assert_eq!(
            (percent(0.0034), percent(0.0)),
            ("0.34 %".to_owned(), "0 %".to_owned())
        );
        assert_eq!(
            (duration(7200.0), duration(300.0)),
            ("2 h".to_owned(), "5 min".to_owned())
        );
        assert_eq!(number(f64::NAN), "–");
    }
}
