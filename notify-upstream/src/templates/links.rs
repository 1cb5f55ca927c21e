//! Which URLs of an HTML part come from variables, and whether each passes the filter `url`.
//!
//! A browser reads an attribute after the template has written it, so only an expression that is
//! the whole value, and whose last step is the filter, is sure to have a harmless scheme. Tags in
//! comments count: mail programs read some.

/// Attributes that hold a URL (HTML section "Attributes", SVG for `xlink:href`).
const URLS: [&str; 10] = [
    "href",
    "src",
    "action",
    "formaction",
    "srcset",
    "background",
    "poster",
    "xlink:href",
    "cite",
    "data",
];
const ATTRIBUTE: &str = "takes the URL of a variable as {{ name | url }} or {{ (expression) | url }}, in quotes and alone";
const NAMES: &str =
    "an expression stands between the attributes of a tag; it belongs into the quotes of one";
/// A parenthesis in a URL would end it.
const STYLE: &str = "url() of a style takes no expression";

/// Line and words of every mistake.
pub(super) fn unchecked(html: &str) -> Vec<(usize, String)> {
    let mut mistakes = Vec::new();
    let mut scan = Scan { html, at: 0 };
    while let Some(next) = scan.rest().chars().next() {
        if next == '<' && scan.rest()[1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
            scan.tag(&mut mistakes);
        } else {
            scan.step();
        }
    }
    let lower = html.to_ascii_lowercase();
    for (at, open) in lower.match_indices("url(") {
        let mut inner = Scan {
            html: &lower,
            at: at + open.len(),
        };
        if inner.until(|c| c == ')').contains('{') {
            mistakes.push((at, STYLE.to_owned()));
        }
    }
    mistakes
        .into_iter()
        .map(|(at, what)| (1 + html[..at].matches('\n').count(), what))
        .collect()
}

struct Scan<'a> {
    html: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.html[self.at..]
    }

    /// Passes one character, or one construct of the template engine, whatever stands in it.
    fn step(&mut self) {
        let rest = self.rest();
        self.at += construct(rest)
            .or_else(|| rest.chars().next().map(char::len_utf8))
            .unwrap_or(0);
    }

    /// Passes everything before such a character, which does not count within a construct.
    fn until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let begin = self.at;
        while self.rest().chars().next().is_some_and(|next| !end(next)) {
            self.step();
        }
        &self.html[begin..self.at]
    }

    fn tag(&mut self, mistakes: &mut Vec<(usize, String)>) {
        self.step();
        self.until(|c| c.is_whitespace() || matches!(c, '/' | '>'));
        while let Some(next) = self.rest().chars().next() {
            match next {
                '>' => return,
                '{' if self.rest().starts_with("{{") => {
                    mistakes.push((self.at, NAMES.to_owned()));
                    self.step();
                }
                '{' | '/' | '=' | '"' | '\'' => self.step(),
                _ if next.is_whitespace() => self.step(),
                _ => self.attribute(mistakes),
            }
        }
    }

    fn attribute(&mut self, mistakes: &mut Vec<(usize, String)>) {
        let begin = self.at;
        let name = self
            .until(|c| c.is_whitespace() || matches!(c, '=' | '>' | '/' | '{'))
            .to_ascii_lowercase();
        while self.rest().starts_with("{%")
            || self.rest().starts_with("{#")
            || self.rest().starts_with(char::is_whitespace)
        {
            self.step();
        }
        if !self.rest().starts_with('=') {
            return;
        }
        self.step();
        self.until(|c| !c.is_whitespace());
        let quote = self
            .rest()
            .chars()
            .next()
            .filter(|c| matches!(c, '"' | '\''));
        let value = match quote {
            Some(quote) => {
                self.step();
                let value = self.until(|c| c == quote);
                self.step();
                value
            }
            None => self.until(|c| c.is_whitespace() || c == '>'),
        };
        let sound = construct_free(value) || (quote.is_some() && is_filtered(value.trim()));
        if URLS.contains(&name.as_str()) && !sound {
            mistakes.push((begin, format!("{name} {ATTRIBUTE}")));
        }
    }
}

fn construct_free(value: &str) -> bool {
    !["{{", "{%", "{#"].iter().any(|open| value.contains(open))
}

/// The length of the construct that a text begins with; texts in quotes within it do not end it.
fn construct(text: &str) -> Option<usize> {
    let end = match text.get(..2)? {
        "{{" => "}}",
        "{%" => "%}",
        "{#" => return Some(text.find("#}").map_or(text.len(), |at| at + 2)),
        _ => return None,
    };
    let mut quoted = Quoted::default();
    let end = text
        .char_indices()
        .find(|(at, c)| !quoted.pass(*c) && *at > 1 && text[*at..].starts_with(end));
    Some(end.map_or(text.len(), |(at, _)| at + 2))
}

/// `{{ name | url }}` or `{{ (expression) | url }}`, and nothing else.
fn is_filtered(value: &str) -> bool {
    let inner = (construct(value) == Some(value.len()))
        .then(|| value.strip_prefix("{{")?.strip_suffix("}}"))
        .flatten()
        .map(|inner| {
            inner
                .trim_start_matches(['-', '+'])
                .trim_end_matches(['-', '+'])
                .trim()
        });
    let Some((checked, "url")) = inner
        .and_then(|inner| inner.rsplit_once('|'))
        .map(|(a, b)| (a.trim(), b.trim()))
    else {
        return false;
    };
    let name = !checked.is_empty()
        && checked
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    name || is_one_group(checked)
}

/// Whether the first parenthesis is closed by the last.
fn is_one_group(expression: &str) -> bool {
    let (mut quoted, mut depth) = (Quoted::default(), 0_usize);
    let closed = expression.char_indices().find(|(_, c)| {
        if !quoted.pass(*c) {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        depth == 0
    });
    closed.is_some_and(|(at, c)| c == ')' && at + 1 == expression.len())
}

/// Where texts begin and end in an expression.
#[derive(Default)]
struct Quoted {
    by: Option<char>,
    escaped: bool,
}

impl Quoted {
    /// Whether this character belongs to a text, its quotes included.
    fn pass(&mut self, c: char) -> bool {
        match self.by {
            Some(_) if self.escaped => self.escaped = false,
            Some(_) if c == '\\' => self.escaped = true,
            Some(quote) if c == quote => self.by = None,
            None if matches!(c, '"' | '\'') => self.by = Some(c),
            None => return false,
            Some(_) => {}
        }
        true
    }
}
