//! The shipped templates, laid out in the data folder.

use std::path::PathBuf;

use postern_common::exit::Exit;

use crate::folder::{Folder, read_if_there, write_private};

/// Path and bytes of each file under `conf/templates`.
const SHIPPED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The folder of templates. Files that are shipped are brought up to date; others in it stay.
pub(crate) fn lay_out(folder: &Folder) -> Result<PathBuf, Exit> {
    for (name, bytes) in SHIPPED {
        let parent = name
            .rsplit_once('/')
            .map_or(String::new(), |(parent, _)| format!("/{parent}"));
        folder.subfolder(&format!("templates{parent}"))?;
        let path = folder.path().join("templates").join(name);
        if read_if_there(&path)?.as_deref() != Some(bytes) {
            write_private(&path, bytes)?;
        }
    }
    folder.subfolder("templates")
}
