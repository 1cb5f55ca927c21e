//! The files that a pattern of `include` matches: one file, or those of a folder.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

/// Maximum number of entries of a folder that is searched.
const MAX_ENTRIES: usize = 10_000;
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// As in a shell, `*` matches no name that begins with a dot, such as the lock file of an editor.
const GLOB_OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Returns the files that a pattern matches, relative to the folder of `from`, in the order of their
/// names. A pattern without a wildcard must match.
///
/// # Errors
/// Text for a pattern that is malformed, has a wildcard in the name of a folder, or names a folder
/// that has too many entries or cannot be read.
pub(super) fn expand(from: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    if pattern.is_empty() {
        return Ok(Vec::new());
    }
    let (folder, name) = pattern.split_at(pattern.rfind('/').map_or(0, |at| at + 1));
    let path = from.parent().unwrap_or(Path::new("")).join(folder);
    if folder.contains(WILDCARDS) {
        return Err(format!(
            "{pattern}: a wildcard must be in the name of the file"
        ));
    }
    if !name.contains(WILDCARDS) {
        let file = path.join(name);
        return match file.symlink_metadata() {
            Ok(_) => Ok(vec![file]),
            Err(_) => Err(format!("{pattern}: there is no such file")),
        };
    }
    let name = Pattern::new(name).map_err(|error| format!("is not a pattern: {error}"))?;
    files_in(&path, &name)
}

/// Returns the files of a folder whose names match; none if there is no such folder.
fn files_in(path: &Path, name: &Pattern) -> Result<Vec<PathBuf>, String> {
    let folder = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let shown = folder.display();
    let unreadable = |error| format!("cannot read: {shown}: {error}");
    let mut files = Vec::new();
    for (count, entry) in folder.read_dir().map_err(unreadable)?.enumerate() {
        if count == MAX_ENTRIES {
            return Err(format!("{shown}: has more than {MAX_ENTRIES} entries"));
        }
        let file = entry.map_err(unreadable)?.file_name();
        if file
            .to_str()
            .is_some_and(|it| name.matches_with(it, GLOB_OPTIONS))
        {
            files.push(path.join(file));
        }
    }
    files.sort();
    Ok(files)
}
