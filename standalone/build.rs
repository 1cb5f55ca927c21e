//! Embeds the built-in notification templates in the binary.

use std::fmt::Write as _;
use std::fs;
use std::io::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Error> {
    let root = Path::new("../conf/templates").canonicalize()?;
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut code = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&root).map_err(Error::other)?;
        let name = name.display().to_string();
        // Relative to the crate, so that a target folder that outlives its clone can be used by another.
        let path = format!("/../conf/templates/{name}");
        writeln!(
            code,
            "({name:?}, include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?}))),"
        )
        .map_err(Error::other)?;
    }
    code.push(']');
    let out = std::env::var_os("OUT_DIR").ok_or_else(|| Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&out).join("templates.rs"), code)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
