//! Replacement of a file, also by a process that is killed while it writes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use super::*;

/// Names the file that the child process replaces; set for child processes only.
const CHILD_FILE: &str = "POSTERN_TEST_REPLACED_FILE";
/// Processes that are killed.
const KILLS: usize = 25;

fn long_text(character: &str) -> String {
    format!("# {}\n", character.repeat(200_000))
}

/// Runs a test of this program in a child process, where [`file_of_child`] names the file.
fn child(program: &Path, test: &str, file: &Path) -> Command {
    let mut command = Command::new(program);
    let name = format!("config_editor::file::tests::{test}");
    command.args([name.as_str(), "--exact", "--nocapture"]);
    command.env(CHILD_FILE, file).stdout(Stdio::piped());
    command
}

/// Returns the file on which a child process of a test works; `None` in the test itself.
fn file_of_child() -> Option<PathBuf> {
    std::env::var_os(CHILD_FILE).map(PathBuf::from)
}

/// Prints why a file cannot be written, and the result of writing it.
fn print_read_only_reason(file: &Path) {
    let result = replace(file, "a = 1\n", "a = 2\n").map_err(|_| "refused");
    let mut out = io::stdout();
    writeln!(out, "{:?} {result:?}", read_only_reason(file)).expect("writes");
}

/// Replaces one text by the other until the process is killed.
fn replace_until_killed(file: &Path) {
    let texts = [long_text("a"), long_text("b")];
    let mut out = io::stdout();
    loop {
        let present = fs::read_to_string(file).expect("a text");
        let next = &texts[usize::from(present == texts[0])];
        replace(file, &present, next).expect("replaced");
        writeln!(out, "replaced").expect("writes");
    }
}

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
    if let Some(file) = file_of_child() {
        return print_read_only_reason(&file);
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let file = folder.path().join("proxy.toml");
    let reason = read_only_reason(&file).expect("a reason");
    assert!(reason.contains("No such file"), "{reason}");
    fs::write(&file, "a = 1\n").expect("writes");
    // The folder of the test program may be closed to other users.
    let own = std::env::current_exe().expect("a program");
    let program = folder.path().join("tests");
    if fs::hard_link(&own, &program).is_err() {
        fs::copy(&own, &program).expect("copied");
    }
    let mut other = child(
        &program,
        "file_that_cannot_be_written_is_reported_with_a_reason",
        &file,
    );
    // Another user than the owner; without the right to change users, the folder is closed.
    match geteuid().is_root() {
        true => {
            other.uid(65_534);
        }
        false => {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).expect("a mode");
        }
    }
    let output = other.output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_named = text.contains("not writable") || text.contains("belongs to user");
    assert!(is_named && text.contains("refused"), "{text}");
    assert_eq!(fs::read_to_string(&file).expect("text"), "a = 1\n");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn killed_process_leaves_one_of_the_two_texts() {
    if let Some(file) = file_of_child() {
        return replace_until_killed(&file);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("proxy.toml");
    let own = std::env::current_exe().expect("a program");
    let texts = [long_text("a"), long_text("b")];
    fs::write(&file, &texts[0]).expect("writes");
    for kill in 0..KILLS {
        let mut child = child(&own, "killed_process_leaves_one_of_the_two_texts", &file)
            .spawn()
            .expect("a process");
        let output = child.stdout.take().expect("its output");
        let mut lines = BufReader::new(output).lines();
        // The number of completed replacements varies, and the next one has begun.
        let is_progress = |line: &String| line.starts_with("replaced");
        let progress = lines.by_ref().map_while(Result::ok).filter(is_progress);
        assert_eq!(progress.take(1 + kill % 7).count(), 1 + kill % 7);
        child.kill().expect("killed");
        child.wait().expect("ended");
        let text = fs::read_to_string(&file).expect("a file");
        assert!(texts.contains(&text), "{} bytes after {kill}", text.len());
    }
    // What the last one has left does not prevent a replacement.
    let text = fs::read_to_string(&file).expect("a file");
    replace(&file, &text, "c = 1\n").expect("replaced");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}
