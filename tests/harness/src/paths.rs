//! Places in the repository.

use std::path::{Path, PathBuf};

/// Returns the folder of the repository.
pub fn repository() -> PathBuf {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = harness.ancestors().nth(2);
    root.expect("the package is tests/harness").to_owned()
}

/// Returns `conf/`.
pub fn conf() -> PathBuf {
    repository().join("conf")
}

/// Returns the path of something that `tests/run` has installed below `tests/.peers`.
pub fn peer(path: &str) -> PathBuf {
    repository().join("tests/.peers").join(path)
}

/// Reads a file of the repository.
#[track_caller]
pub fn read(path: &str) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the folder in which the programs of the workspace are built: test programs are in
/// `target/PROFILE/deps`, other programs in `target/PROFILE`.
pub fn built() -> PathBuf {
    let own = std::env::current_exe().expect("a process knows its program");
    let mut folders = own.ancestors().skip(1);
    let folder = folders.find(|folder| !folder.ends_with("deps"));
    folder.expect("a program is in a folder").to_owned()
}

/// Returns the Rust files below a folder, or none if there is no such folder. Hidden folders and
/// those of builds are left out.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            found.extend(rust_files(&path));
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found
}
