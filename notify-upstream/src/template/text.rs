//! Plain text out of HTML that we rendered ourselves.

/// What stands between the tags: blocks become lines, list items get a dash, scripts and styles are left out.
pub(super) fn from_html(html: &str) -> String {
    let mut text = String::with_capacity(html.len() / 2);
    let mut rest = html;
    while let Some(open) = rest.find('<') {
        push_words(&mut text, &rest[..open]);
        let Some(close) = rest[open..].find('>') else {
            rest = "";
            break;
        };
        let tag = rest[open + 1..open + close].trim();
        rest = &rest[open + close + 1..];
        rest = skip_element(&name_of(tag), tag, rest);
        push_break(&mut text, &name_of(tag), tag.starts_with('/'));
    }
    push_words(&mut text, rest);
    tidy(&text)
}

fn name_of(tag: &str) -> String {
    let name = tag.trim_start_matches('/');
    name.chars().take_while(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// Passes over what a reader never sees.
fn skip_element<'a>(name: &str, tag: &str, rest: &'a str) -> &'a str {
    if !matches!(name, "script" | "style" | "title") || tag.starts_with('/') {
        return rest;
    }
    let end = rest.to_ascii_lowercase().find(&format!("</{name}")).unwrap_or(rest.len());
    &rest[end..]
}

fn push_break(text: &mut String, name: &str, closing: bool) {
    match name {
        "p" | "h1" | "h2" | "h3" | "h4" | "ul" | "ol" | "table" | "blockquote" => text.push_str("\n\n"),
        "br" | "div" | "tr" | "hr" => text.push('\n'),
        "li" if !closing => text.push_str("\n- "),
        "td" | "th" if closing => text.push(' '),
        _ => {}
    }
}

fn push_words(text: &mut String, source: &str) {
    let plain = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let glued = source.starts_with(char::is_whitespace) && !text.ends_with(['\n', ' ']) && !text.is_empty();
    if glued && !plain.is_empty() {
        text.push(' ');
    }
    text.push_str(&unescape(&plain));
    if source.ends_with(char::is_whitespace) && !plain.is_empty() {
        text.push(' ');
    }
}

/// Undoes what the template engine's autoescape does, and the few names that people write.
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
    names.into_iter().fold(text.to_owned(), |text, (name, plain)| text.replace(name, plain))
}

fn tidy(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if !(line.is_empty() && lines.last().is_none_or(|last| last.is_empty())) {
            lines.push(line);
        }
    }
    let mut tidy = lines.join("\n").trim_end().to_owned();
    tidy.push('\n');
    tidy
}
