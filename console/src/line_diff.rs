//! Differences of two texts by lines, with some lines around each.
//!
//! Depends on no other module.

/// Lines around a difference.
const CONTEXT: usize = 3;
/// Maximum product of the numbers of lines that are compared exactly; larger parts count as
/// replaced.
const MAX_CELLS: usize = 4_000_000;

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
    let pairs = before.iter().zip(&after);
    let start = pairs.take_while(|(one, other)| one == other).count();
    let (rest, other_rest) = (&before[start..], &after[start..]);
    let pairs = rest.iter().rev().zip(other_rest.iter().rev());
    let end = pairs.take_while(|(one, other)| one == other).count();
    let changed = &rest[..rest.len() - end];
    let by = &other_rest[..other_rest.len() - end];
    if changed.is_empty() && by.is_empty() {
        return Vec::new();
    }
    let same = |lines: &[&'t str]| {
        lines
            .iter()
            .map(|line| DiffLine::Same(line))
            .collect::<Vec<_>>()
    };
    let mut lines = same(&before[..start]);
    lines.extend(changed_lines(changed, by));
    lines.extend(same(&rest[rest.len() - end..]));
    shortened(&lines)
}

/// Compares by the longest common subsequence.
fn changed_lines<'t>(before: &[&'t str], after: &[&'t str]) -> Vec<DiffLine<'t>> {
    let removed = before.iter().map(|line| DiffLine::Removed(line));
    let added = after.iter().map(|line| DiffLine::Added(line));
    let (height, width) = (before.len() + 1, after.len() + 1);
    if height.saturating_mul(width) > MAX_CELLS {
        return removed.chain(added).collect();
    }
    // `lengths[x * width + y]` is that of `before[x..]` and `after[y..]`.
    let mut lengths = vec![0_u32; height * width];
    for x in (0..before.len()).rev() {
        for y in (0..after.len()).rev() {
            let [below, right] = [lengths[(x + 1) * width + y], lengths[x * width + y + 1]];
            lengths[x * width + y] = match before[x] == after[y] {
                true => lengths[(x + 1) * width + y + 1] + 1,
                false => below.max(right),
            };
        }
    }
    let (mut x, mut y, mut lines) = (0, 0, Vec::new());
    while x < before.len() || y < after.len() {
        match (before.get(x), after.get(y)) {
            (Some(one), Some(other)) if one == other => {
                lines.push(DiffLine::Same(one));
                (x, y) = (x + 1, y + 1);
            }
            (Some(one), other)
                if other.is_none()
                    || lengths[(x + 1) * width + y] >= lengths[x * width + y + 1] =>
            {
                lines.push(DiffLine::Removed(one));
                x += 1;
            }
            (_, Some(other)) => {
                lines.push(DiffLine::Added(other));
                y += 1;
            }
            (_, None) => break,
        }
    }
    lines
}

/// Leaves equal lines out that are far from every difference.
fn shortened<'t>(lines: &[DiffLine<'t>]) -> Vec<DiffLine<'t>> {
    let is_change = |line: &DiffLine<'_>| !matches!(line, DiffLine::Same(_));
    let mut is_near = vec![false; lines.len()];
    for at in (0..lines.len()).filter(|at| is_change(&lines[*at])) {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len());
        is_near[around].fill(true);
    }
    let mut kept = Vec::new();
    for (line, is_near) in lines.iter().zip(is_near) {
        match (is_near, kept.last_mut()) {
            (true, _) => kept.push(*line),
            (false, Some(DiffLine::Omitted(count))) => *count += 1,
            (false, _) => kept.push(DiffLine::Omitted(1)),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
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
    fn large_texts_are_compared_in_bounded_memory() {
        let lines = |word: &str| {
            (0..20_000)
                .map(|at| format!("{word}{at}\n"))
                .collect::<String>()
        };
        assert_eq!(differences(&lines("a"), &lines("b")).len(), 40_000);
    }
}
