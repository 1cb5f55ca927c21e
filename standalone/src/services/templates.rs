//! Built-in notification templates, written to the data folder.

use std::path::PathBuf;

use postern_core::exit::Exit;

use postern_dev::data_folder::{DataFolder, read_optional, write_private};

/// Relative path and content of each file under `conf/templates`.
const SHIPPED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// Writes the built-in templates and returns their folder. Outdated files are replaced, other files
/// are kept.
pub(crate) fn write_templates(folder: &DataFolder) -> Result<PathBuf, Exit> {
    for (name, bytes) in SHIPPED {
        let name = format!("templates/{name}");
        let parent = name
            .rsplit_once('/')
            .map_or("templates", |(parent, _)| parent);
        folder.subfolder(parent)?;
        let path = folder.path().join(name);
        if read_optional(&path)?.as_deref() != Some(bytes) {
            write_private(&path, bytes)?;
        }
    }
    folder.subfolder("templates")
}
