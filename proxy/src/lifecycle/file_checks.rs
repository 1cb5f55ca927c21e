//! Checks of what a configuration needs to be used, above all of the files that it names.

use std::io::ErrorKind;
use std::path::Path;

use postern_core::decode::Object;
use postern_core::files::{ALL_BUT_OWNER, WRITING, check_access};

use crate::api_keys::ApiKeys;
use crate::certificates::{acme_file_fault, check_listener_files, check_upstream_files};
use crate::config::{AccessLogSink, Config, check_callers};
use crate::lifecycle::hot_restart;

/// Records each file that would prevent the gateway from starting, at the line that names it, and a
/// policy that nobody can satisfy.
pub fn check_files(root: &Object<'_>, config: &Config) {
    // With other mistakes, list positions differ from those of the file.
    if !root.is_good() {
        return;
    }
    check_callers(root, config);
    for (at, listen) in config.listen.iter().enumerate() {
        for (key, wrong) in listen.tls.iter().flat_map(check_listener_files) {
            root.fail_at(&format!("listen.{at}.tls{key}"), "unreadable_file", wrong);
        }
    }
    let acme = config.acme.as_ref();
    if let Some(wrong) = acme.and_then(acme_file_fault) {
        root.fail_at("acme.ca", "unreadable_file", wrong);
    }
    for upstream in &config.upstreams {
        for (key, wrong) in upstream.tls.iter().flat_map(check_upstream_files) {
            let key = format!("upstream.{}.tls{key}", upstream.name);
            root.fail_at(&key, "unreadable_file", wrong);
        }
    }
    let keys = config.api_keys.as_ref();
    if let Some(Err(exit)) = keys.map(|keys| ApiKeys::load(&keys.file)) {
        root.fail_at("api_keys.file", "unreadable_file", exit.message());
    }
    let handover = config.handover.as_deref().map(hot_restart::parent_folder);
    let jwks_dir = config.tokens.jwks_dir.as_deref();
    for (key, folder, denied) in [
        ("handover.socket", handover, ALL_BUT_OWNER),
        ("tokens.jwks_dir", jwks_dir, WRITING),
    ] {
        if let Some(wrong) = folder.and_then(|folder| folder_fault(folder, denied)) {
            root.fail_at(key, "unsafe_folder", wrong);
        }
    }
    if let AccessLogSink::File(path) = &config.access_log.to
        && let Some(wrong) = missing_folder(path)
    {
        root.fail_at("access_log.to", "unreadable_file", wrong);
    }
}

/// Returns a message if the folder of a file to be written does not exist.
fn missing_folder(path: &Path) -> Option<String> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())?;
    (!folder.is_dir()).then(|| format!("{}: there is no such folder", folder.display()))
}

/// Returns why a folder that the gateway uses is unsafe or unreadable. A missing one is created later.
fn folder_fault(folder: &Path, denied: u32) -> Option<String> {
    let error = check_access(folder, denied).err()?;
    let is_missing = error.kind() == ErrorKind::NotFound;
    (!is_missing).then(|| format!("{}: {error}", folder.display()))
}
