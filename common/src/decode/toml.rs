use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::{Mistake, Mistakes, Weight};
use super::{Node, Value};

/// A larger file is read in pieces of about this many bytes. The parser takes tens of times a text
/// in memory, and for ten thousand routes it took longer to come by that memory than to parse.
const PIECE: usize = 16 << 10;

/// Parses TOML 1.0. `None` means that the text is not TOML; every syntax error is noted.
#[must_use]
pub fn toml(text: &str, mistakes: &Mistakes) -> Option<Node> {
    in_pieces(text, PIECE).or_else(|| whole(text, mistakes))
}

fn whole(text: &str, mistakes: &Mistakes) -> Option<Node> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        mistakes.note(Mistake {
            pointer: String::new(),
            offset: error.span().map_or(0, |span| span.start),
            weight: Weight::Unreadable,
            code: "invalid_toml",
            detail: describe(text, error),
        });
    }
    errors.is_empty().then(|| Node {
        offset: 0,
        value: Value::Object(table(root.into_inner(), 0)),
    })
}

/// What the parser says, and the name where one stands twice: the header of a table, or the key.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let span = error
        .span()
        .filter(|_| message.starts_with("duplicate key"));
    let Some(name) = span.and_then(|span| Some((text.get(span.clone())?, span.start))) else {
        return message.to_owned();
    };
    let (name, start) = name;
    let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let header = text[line..].lines().next().unwrap_or_default().trim();
    let table = header
        .strip_prefix('[')
        .and_then(|rest| rest.rsplit_once(']'));
    let table =
        table.map(|(table, _)| table.trim_matches(|c: char| c == '[' || c == ']' || c == ' '));
    format!("duplicate key `{}`", table.unwrap_or(name))
}

/// The same for a text that is good, piece by piece. A piece begins at the header of an array of
/// tables, where TOML begins anew.
///
/// `None` leaves the judgement to [`whole`]: where a piece is not good by itself, such as one with
/// a string that is open at its end, and where two pieces have a name in common that is not such an
/// array in both.
fn in_pieces(text: &str, size: usize) -> Option<Node> {
    let mut root: Vec<(String, Node)> = Vec::new();
    let seams = seams(text, size);
    for seam in seams.windows(2) {
        let (entries, errors) = DeTable::parse_recoverable(&text[seam[0]..seam[1]]);
        if !errors.is_empty() {
            return None;
        }
        for (name, node) in table(entries.into_inner(), seam[0]) {
            let Some((_, known)) = root.iter_mut().find(|(known, _)| *known == name) else {
                root.push((name, node));
                continue;
            };
            match (&mut known.value, node.value) {
                (Value::Array(all), Value::Array(more))
                    if begins_with_header(text, all) && begins_with_header(text, &more) =>
                {
                    all.extend(more);
                }
                _ => return None,
            }
        }
    }
    Some(Node {
        offset: 0,
        value: Value::Object(root),
    })
}

/// Where pieces begin, and the end.
fn seams(text: &str, size: usize) -> Vec<usize> {
    let mut seams = vec![0];
    let mut last = 0;
    for (line_end, _) in text.match_indices("\n[[") {
        let start = line_end + 1;
        let header = text[start..].lines().next().unwrap_or_default();
        // One with a dot goes on with a table that is there already.
        if start - last >= size && !header.contains('.') {
            seams.push(start);
            last = start;
        }
    }
    seams.push(text.len());
    seams
}

/// Whether it is an array of tables under headers, and not a list of inline ones, which nothing can
/// be added to.
fn begins_with_header(text: &str, items: &[Node]) -> bool {
    let first = items.first();
    first.is_some_and(|item| {
        matches!(item.value, Value::Object(_)) && text[item.offset..].starts_with("[[")
    })
}

/// Takes the parser's tree apart as it goes. `start` is where its text begins.
fn table(entries: DeTable<'_>, start: usize) -> Vec<(String, Node)> {
    let mut object: Vec<(String, Node)> = entries
        .into_iter()
        .map(|(name, value)| {
            let offset = start + name.span().start;
            (name.into_inner().into_owned(), node(offset, value, start))
        })
        .collect();
    object.sort_by_key(|(_, node)| node.offset);
    object
}

fn node(offset: usize, value: Spanned<DeValue<'_>>, start: usize) -> Node {
    let value = match value.into_inner() {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Null, Value::Integer),
        DeValue::Float(number) => number.as_str().parse().map_or(Value::Null, Value::Float),
        DeValue::Boolean(flag) => Value::Bool(flag),
        DeValue::Datetime(at) => Value::String(at.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .into_iter()
                .map(|item| node(start + item.span().start, item, start))
                .collect(),
        ),
        DeValue::Table(entries) => Value::Object(table(entries, start)),
    };
    Node { value, offset }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What can stand at a seam, good and bad.
    const SNIPPETS: [&str; 16] = [
        "[[route]]\npath = \"/a\"\n",
        "[[route]]\npath = '''\n[[route]]\n'''\n",
        "[[route]]\nlist = [\n[[1]],\n]\n",
        "[[route]] # ...\n[route.cors]\norigins = [\"*\"]\n",
        "[[route]]\n[[route.limits]]\nper = \"1s\"\n",
        "[route.cors]\nlate = true\n",
        "[[test]]\nmethod = \"GET\"\n",
        "[[\"a.b\"]]\nx = 1\n",
        "[limits]\nbody = 1\n",
        "[limits.address]\nrequests = 1\n",
        "route = [{ path = \"/inline\" }]\n",
        "route = []\n",
        "[[limits]]\n",
        "text = \"\"\"\n",
        "key = 1\n",
        "# [[route]]\n\n",
    ];

    proptest! {
        #[test]
        fn pieces_say_what_the_whole_says(picked in prop::collection::vec(prop::sample::select(&SNIPPETS[..]), 0..8)) {
            let text = picked.concat();
            let mistakes = Mistakes::default();
            let judged = whole(&text, &mistakes);
            if let Some(read) = in_pieces(&text, 1) {
                prop_assert_eq!(Some(read), judged);
            }
        }
    }

    #[test]
    fn many_routes_are_read_in_pieces() {
        let text: String =
            std::iter::once("[limits]\nbody = 1\n".to_owned())
                .chain((0..1_000).map(|number| {
                    format!("[[route]]\npath = \"/{number}\"\nmethods = [\"GET\"]\n")
                }))
                .collect();
        assert!(seams(&text, PIECE).len() > 2);
        let read = in_pieces(&text, PIECE);
        assert!(read.is_some());
        assert_eq!(read, whole(&text, &Mistakes::default()));
    }
}
