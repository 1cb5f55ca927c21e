//! The configurations that were in force, in a folder.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use postern_core::files::{WRITING, check_access, private_folder, read_regular, replace_private};
use serde::{Deserialize, Serialize};

use super::check::ChangeSummary;

pub(crate) const MAX_ENTRIES: usize = 50;
/// Maximum bytes of a file of the folder that is read.
const MAX_FILE_BYTES: usize = 32 << 20;
const NUMBER_DIGITS: usize = 8;

/// A configuration that was in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryEntry {
    /// Number, ascending.
    pub(crate) number: u64,
    pub(crate) hash: String,
    /// Time of its activation, RFC 3339.
    pub(crate) loaded_at: String,
    /// The person who saved it over the admin listener; `file` for a change of the file.
    pub(crate) operator: String,
    /// The changes to the one before.
    pub(crate) summary: ChangeSummary,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredEntry {
    #[serde(flatten)]
    pub(crate) entry: HistoryEntry,
    pub(crate) file: String,
    pub(crate) text: String,
}

/// The entries, oldest first.
#[derive(Debug)]
pub(crate) struct ConfigHistory {
    pub(crate) folder: PathBuf,
    /// Why the newest configuration is not in the folder.
    pub(crate) fault: Option<String>,
    entries: VecDeque<HistoryEntry>,
}

impl ConfigHistory {
    /// Reads the entries of a folder. Files that are not entries are left alone.
    pub(super) fn open(folder: PathBuf) -> Self {
        let mut history = Self {
            folder,
            fault: None,
            entries: VecDeque::new(),
        };
        let numbers = numbers(&history.folder).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let folder = history.folder.display();
                tracing::warn!(%folder, %error, "configuration history not readable");
            }
            Vec::new()
        });
        let excess = numbers.len().saturating_sub(MAX_ENTRIES);
        for number in numbers.into_iter().skip(excess) {
            match read_entry(&history.folder, number) {
                Ok(stored) => history.entries.push_back(stored.entry),
                Err(error) => {
                    let file = file_name(number);
                    tracing::warn!(file, %error, "history entry not readable");
                }
            }
        }
        history
    }

    /// Returns the entries, newest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &HistoryEntry> {
        self.entries.iter().rev()
    }

    pub(super) fn newest(&self) -> Option<&HistoryEntry> {
        self.entries.back()
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.entries.iter().any(|entry| entry.number == number)
    }

    /// Adds an entry that [`write_entry`] has written.
    pub(super) fn push(&mut self, entry: HistoryEntry) {
        self.entries.push_back(entry);
        while self.entries.len() > MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.fault = None;
    }

    /// Records that an entry cannot be written.
    pub(super) fn note_fault(&mut self, fault: String) {
        if self.fault.as_ref() != Some(&fault) {
            let folder = self.folder.display();
            tracing::warn!(%folder, error = fault, "configuration history not written");
        }
        self.fault = Some(fault);
    }
}

/// Writes an entry to the folder, which is created, and removes the oldest ones. A file is complete
/// once it has its name.
pub(super) fn write_entry(folder: &Path, stored: &StoredEntry) -> io::Result<()> {
    private_folder(folder, WRITING)?;
    let path = folder.join(file_name(stored.entry.number));
    replace_private(&path, &serde_json::to_vec(stored)?)?;
    let numbers = numbers(folder)?;
    for number in numbers.iter().rev().skip(MAX_ENTRIES) {
        fs::remove_file(folder.join(file_name(*number)))?;
    }
    Ok(())
}

pub(crate) fn read_entry(folder: &Path, number: u64) -> io::Result<StoredEntry> {
    let path = folder.join(file_name(number));
    check_access(folder, WRITING)?;
    let stored: StoredEntry = serde_json::from_slice(&read_regular(&path, MAX_FILE_BYTES)?)?;
    match stored.entry.number == number {
        true => Ok(stored),
        false => Err(io::Error::other(
            "the file has another number than its name",
        )),
    }
}

fn file_name(number: u64) -> String {
    format!("{number:0NUMBER_DIGITS$}.json")
}

/// Returns the numbers in the folder, ascending.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".json"));
        let digits = name.filter(|name| {
            name.len() == NUMBER_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit())
        });
        numbers.extend(digits.and_then(|digits| digits.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns the default folder of the history of a file.
pub(super) fn default_folder(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".history");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
