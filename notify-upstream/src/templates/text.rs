//! Conversion of rendered HTML to plain text.

/// Returns the text content: block elements start new lines, list items get a dash, links keep
/// their targets, scripts and styles are removed.
pub(super) fn from_html(html: &str) -> String {
    let mut text = String::with_capacity(html.len() / 2);
    let mut rest = html;
    let mut link = None;
    while let Some(open) = rest.find('<') {
        push_text(&mut text, &rest[..open]);
        let Some(close) = rest[open..].find('>') else {
            rest = "";
            break;
        };
        let tag = rest[open + 1..open + close].trim();
        rest = &rest[open + close + 1..];
        rest = skip_element(&name_of(tag), tag, rest);
        if name_of(tag) == "a" {
            push_target(&mut text, link.take());
            link = target(tag).map(|target| (text.len(), target));
        }
        push_break(&mut text, &name_of(tag), tag.starts_with('/'));
    }
    push_text(&mut text, rest);
    normalize_lines(&text)
}

fn name_of(tag: &str) -> String {
    let name = tag.trim_start_matches('/');
    name.chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_ascii_lowercase()
}

/// Returns the target of an opening tag's web link.
fn target(tag: &str) -> Option<String> {
    let lower = tag.to_ascii_lowercase();
    let (at, name) = lower
        .match_indices("href")
        .find(|(at, _)| lower[..*at].ends_with(char::is_whitespace))?;
    let value = tag[at + name.len()..]
        .trim_start()
        .strip_prefix('=')?
        .trim_start();
    let value = match value.chars().next()? {
        quote @ ('"' | '\'') => value[1..].split(quote).next()?,
        _ => value.split_whitespace().next()?,
    };
    let value = unescape(value.trim());
    (value.starts_with("https://") || value.starts_with("http://")).then_some(value)
}

/// Appends the target of a link after its label, which starts at the given position. Replaces an
/// empty label, and is omitted if it equals the label.
fn push_target(text: &mut String, link: Option<(usize, String)>) {
    let Some((begin, target)) = link else { return };
    let spaced = text.ends_with(' ');
    let label = text.get(begin..).unwrap_or_default().trim().to_owned();
    if label == target {
        return;
    }
    text.truncate(text.trim_end_matches(' ').len().max(begin));
    text.push_str(&if label.is_empty() {
        target
    } else {
        format!(" ({target})")
    });
    if spaced {
        text.push(' ');
    }
}

/// Skips the contents of elements that are not displayed.
fn skip_element<'a>(name: &str, tag: &str, rest: &'a str) -> &'a str {
    if !matches!(name, "script" | "style" | "title") || tag.starts_with('/') {
        return rest;
    }
    let end = rest
        .to_ascii_lowercase()
        .find(&format!("</{name}"))
        .unwrap_or(rest.len());
    &rest[end..]
}

fn push_break(text: &mut String, name: &str, closing: bool) {
    match name {
        "p" | "h1" | "h2" | "h3" | "h4" | "ul" | "ol" | "table" | "blockquote" => {
            text.push_str("\n\n");
        }
        "br" | "div" | "tr" | "hr" => text.push('\n'),
        "li" if !closing => text.push_str("\n- "),
        "td" | "th" if closing => text.push(' '),
        _ => {}
    }
}

fn push_text(text: &mut String, source: &str) {
    let plain = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let glued =
        source.starts_with(char::is_whitespace) && !text.ends_with(['\n', ' ']) && !text.is_empty();
    if glued {
        text.push(' ');
    }
    text.push_str(&unescape(&plain));
    if source.ends_with(char::is_whitespace) && !plain.is_empty() {
        text.push(' ');
    }
}

/// Reverses the template engine's HTML escaping, and decodes a few common named entities.
fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let names = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#x27;", "'"),
        ("&#39;", "'"),
        ("&#x2f;", "/"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ];
    names
        .into_iter()
        .fold(text.to_owned(), |text, (name, plain)| {
            text.replace(name, plain)
        })
}

fn normalize_lines(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if !(line.is_empty() && lines.last().is_none_or(|last| last.is_empty())) {
            lines.push(line);
        }
    }
    let mut normalized = lines.join("\n").trim_end().to_owned();
    normalized.push('\n');
    normalized
}
