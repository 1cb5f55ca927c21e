//! The files of a configuration.

use std::path::Path;

use postern_core::config::ConfigFiles;
use postern_core::exit::Exit;

/// The tables that an included file may contain.
const INCLUDED_TABLES: [&str; 3] = ["route", "test", "upstream"];

/// Reads a configuration file and the files that its key `include` names.
///
/// # Errors
/// Status 64 if the file cannot be read.
pub fn config_files(path: &Path) -> Result<ConfigFiles, Exit> {
    ConfigFiles::read(path, &INCLUDED_TABLES)
}

/// Reads the files as [`config_files`] does, with `text` in place of the contents of the file.
pub(crate) fn files_with_text(path: &Path, text: String) -> ConfigFiles {
    ConfigFiles::with_text(path, text, &INCLUDED_TABLES)
}

/// Returns the configuration of texts with their names, without reading a file.
pub(crate) fn files_of_texts(
    main: (String, String),
    included: Vec<(String, String)>,
) -> ConfigFiles {
    ConfigFiles::of_texts(main, included, &INCLUDED_TABLES)
}
