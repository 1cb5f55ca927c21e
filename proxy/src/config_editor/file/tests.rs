//! Replacement of a file: a process that is killed while it writes leaves the old text, because the
//! new one is another file.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

#[test]
fn symbolic_link_stays_and_its_target_keeps_its_mode() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("real.toml");
    let link = folder.path().join("proxy.toml");
    fs::write(&target, "a = 1\n").expect("writes");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).expect("a mode");
    symlink("real.toml", &link).expect("a link");
    let before = fs::metadata(&target).expect("metadata");
    assert_eq!(read_only_reason(&link), None);
    replace(&link, "a = 1\n", "a = 2\n").expect("replaced");
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&target).expect("text"), "a = 2\n");
    let after = fs::metadata(&target).expect("metadata");
    assert_eq!(after.mode() & 0o7777, 0o640);
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "written in place");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

#[test]
fn file_with_another_text_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("proxy.toml");
    fs::write(&file, "of an editor\n").expect("writes");
    // A leftover of a killed process, which must not be followed if it is a link.
    symlink("/etc/passwd", temporary_path(&file)).expect("a link");
    let error = replace(&file, "as it was read\n", "new\n").expect_err("refused");
    assert!(matches!(error, ReplaceError::Changed), "{error}");
    assert_eq!(fs::read_to_string(&file).expect("text"), "of an editor\n");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn file_that_cannot_be_written_is_reported_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("proxy.toml");
    let reason = read_only_reason(&file).expect("a reason");
    assert!(reason.contains("No such file"), "{reason}");
    fs::write(&file, "a = 1\n").expect("writes");
    let other = Uid::from_raw(geteuid().as_raw() + 1);
    let reason = read_only_reason_of(&file, other).expect("a reason");
    assert!(reason.contains("belongs to user"), "{reason}");
    assert_eq!(read_only_reason_of(&file, geteuid()), None);
}
