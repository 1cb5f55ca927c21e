//! Differences of two texts by lines, with some lines around each.
//!
//! Depends on no other module.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// Lines around a difference.
const CONTEXT: usize = 3;
/// Time after which what remains is compared coarsely: the texts are those of an operator, and others
/// wait for the thread.
const MAX_COMPARISON_TIME: Duration = Duration::from_millis(200);

/// A line of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiffLine<'t> {
    Same(&'t str),
    Removed(&'t str),
    Added(&'t str),
    /// Equal lines that are left out.
    Omitted(usize),
}

/// Returns the lines that turn one text into another; empty if they are equal.
pub(crate) fn differences<'t>(before: &'t str, after: &'t str) -> Vec<DiffLine<'t>> {
    let (before, after): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let diff = TextDiff::configure()
        .timeout(MAX_COMPARISON_TIME)
        .diff_slices(&before, &after);
    let (mut lines, mut compared) = (Vec::new(), 0);
    for operations in diff.grouped_ops(CONTEXT) {
        let start = operations.first().map_or(0, |it| it.old_range().start);
        lines.extend((start > compared).then(|| DiffLine::Omitted(start - compared)));
        compared = operations.last().map_or(start, |it| it.old_range().end);
        for change in operations.iter().flat_map(|it| diff.iter_changes(it)) {
            let old = change.old_index().and_then(|at| before.get(at));
            let new = change.new_index().and_then(|at| after.get(at));
            lines.extend(match change.tag() {
                ChangeTag::Equal => old.map(|line| DiffLine::Same(line)),
                ChangeTag::Delete => old.map(|line| DiffLine::Removed(line)),
                ChangeTag::Insert => new.map(|line| DiffLine::Added(line)),
            });
        }
    }
    if !lines.is_empty() && before.len() > compared {
        lines.push(DiffLine::Omitted(before.len() - compared));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::DiffLine::{Added, Omitted, Removed, Same};
    use super::*;

    #[test]
    fn changed_lines_are_shown_with_three_lines_around() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let after = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n";
        let expected = [
            Omitted(1),
            Same("2"),
            Same("3"),
            Same("4"),
            Removed("5"),
            Added("five"),
            Same("6"),
            Same("7"),
            Same("8"),
            Same("9"),
            Added("10"),
        ];
        assert_eq!(differences(before, after), expected);
        assert_eq!(differences(before, before), []);
        assert_eq!(differences("", "a"), [Added("a")]);
        assert_eq!(differences("a\nb", ""), [Removed("a"), Removed("b")]);
    }

    #[test]
    fn difference_turns_one_text_into_the_other() {
        let texts = [
            "",
            "a\nb\nc",
            "b\nc\nd\na",
            "c\nb\na\na",
            "x\ny",
            "a\na\na\nb",
        ];
        for before in texts {
            for after in texts {
                let lines = differences(before, after);
                let part = |keep: fn(&DiffLine<'_>) -> bool| {
                    let kept = lines.iter().filter(|line| keep(line));
                    let texts = kept.filter_map(|line| match line {
                        Same(text) | Removed(text) | Added(text) => Some(*text),
                        Omitted(_) => None,
                    });
                    texts.collect::<Vec<_>>().join("\n")
                };
                if before != after {
                    assert_eq!(part(|line| !matches!(line, Added(_))), before);
                    assert_eq!(part(|line| !matches!(line, Removed(_))), after);
                }
            }
        }
    }

    #[test]
    fn large_texts_are_compared_in_bounded_time() {
        let lines = |word: &str| {
            (0..20_000)
                .map(|at| format!("{word}{at}\n"))
                .collect::<String>()
        };
        let started_at = Instant::now();
        assert_eq!(differences(&lines("a"), &lines("b")).len(), 40_000);
        let took = started_at.elapsed();
        assert!(took < 25 * MAX_COMPARISON_TIME, "{took:?}");
    }
}
