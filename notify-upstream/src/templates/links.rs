//! Static check that every URL of an HTML part that comes from variables passes the filter `url`.
//!
//! Browsers parse an attribute after the template has been rendered. The scheme is safe only if a
//! filtered variable is the whole attribute value. Tags in comments are checked as well, because
//! some mail clients interpret them.

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
const UNFILTERED_ATTRIBUTE: &str =
    "takes the URL of a variable as {{ name | url }}, in quotes and alone";
const EXPRESSION_BETWEEN_ATTRIBUTES: &str =
    "an expression between the attributes of a tag is not allowed; put it into a quoted attribute";
/// A parenthesis in the URL would end `url()`.
const EXPRESSION_IN_STYLE_URL: &str = "url() in a style must not contain an expression";

/// Stands for `{{ name | url }}`.
const FILTERED: char = '\u{1}';
/// Stands for any other expression.
const UNFILTERED: char = '\u{2}';

/// Returns line and description of every error.
pub(super) fn find_unfiltered_urls(html: &str) -> Vec<(usize, String)> {
    let html = masked(html);
    let mut errors = Vec::new();
    for (at, _) in html.match_indices('<') {
        if html[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
            errors.extend(tag_error(&html[at..]).map(|what| (at, what)));
        }
    }
    let lower = html.to_ascii_lowercase();
    for (at, open) in lower.match_indices("url(") {
        let inner = lower[at + open.len()..].split(')').next();
        if inner.is_some_and(|inner| inner.contains([FILTERED, UNFILTERED])) {
            errors.push((at, EXPRESSION_IN_STYLE_URL.to_owned()));
        }
    }
    errors
        .into_iter()
        .map(|(at, what)| (1 + html[..at].matches('\n').count(), what))
        .collect()
}

/// Replaces each construct of the template engine by one character and its line breaks.
fn masked(html: &str) -> String {
    let (mut masked, mut rest) = (String::new(), html);
    while let Some((before, from)) = rest.find('{').map(|at| rest.split_at(at)) {
        masked.push_str(before);
        let (end, stand_in) = match from.get(..2) {
            Some("{{") => ("}}", UNFILTERED),
            Some("{%") => ("%}", ' '),
            Some("{#") => ("#}", ' '),
            Some(_) | None => ("{", '{'),
        };
        let length = from.find(end).map_or(from.len(), |at| at + end.len());
        let (construct, after) = from.split_at(length);
        masked.push(match is_filtered(construct) {
            true => FILTERED,
            false => stand_in,
        });
        masked.extend(construct.matches('\n'));
        rest = after;
    }
    masked.push_str(rest);
    masked
}

/// Returns whether a construct is `{{ name | url }}`.
fn is_filtered(construct: &str) -> bool {
    let inner = construct.strip_prefix("{{");
    let inner = inner.and_then(|inner| inner.strip_suffix("}}"));
    let inner = inner.map(|inner| inner.trim_matches(['-', '+']));
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    inner
        .and_then(|inner| inner.split_once('|'))
        .map(|(name, filter)| (name.trim(), filter.trim()))
        .is_some_and(|(name, filter)| {
            filter == "url" && !name.is_empty() && name.chars().all(is_name)
        })
}

/// Returns the first error of the tag at the start of `html`.
fn tag_error(html: &str) -> Option<String> {
    let ends_name = |c: char| c.is_whitespace() || matches!(c, '/' | '>' | '=');
    let mut rest = html.trim_start_matches(|c| !ends_name(c));
    loop {
        rest = rest
            .trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '/' | '=' | '"' | '\''));
        let (name, after) = rest.split_at(rest.find(ends_name).unwrap_or(rest.len()));
        if name.is_empty() {
            return None;
        }
        if name.contains([FILTERED, UNFILTERED]) {
            return Some(EXPRESSION_BETWEEN_ATTRIBUTES.to_owned());
        }
        rest = after.trim_start();
        let Some(value) = rest.strip_prefix('=').map(str::trim_start) else {
            continue;
        };
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let (value, after) = match quote {
            Some(quote) => value[1..].split_once(quote).unwrap_or((value, "")),
            None => {
                let end = value.find(|c: char| c.is_whitespace() || c == '>');
                value.split_at(end.unwrap_or(value.len()))
            }
        };
        rest = after;
        let is_safe = !value.contains([FILTERED, UNFILTERED])
            || (quote.is_some() && value.trim().chars().eq([FILTERED]));
        let name = name.to_ascii_lowercase();
        if URL_ATTRIBUTES.contains(&&*name) && !is_safe {
            return Some(format!("{name} {UNFILTERED_ATTRIBUTE}"));
        }
    }
}
