//! The ways in which upstreams may read an ambiguous path.

use crate::message::target::{RequestTarget, TargetFault, decoded};

/// Maximum levels of encoding in an ambiguous path.
const MAX_ENCODING_LEVELS: usize = 3;

impl RequestTarget<'_> {
    /// Returns how upstreams may read an ambiguous path: as it is, decoded once, or decoded until
    /// nothing is encoded; each also without empty segments and parameters.
    pub fn readings(&self) -> Vec<String> {
        let levels = [
            self.path.as_bytes().to_vec(),
            decoded(self.path.as_bytes()),
            fully_decoded(self.path.as_bytes()).unwrap_or_default(),
        ];
        let plain = levels.map(|level| String::from_utf8_lossy(&level).into_owned());
        let resolved = plain.each_ref().map(|path| {
            let mut resolved: String = segments(path)
                .filter(|segment| !segment.is_empty())
                .flat_map(|segment| ["/", segment])
                .collect();
            if segments(path).last().is_none_or(str::is_empty) {
                resolved.push('/');
            }
            resolved
        });
        plain.into_iter().chain(resolved).collect()
    }

    /// Returns whether all readings of an ambiguous path have the same value in a segment, decoded once.
    pub fn is_read_alike(&self, at: usize) -> bool {
        let segment = |path: &str| path.split('/').nth(at + 1).unwrap_or_default().to_owned();
        let value = decoded(segment(self.path).as_bytes());
        // Of each three, the first is a path as it is, whose segments are decoded afterwards.
        let is_encoded = [true, false, false].into_iter().cycle();
        let mut readings = self.readings().into_iter().zip(is_encoded);
        readings.all(|(reading, is_encoded)| match is_encoded {
            true => decoded(segment(&reading).as_bytes()) == value,
            false => segment(&reading).as_bytes() == value,
        })
    }
}

/// Checks that no reading of an ambiguous path leads to a parent segment or has a control character.
pub(super) fn check_readings(path: &[u8]) -> Result<(), TargetFault> {
    let path = fully_decoded(path).ok_or(TargetFault::Escape)?;
    if path.iter().any(u8::is_ascii_control) {
        return Err(TargetFault::Character);
    }
    let path = String::from_utf8_lossy(&path);
    match segments(&path).any(|segment| matches!(segment, "." | "..")) {
        true => Err(TargetFault::DotSegment),
        false => Ok(()),
    }
}

/// Returns the segments after the first slash, as servers read them that drop parameters and take a
/// backslash for a slash.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    let segments = path.split(['/', '\\']).skip(1);
    segments.map(|segment| segment.split(';').next().unwrap_or_default())
}

/// Returns the bytes decoded until nothing changes; `None` if there are too many levels.
fn fully_decoded(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut current = bytes.to_vec();
    for _ in 0..=MAX_ENCODING_LEVELS {
        let next = decoded(&current);
        if next == current {
            return Some(current);
        }
        current = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_path_has_no_reading_with_dot_segments() {
        use TargetFault as F;
        for (ambiguity, targets) in [
            (F::Separator, "/a%2Fb /%2F/jobs"),
            (F::Parameter, "/a;v=1/b /a%3Bb"),
            (F::EmptySegment, "/a//b"),
            (F::NestedEscape, "/a%252Fb /a%25252fb"),
            (F::NeedlessEscape, "/%7Euser"),
        ] {
            for target in targets.split(' ') {
                let parsed = RequestTarget::parse_ambiguous(target.as_bytes());
                let parsed = parsed.map(|target| (target.path, target.ambiguity));
                assert_eq!(parsed, Ok((target, Some(ambiguity))), "{target}");
            }
        }
        let dots = "/a/..%2Fb /a%2F..%2fb /a/..;/b /a//.;x /a/%252e%252e/b /a/%25252e%25252e%25252fb \
            /a;/%255c.. /a//%2e%2e";
        for (fault, targets) in [
            (F::DotSegment, dots),
            (F::Character, "/a%2fb%2500"),
            (F::Escape, "/a//%2525252525"),
            (F::Separator, "/a//b\\c"),
        ] {
            for target in targets.split(' ') {
                let parsed = RequestTarget::parse_ambiguous(target.as_bytes());
                assert_eq!(parsed.map(|it| it.path), Err(fault), "{target}");
            }
        }
    }

    #[test]
    fn readings_are_those_of_servers_that_decode_and_merge() {
        let readings = |path: &str| {
            let target = RequestTarget::parse_ambiguous(path.as_bytes()).expect("ambiguous");
            target.readings()
        };
        for (path, reading) in [
            ("/a%2Fb", "/a/b"),
            ("/%7Euser", "/~user"),
            ("//a", "/a"),
            ("/a;x/b", "/a/b"),
            ("/a%252fb", "/a/b"),
            ("/a%252fb", "/a%2fb"),
            ("/a%3bx//b/", "/a/b/"),
            ("/a;x=%2fb", "/a"),
            ("/a%255cb%2f", "/a/b/"),
        ] {
            let all = readings(path);
            assert!(all.iter().any(|it| it == reading), "{path}: {all:?}");
        }
    }
}
