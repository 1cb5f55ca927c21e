//! Characters that a browser does not show, or that change the order in which it shows others, such
//! as U+202E: text of a client can seem to be another text (Unicode Technical Report 36, section
//! 2.10).

/// Returns whether a character is a control, reorders others, or is never visible. Line breaks, tabs,
/// and the joiners of names and emoji (U+200C, U+200D) are not.
#[must_use]
pub fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\r' | '\t' => false,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{180e}'
        | '\u{200b}'
        | '\u{200e}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{e0000}'..='\u{e007f}' => true,
        other => other.is_control(),
    }
}

/// Returns the number of a character in brackets, such as `[U+202E]`.
#[must_use]
pub fn code_point(character: char) -> String {
    format!("[U+{:04X}]", u32::from(character))
}

/// Replaces each hidden character in the text of an HTML document by its number. `html` has been
/// rendered by `maud`, which escapes `<` and `>` also in attributes. Attributes stay as they are, and
/// so does the text of a `textarea`, which is sent back.
#[must_use]
pub fn reveal_in_html(html: String) -> String {
    if !html.contains(is_hidden) {
        return html;
    }
    let mut revealed = String::with_capacity(html.len() + 1024);
    let mut rest = html.as_str();
    while !rest.is_empty() {
        let (text, markup) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
        reveal(text, &mut revealed);
        let end = match markup.starts_with("<textarea") {
            true => "</textarea>",
            false => ">",
        };
        let length = markup.find(end).map_or(markup.len(), |at| at + end.len());
        revealed.push_str(&markup[..length]);
        rest = &markup[length..];
    }
    revealed
}

fn reveal(text: &str, revealed: &mut String) {
    for character in text.chars() {
        match is_hidden(character) {
            true => revealed.push_str(&code_point(character)),
            false => revealed.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_of_text_are_revealed() {
        let html = "<p title=\"a\u{202e}&gt;\">x\u{202e}gnp.exe\u{0}</p>\n\t\
            <textarea>b\u{202e}<!-- -->c</textarea>\u{feff}\u{e0041}z";
        let expected = "<p title=\"a\u{202e}&gt;\">x[U+202E]gnp.exe[U+0000]</p>\n\t\
            <textarea>b\u{202e}<!-- -->c</textarea>[U+FEFF][U+E0041]z";
        assert_eq!(reveal_in_html(html.to_owned()), expected);
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let joined = "مرحبا 👩\u{200d}💻 नेपाल\u{200c}";
        for html in ["<p>Ada\r\n</p>", joined, "", "a < b", "<p"] {
            assert_eq!(reveal_in_html(html.to_owned()), html);
            let marked = reveal_in_html(format!("{html}\u{1b}"));
            assert!(marked.starts_with(html), "{marked}");
        }
    }
}
