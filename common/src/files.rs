//! Bounded reading of files that a configuration names.
//!
//! Whoever may check a configuration chooses the paths: a FIFO would block for ever, and a device
//! has no end. Input: a path and a limit. Output: the contents, or the reason. Depends on nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

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
    let mut contents = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut contents)?;
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
    require_regular(std::fs::metadata(path)?.is_file())?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    require_regular(file.metadata()?.is_file())?;
    Ok(file)
}

fn require_regular(is_regular: bool) -> io::Result<()> {
    match is_regular {
        true => Ok(()),
        false => Err(io::Error::new(
            ErrorKind::InvalidInput,
            "is not a regular file",
        )),
    }
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
    use super::*;

    fn reason(result: io::Result<Vec<u8>>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn regular_files_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, vec![b'x'; 2 << 10]).expect("written");
        assert_eq!(
            read_regular(&file, 2 << 10).map(|it| it.len()).ok(),
            Some(2 << 10)
        );
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        assert!(read_regular_text(&link, 2 << 10).is_ok());
        assert_eq!(
            reason(read_regular(&file, (2 << 10) - 1)),
            "is larger than 1 KiB"
        );
        std::fs::write(&file, [0xff]).expect("written");
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
