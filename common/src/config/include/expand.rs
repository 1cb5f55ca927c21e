//! The files that a pattern of `include` matches, found within a limit of visited entries.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

/// Maximum number of files that one pattern matches.
const MAX_MATCHES: usize = 10_000;
/// Maximum number of entries of folders that the patterns of a file visit together. A `**` near the
/// root, such as `/**/x`, would walk the whole file system.
const MAX_VISITED_ENTRIES: usize = 20_000;

/// As in a shell, `*` matches no name that begins with a dot, such as the lock file of an editor.
const GLOB_OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A part of a pattern between two slashes.
#[derive(Debug)]
enum Part {
    Name(String),
    Wildcard(Pattern),
    /// `**`: any number of folders.
    Folders,
}

/// The search for the files of all patterns of a file.
#[derive(Debug)]
pub(super) struct Search {
    /// The number of entries that may still be visited.
    left: usize,
}

// === impl Part ===

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "**" => Ok(Self::Folders),
            _ if text.contains(['*', '?', '[']) => Pattern::new(text)
                .map(Self::Wildcard)
                .map_err(|error| not_a_pattern(&error)),
            _ => Ok(Self::Name(text.to_owned())),
        }
    }
}

// === impl Search ===

impl Search {
    pub(super) fn new() -> Self {
        Self {
            left: MAX_VISITED_ENTRIES,
        }
    }

    /// Returns the files that a pattern matches, relative to the folder of `from`, in the order of
    /// their names. A pattern without a wildcard must match.
    ///
    /// # Errors
    /// Text for a pattern that is malformed, matches too many files, visits too many entries, or
    /// needs a folder that cannot be read.
    pub(super) fn expand(&mut self, from: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
        if pattern.is_empty() {
            return Ok(Vec::new());
        }
        Pattern::new(pattern).map_err(|error| not_a_pattern(&error))?;
        let base = match pattern.starts_with('/') {
            true => Path::new("/"),
            false => from.parent().unwrap_or(Path::new("")),
        };
        let parts = pattern.split('/').filter(|part| !["", "."].contains(part));
        let parts: Vec<Part> = parts.map(Part::parse).collect::<Result<_, _>>()?;
        let mut paths = Vec::new();
        let mut waiting = vec![(base.to_path_buf(), 0)];
        while let Some((path, at)) = waiting.pop() {
            match parts.get(at) {
                None if paths.len() == MAX_MATCHES => {
                    return Err(format!("{pattern}: matches more than {MAX_MATCHES} files"));
                }
                None => paths.push(path),
                Some(part) => self.step(path, (part, at), &mut waiting, pattern)?,
            }
        }
        paths.sort();
        paths.dedup();
        if paths.is_empty() && !pattern.contains(['*', '?', '[']) {
            return Err(format!("{pattern}: there is no such file"));
        }
        Ok(paths)
    }

    /// Adds what a part of the pattern matches below `path`.
    fn step(
        &mut self,
        path: PathBuf,
        (part, at): (&Part, usize),
        waiting: &mut Vec<(PathBuf, usize)>,
        pattern: &str,
    ) -> Result<(), String> {
        match part {
            Part::Name(name) => {
                let path = path.join(name);
                self.visit(pattern)?;
                if path.symlink_metadata().is_ok() {
                    waiting.push((path, at + 1));
                }
            }
            Part::Wildcard(wildcard) => {
                for (path, _) in self.entries(&path, pattern)? {
                    let name = path.file_name().and_then(OsStr::to_str);
                    if name.is_some_and(|name| wildcard.matches_with(name, GLOB_OPTIONS)) {
                        waiting.push((path, at + 1));
                    }
                }
            }
            Part::Folders => {
                let entries = self.entries(&path, pattern)?;
                let folders = entries.into_iter().filter(|(_, is_folder)| *is_folder);
                waiting.extend(folders.map(|(path, _)| (path, at)));
                waiting.push((path, at + 1));
            }
        }
        Ok(())
    }

    /// Returns the entries of a folder that do not begin with a dot, and whether each is a folder;
    /// none if the path is no folder.
    fn entries(&mut self, path: &Path, pattern: &str) -> Result<Vec<(PathBuf, bool)>, String> {
        let folder = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let unreadable = |error| format!("cannot read: {}: {error}", folder.display());
        let mut entries = Vec::new();
        for entry in folder.read_dir().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            self.visit(pattern)?;
            let name = entry.file_name();
            if !name.as_encoded_bytes().starts_with(b".") {
                entries.push((path.join(&name), is_folder(&entry)));
            }
        }
        Ok(entries)
    }

    fn visit(&mut self, pattern: &str) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            format!(
                "{pattern}: the patterns visit more than {MAX_VISITED_ENTRIES} entries of folders; \
                 name the folders in front of the first wildcard"
            )
        })?;
        Ok(())
    }
}

fn not_a_pattern(error: &glob::PatternError) -> String {
    format!("is not a pattern: {error}")
}

/// Returns whether an entry is a folder, or a symbolic link to one.
fn is_folder(entry: &DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
        Ok(kind) => kind.is_dir(),
        Err(_) => false,
    }
}
