//! The folder of the history.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn stored(number: u64, text: &str) -> StoredEntry {
    StoredEntry {
        entry: HistoryEntry {
            number,
            hash: format!("{number:016x}"),
            loaded_at: "2026-01-01T00:00:00.000Z".to_owned(),
            operator: "ada".to_owned(),
            summary: ChangeSummary::default(),
        },
        file: "proxy.toml".to_owned(),
        text: text.to_owned(),
    }
}

fn numbers_in(history: &ConfigHistory) -> Vec<u64> {
    history.entries().map(|entry| entry.number).collect()
}

#[test]
fn newest_fifty_entries_are_kept_and_read_again() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("proxy.toml.history");
    let mut history = ConfigHistory::open(folder.clone());
    for number in 1..=53 {
        let entry = stored(number, &format!("workers = {number}\n"));
        write_entry(&folder, &entry).expect("written");
        history.push(entry.entry);
    }
    let expected: Vec<u64> = (4..=53).rev().collect();
    assert_eq!(numbers_in(&history), expected);
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 50);
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("00000053.json")), 0o600);
    let again = ConfigHistory::open(folder);
    assert_eq!(numbers_in(&again), expected);
    let found = read_entry(&again.folder, 10).expect("readable");
    assert_eq!(found.text, "workers = 10\n");
    assert!(!again.contains(3));
}

#[test]
fn foreign_and_damaged_files_are_left_alone() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path();
    write_entry(folder, &stored(1, "")).expect("written");
    write_entry(folder, &stored(2, "")).expect("written");
    fs::write(folder.join("00000003.json"), "{\"number\": 3").expect("writes");
    fs::rename(folder.join("00000002.json"), folder.join("00000004.json")).expect("renamed");
    for name in ["README", "5.json", "0000000x.json", "00000009.new"] {
        fs::write(folder.join(name), "x").expect("writes");
    }
    assert_eq!(numbers_in(&ConfigHistory::open(folder.to_owned())), [1]);
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 7);
}
