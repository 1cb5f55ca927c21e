//! Replacement of the configuration file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::{Uid, geteuid};

/// Maximum bytes of a file that is edited over the admin listener.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// Why the file was not replaced. It has its previous contents.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplaceError {
    #[error("the file has changed")]
    Changed,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns why the file cannot be replaced, if this is known.
pub(super) fn read_only_reason(path: &Path) -> Option<String> {
    read_only_reason_of(path, geteuid())
}

fn read_only_reason_of(path: &Path, own: Uid) -> Option<String> {
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(error) => return Some(format!("{}: {error}", path.display())),
    };
    let metadata = match fs::metadata(&target) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => return Some(format!("{}: is not a regular file", target.display())),
        Err(error) => return Some(format!("{}: {error}", target.display())),
    };
    if metadata.len() > MAX_TEXT_BYTES as u64 {
        return Some(format!("{}: is larger than 1 MiB", target.display()));
    }
    if !own.is_root() && metadata.uid() != own.as_raw() {
        let (file, owner) = (target.display(), metadata.uid());
        return Some(format!(
            "{file}: belongs to user {owner}, not to the user of the gateway"
        ));
    }
    let folder = folder_of(&target);
    let needed = [
        (target.as_path(), Access::WRITE_OK),
        (folder, Access::WRITE_OK | Access::EXEC_OK),
    ];
    needed.into_iter().find_map(|(path, access)| {
        let refused = rustix::fs::access(path, access).err()?;
        let refused = io::Error::from(refused);
        Some(format!("{}: not writable: {refused}", path.display()))
    })
}

/// Replaces the text of the file, which must be `expected` now, atomically: after a crash it has
/// either text. Mode and owner are kept; of a symbolic link the target is replaced.
///
/// # Errors
/// If the file has another text, or cannot be replaced with the same mode and owner.
pub(super) fn replace(path: &Path, expected: &str, text: &str) -> Result<(), ReplaceError> {
    let target = path.canonicalize()?;
    let temporary = temporary_path(&target);
    let result = write_temporary(&target, &temporary, text).and_then(|()| {
        // As late as possible: an editor may have saved since the file was read.
        if fs::read(&target)? != expected.as_bytes() {
            return Err(ReplaceError::Changed);
        }
        Ok(fs::rename(&temporary, &target)?)
    });
    if let Err(error) = result {
        // It may not exist; a leftover is removed by the next call.
        let _missing = fs::remove_file(&temporary);
        return Err(error);
    }
    if let Err(error) = File::open(folder_of(&target)).and_then(|folder| folder.sync_all()) {
        tracing::warn!(%error, "configuration folder not synchronised");
    }
    Ok(())
}

fn write_temporary(target: &Path, temporary: &Path, text: &str) -> Result<(), ReplaceError> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let metadata = fs::metadata(target)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(temporary)?;
    file.write_all(text.as_bytes())?;
    let created = file.metadata()?;
    if (created.uid(), created.gid()) != (metadata.uid(), metadata.gid()) {
        fchown(&file, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    // After the owner, because a change of the owner may clear bits of the mode.
    file.set_permissions(metadata.permissions())?;
    file.sync_all()?;
    Ok(())
}

/// Returns a hidden name in the same folder.
fn temporary_path(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.postern-new"))
}

fn folder_of(target: &Path) -> &Path {
    target.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests;
