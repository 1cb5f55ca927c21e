//! Static check that every URL of an HTML part that comes from variables passes the filter `url`.
//!
//! Browsers parse an attribute after the template has been rendered. The scheme is safe only if an
//! expression is the whole attribute value and ends with the filter. Tags in comments are checked
//! as well, because some mail clients interpret them.

/// Attributes that contain a URL (HTML section "Attributes", SVG for `xlink:href`).
const URL_ATTRIBUTES: [&str; 10] = [
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
const UNFILTERED_ATTRIBUTE: &str = "takes the URL of a variable as {{ name | url }} or {{ (expression) | url }}, in quotes and alone";
const EXPRESSION_BETWEEN_ATTRIBUTES: &str =
    "an expression between the attributes of a tag is not allowed; put it into a quoted attribute";
/// A parenthesis in the URL would end `url()`.
const EXPRESSION_IN_STYLE_URL: &str = "url() in a style must not contain an expression";

/// Returns line and description of every error.
pub(super) fn find_unfiltered_urls(html: &str) -> Vec<(usize, String)> {
    let mut errors = Vec::new();
    let mut scan = HtmlScanner { html, at: 0 };
    while let Some(next) = scan.rest().chars().next() {
        if next == '<' && scan.rest()[1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
            scan.tag(&mut errors);
        } else {
            scan.step();
        }
    }
    let lower = html.to_ascii_lowercase();
    for (at, open) in lower.match_indices("url(") {
        let mut inner = HtmlScanner {
            html: &lower,
            at: at + open.len(),
        };
        if inner.until(|c| c == ')').contains('{') {
            errors.push((at, EXPRESSION_IN_STYLE_URL.to_owned()));
        }
    }
    errors
        .into_iter()
        .map(|(at, what)| (1 + html[..at].matches('\n').count(), what))
        .collect()
}

struct HtmlScanner<'a> {
    html: &'a str,
    at: usize,
}

impl<'a> HtmlScanner<'a> {
    fn rest(&self) -> &'a str {
        &self.html[self.at..]
    }

    /// Skips one character, or one whole construct of the template engine.
    fn step(&mut self) {
        let rest = self.rest();
        self.at += construct(rest)
            .or_else(|| rest.chars().next().map(char::len_utf8))
            .unwrap_or(0);
    }

    /// Skips up to the first character that matches `end` outside template constructs, and returns
    /// the skipped text.
    fn until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let begin = self.at;
        while self.rest().chars().next().is_some_and(|next| !end(next)) {
            self.step();
        }
        &self.html[begin..self.at]
    }

    fn tag(&mut self, errors: &mut Vec<(usize, String)>) {
        self.step();
        self.until(|c| c.is_whitespace() || matches!(c, '/' | '>'));
        while let Some(next) = self.rest().chars().next() {
            match next {
                '>' => return,
                '{' if self.rest().starts_with("{{") => {
                    errors.push((self.at, EXPRESSION_BETWEEN_ATTRIBUTES.to_owned()));
                    self.step();
                }
                '{' | '/' | '=' | '"' | '\'' => self.step(),
                _ if next.is_whitespace() => self.step(),
                _ => self.attribute(errors),
            }
        }
    }

    fn attribute(&mut self, errors: &mut Vec<(usize, String)>) {
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
        let is_valid = construct_free(value) || (quote.is_some() && is_filtered(value.trim()));
        if URL_ATTRIBUTES.contains(&name.as_str()) && !is_valid {
            errors.push((begin, format!("{name} {UNFILTERED_ATTRIBUTE}")));
        }
    }
}

fn construct_free(value: &str) -> bool {
    !["{{", "{%", "{#"].iter().any(|open| value.contains(open))
}

/// Returns the length of the template construct at the start of `text`. Quoted strings in it
/// do not end it.
fn construct(text: &str) -> Option<usize> {
    let end = match text.get(..2)? {
        "{{" => "}}",
        "{%" => "%}",
        "{#" => return Some(text.find("#}").map_or(text.len(), |at| at + 2)),
        _ => return None,
    };
    let mut quoted = QuoteTracker::default();
    let end = text
        .char_indices()
        .find(|(at, c)| !quoted.pass(*c) && *at > 1 && text[*at..].starts_with(end));
    Some(end.map_or(text.len(), |(at, _)| at + 2))
}

/// Returns whether a value is exactly `{{ name | url }}` or `{{ (expression) | url }}`.
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

/// Returns whether the last parenthesis closes the first.
fn is_one_group(expression: &str) -> bool {
    let (mut quoted, mut depth) = (QuoteTracker::default(), 0_usize);
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

/// Tracks quoted strings in an expression.
#[derive(Default)]
struct QuoteTracker {
    by: Option<char>,
    escaped: bool,
}

impl QuoteTracker {
    /// Consumes a character and returns whether it belongs to a quoted string, including the
    /// quotes.
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
