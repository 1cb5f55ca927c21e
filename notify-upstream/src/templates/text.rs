//! Conversion of rendered HTML to plain text.

use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};

/// Returns the text content: block elements start new lines, list items get a dash, links keep
/// their targets, scripts and styles are removed.
pub(super) fn from_html(html: &str) -> String {
    let mut text = String::with_capacity(html.len() / 2);
    let mut link = None;
    let mut hidden = None;
    let mut emitter: DefaultEmitter = DefaultEmitter::default();
    // The contents of scripts, styles and titles are text, not tags.
    emitter.naively_switch_states(true);
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => {
                let name = String::from_utf8_lossy(&tag.name);
                if matches!(&*name, "script" | "style" | "title") && !tag.self_closing {
                    hidden = Some(name.clone().into_owned());
                }
                if name == "a" {
                    push_target(&mut text, link.take());
                    link = target(&tag).map(|target| (text.len(), target));
                }
                push_break(&mut text, &name, false);
            }
            Token::EndTag(tag) => {
                let name = String::from_utf8_lossy(&tag.name);
                if hidden.as_deref() == Some(&*name) {
                    hidden = None;
                }
                if name == "a" {
                    push_target(&mut text, link.take());
                }
                push_break(&mut text, &name, true);
            }
            Token::String(source) if hidden.is_none() => {
                push_text(&mut text, &String::from_utf8_lossy(&source));
            }
            Token::String(_) | Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    normalize_lines(&text)
}

/// Returns the target of an opening tag's web link.
fn target(tag: &StartTag<()>) -> Option<String> {
    let value = tag.attributes.get(&b"href"[..])?;
    let value = String::from_utf8_lossy(value).trim().to_owned();
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

/// Appends text with its white space collapsed. Spaces that do not break are kept.
fn push_text(text: &mut String, source: &str) {
    let plain = source
        .split_ascii_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let is_space = |c: char| c.is_ascii_whitespace();
    if source.starts_with(is_space) && !text.ends_with(['\n', ' ']) && !text.is_empty() {
        text.push(' ');
    }
    text.push_str(&plain.replace('\u{a0}', " "));
    if source.ends_with(is_space) && !plain.is_empty() {
        text.push(' ');
    }
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
