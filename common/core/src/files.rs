//! Files that a configuration names: bounded reading, and files that a program writes for itself.
//!
//! Whoever may check a configuration chooses the paths: a FIFO would block for ever, and a device
//! has no end. A program trusts what it has stored, so that nobody else may write it. Input: a path
//! and a limit. Output: the contents, or the reason.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;
use uuid::Uuid;

/// Permissions of everyone but the owner.
pub const ALL_BUT_OWNER: u32 = 0o077;

/// Permissions of everyone but the owner and the group.
pub const OTHERS: u32 = 0o007;

/// Permissions to write of everyone but the owner.
pub const WRITING: u32 = 0o022;

/// Permission to write of everyone but the owner and the group.
pub const WRITING_OF_OTHERS: u32 = 0o002;

/// Reads a regular file, or one that a symbolic link names.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or has more than `max_bytes`. The error does not
/// name the file.
pub fn read_regular(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    // It may grow while it is read, and files of /proc have no length.
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    if file.metadata()?.len() > limit {
        return Err(too_large(max_bytes));
    }
    let (mut contents, mut file) = (Vec::new(), file.take(limit.saturating_add(1)));
    file.read_to_end(&mut contents)?;
    match contents.len() <= max_bytes {
        true => Ok(contents),
        false => Err(too_large(max_bytes)),
    }
}

/// Reads a regular text file as [`read_regular`] does.
///
/// # Errors
/// As [`read_regular`], and if the text is not UTF-8.
pub fn read_regular_text(path: &Path, max_bytes: usize) -> io::Result<String> {
    let contents = read_regular(path, max_bytes)?;
    String::from_utf8(contents).map_err(|_| io::Error::new(ErrorKind::InvalidData, "is not UTF-8"))
}

/// Opens a file without waiting for a writer of a FIFO.
fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a device may have an effect of its own, so that the type is looked at before as well.
    require_regular(fs::metadata(path)?.is_file())?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path)?;
    require_regular(file.metadata()?.is_file())?;
    Ok(file)
}

fn require_regular(is_regular: bool) -> io::Result<()> {
    let other = || io::Error::new(ErrorKind::InvalidInput, "is not a regular file");
    is_regular.then_some(()).ok_or_else(other)
}

/// Checks that a file or folder belongs to the user of this process or to root, and that its mode
/// grants none of the permissions `denied`.
///
/// # Errors
/// It does not, or cannot be examined. The error does not name it.
pub fn check_access(path: &Path, denied: u32) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let (own, owner, mode) = (geteuid().as_raw(), metadata.uid(), metadata.mode() & 0o777);
    let detail = if owner != own && owner != 0 {
        format!("belongs to user {owner}, and must belong to user {own} or root")
    } else if mode & denied != 0 {
        let allowed = 0o777 & !denied;
        format!("has mode {mode:04o}, and must have at most {allowed:04o}")
    } else {
        return Ok(());
    };
    Err(io::Error::new(ErrorKind::PermissionDenied, detail))
}

/// Creates a folder with mode 0700 unless it exists, and checks it as [`check_access`] does.
pub fn private_folder(folder: &Path, denied: u32) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)?;
    check_access(folder, denied)
}

/// Replaces a file by one with mode 0600. A reader, also after a crash, finds the old contents or the
/// new ones. The temporary file is new, so that no link of this name is followed.
pub fn replace_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = path.with_added_extension(format!("{}.new", Uuid::new_v4()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    let written = file.write_all(contents).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        let _unremoved = fs::remove_file(&temporary);
        return Err(error);
    }
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn too_large(max_bytes: usize) -> io::Error {
    let limit = match max_bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    };
    io::Error::new(ErrorKind::FileTooLarge, format!("is larger than {limit}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        let permissions = PermissionsExt::from_mode(mode);
        fs::set_permissions(path, permissions).expect("sets");
    }

    #[test]
    fn folder_that_others_may_use_is_refused() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("a/b");
        private_folder(&folder, ALL_BUT_OWNER).expect("created");
        assert_eq!(mode(&folder), 0o700);
        for (granted, denied, is_good) in [
            (0o755, WRITING, true),
            (0o775, WRITING, false),
            (0o757, WRITING, false),
            (0o775, WRITING_OF_OTHERS, true),
            (0o750, OTHERS, true),
            (0o751, OTHERS, false),
            (0o710, ALL_BUT_OWNER, false),
        ] {
            set_mode(&folder, granted);
            let checked = private_folder(&folder, denied);
            assert_eq!(checked.is_ok(), is_good, "{granted:o} {denied:o}");
        }
        let said = check_access(&folder, ALL_BUT_OWNER).expect_err("0710");
        let said = said.to_string();
        assert_eq!(said, "has mode 0710, and must have at most 0700");
    }

    #[test]
    fn replaced_file_is_private_and_follows_no_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        fs::write(&other, "unchanged").expect("written");
        std::os::unix::fs::symlink(&other, &path).expect("linked");
        for contents in ["one", "two"] {
            replace_private(&path, contents.as_bytes()).expect("replaced");
            assert_eq!(fs::read_to_string(&path).expect("read"), contents);
        }
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_to_string(&other).expect("read"), "unchanged");
        // A folder cannot be replaced; nothing is left behind.
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("created");
        assert!(replace_private(&path, b"three").is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2);
    }

    fn reason(result: io::Result<Vec<u8>>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn regular_files_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, vec![b'x'; 2 << 10]).expect("written");
        assert!(read_regular(&file, 2 << 10).is_ok_and(|it| it.len() == 2 << 10));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        assert!(read_regular_text(&link, 2 << 10).is_ok());
        let larger = reason(read_regular(&file, (2 << 10) - 1));
        assert_eq!(larger, "is larger than 1 KiB");
        fs::write(&file, [0xff]).expect("written");
        let refused = read_regular_text(&file, 1).expect_err("not UTF-8");
        assert_eq!(refused.to_string(), "is not UTF-8");
        // It has no length, and content.
        let status = Path::new("/proc/self/status");
        assert!(read_regular(status, 64 << 10).is_ok_and(|it| !it.is_empty()));
        assert_eq!(reason(read_regular(status, 8)), "is larger than 8 bytes");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.expect("mkfifo").success());
        for path in [&*fifo, folder.path(), Path::new("/dev/zero")] {
            let refused = reason(read_regular(path, 1 << 20));
            assert_eq!(refused, "is not a regular file", "{}", path.display());
        }
        assert!(reason(read_regular(Path::new("/nowhere"), 1)).contains("No such file"));
    }
}
