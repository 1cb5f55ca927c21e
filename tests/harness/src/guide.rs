//! Pages of the manual whose commands are executed as a reader types them.
//!
//! The first word of the information string of a fenced block is its language, the second one says
//! what a test does with the block:
//!
//! | information string | test |
//! |---|---|
//! | `sh run` | the commands are executed, and the block must exit with 0, or print the `output` block that follows |
//! | a language and `output` | what the commands before print |
//! | `console run` | the lines after `$` and `>` are executed, and what they print is compared with the other lines |
//! | a language and a path, such as `toml my/notify.toml` | the block is written to this file |
//! | a language only | nothing |
//!
//! A guide is a section of a page: its blocks, after those before the first section, are executed in
//! their order, in one shell and one folder, as by a reader in a clone of the repository. In the
//! compared lines, `…` stands for any text, and a line that is
//! only `…` for any number of lines.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::{paths, ports, sensitive};

/// Timeout of all commands of a guide.
const GUIDE_TIMEOUT: Duration = Duration::from_secs(120);
/// Begins the line that separates the outputs of two steps: ASCII's record separator.
const SEPARATOR: char = '\u{1e}';
/// Files with the logs of the services in a reader's folder.
const LOGS: [&str; 3] = ["auth.log", "notify.log", "proxy.log"];
/// Number of ports of a standalone installation, with one more for the console.
const STANDALONE_PORTS: u16 = 13;

/// A page, or one of its sections with what all of them begin with.
#[derive(Clone, Debug)]
pub struct Guide {
    /// Path below `docs`.
    pub name: String,
    /// The text of the page.
    pub text: String,
    /// The fenced blocks.
    pub blocks: Vec<Block>,
}

/// A fenced block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Line number of the opening fence.
    pub line: usize,
    /// The heading of the section, or empty before the first one.
    pub section: String,
    /// First word of the information string.
    pub language: String,
    /// Second word of the information string.
    pub action: String,
    /// The lines between the fences.
    pub text: String,
}

/// What a test has in place of what a guide names.
#[derive(Debug)]
pub struct Surroundings {
    /// Texts of the blocks, and their replacements.
    pub replacements: Vec<(&'static str, String)>,
    /// Folders of programs, before those of the workspace.
    pub programs: Vec<PathBuf>,
    /// Commands before those of the guide.
    pub before: &'static str,
}

/// A command with the output that the guide shows, or a file to write.
#[derive(Debug)]
struct Step {
    line: usize,
    script: String,
    /// The compared lines, or `None` if the status is checked instead.
    output: Option<Vec<String>>,
}

impl Guide {
    /// Returns the folder of the documents.
    pub fn folder() -> PathBuf {
        paths::repository().join("docs")
    }

    /// Reads a page by its path below `docs`.
    pub fn read(name: &str) -> Self {
        let path = Self::folder().join(name);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self {
            blocks: blocks(&text).unwrap_or_else(|line| panic!("{name}:{line}: no end")),
            name: name.to_owned(),
            text,
        }
    }

    /// Keeps the blocks of one section, and those before the first one.
    pub fn section(mut self, heading: &str) -> Self {
        self.blocks
            .retain(|block| block.section.is_empty() || block.section == heading);
        self
    }

    /// Executes the guide and compares what it prints.
    pub async fn follow(&self, surroundings: &Surroundings) {
        let folder = reader_folder();
        let ports = PortMap::free();
        let adapt = &|text: &str| {
            let ported = ports.apply(text);
            let all = surroundings.replacements.iter();
            all.fold(ported, |text, (from, to)| text.replace(from, to))
        };
        let mut steps = vec![Step {
            line: 0,
            script: format!(":\n{}", adapt(surroundings.before)),
            output: None,
        }];
        steps.extend(self.steps(adapt));
        let script: String = steps.iter().enumerate().fold(String::new(), script);
        let printed = shell(folder.path(), surroundings, &script, &self.name).await;
        let mut parts = printed.split(SEPARATOR);
        let mut findings = String::new();
        let first = parts.next().unwrap_or_default();
        assert_eq!(first, "", "{}: before the first step", self.name);
        for (step, part) in steps.iter().zip(parts.by_ref()) {
            let (status, output) = part.split_once('\n').unwrap_or((part, ""));
            step.compare(status, output, &self.name, &mut findings);
        }
        keep_logs(folder.path(), &self.name);
        assert!(findings.is_empty(), "{findings}");
        let executed = printed.matches(SEPARATOR).count();
        assert_eq!(executed, steps.len(), "{}: {printed}", self.name);
    }

    fn steps(&self, adapt: &dyn Fn(&str) -> String) -> Vec<Step> {
        let mut steps = Vec::new();
        for block in &self.blocks {
            let text = adapt(&block.text);
            let step = |script| Step {
                line: block.line,
                script,
                output: None,
            };
            match (block.language.as_str(), block.action.as_str()) {
                (_, "") => {}
                ("sh", "run") => steps.push(step(text)),
                (_, "output") => {
                    let step = steps.last_mut().expect("commands before an output");
                    step.output = Some(text.lines().map(str::to_owned).collect());
                }
                ("console", "run") => steps.extend(commands(block.line, &text)),
                (_, path) if path.contains('/') => steps.push(step(format!(
                    "mkdir -p \"$(dirname {path})\"\ncat >{path} <<'END OF BLOCK'\n{text}END OF BLOCK\n"
                ))),
                (language, action) => {
                    panic!("{}:{}: {language} {action}", self.name, block.line)
                }
            }
        }
        steps
    }
}

impl Step {
    fn compare(&self, status: &str, output: &str, guide: &str, findings: &mut String) {
        let printed: Vec<&str> = output.lines().map(str::trim_end).collect();
        let is_expected = match &self.output {
            Some(expected) => matches_lines(expected, &printed),
            None => status == "0",
        };
        if !is_expected {
            let Self { line, script, .. } = self;
            let expected = self.output.as_ref().map(|lines| lines.join("\n"));
            let expected = expected.unwrap_or_else(|| "(status 0)".to_owned());
            let _ = writeln!(
                findings,
                "{guide}:{line}: {}\nexpected:\n{expected}\nstatus {status}, printed:\n{output}",
                script.trim_end()
            );
        }
    }
}

/// Adds a step to the script. Each step begins with its status, because what it prints may have no
/// line feed at the end.
fn script(mut script: String, (at, step): (usize, &Step)) -> String {
    let _ = write!(
        script,
        "exec >\"$OUT/{at}\" 2>&1\n{}\nstatus=$?\nexec >&9 2>&1\nprintf '\\036%s\\n' \"$status\"\ncat \"$OUT/{at}\"\n",
        step.script.trim_end()
    );
    script
}

/// Returns the fenced blocks of a document, or the line of one without an end.
fn blocks(text: &str) -> Result<Vec<Block>, usize> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    let mut section = "";
    for (at, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(information)) => {
                let mut words = information.split_whitespace().map(str::to_owned);
                open = Some(Block {
                    line: at + 1,
                    section: section.to_owned(),
                    language: words.next().unwrap_or_default(),
                    action: words.next().unwrap_or_default(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => section = line.strip_prefix("## ").unwrap_or(section),
        }
    }
    open.map_or(Ok(found), |block| Err(block.line))
}

/// Returns the commands of a session with what they print.
fn commands(line: usize, text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (at, text) in text.lines().enumerate() {
        if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step {
                line: line + at + 1,
                script: format!("{command}\n"),
                output: Some(Vec::new()),
            });
            continue;
        }
        let step = steps.last_mut();
        let step = step.unwrap_or_else(|| panic!("line {line}: a session begins with a command"));
        match text.strip_prefix('>') {
            Some(command) => {
                step.script += command.strip_prefix(' ').unwrap_or(command);
                step.script.push('\n');
            }
            None => {
                let output = step.output.get_or_insert_default();
                output.push(text.trim_end().to_owned());
            }
        }
    }
    steps
}

/// Returns whether lines are as shown. A line `…` stands for any number of lines.
fn matches_lines(expected: &[String], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=printed.len()).any(|from| matches_lines(rest, &printed[from..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(line, others)| matches_line(first, line) && matches_lines(rest, others)),
    }
}

/// Returns whether a line is as shown. `…` stands for any text.
fn matches_line(expected: &str, printed: &str) -> bool {
    let mut parts = expected.split('…');
    let beginning = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(beginning) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((end, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(end)
}

/// Returns a folder with what a reader uses of a clone.
fn reader_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = paths::repository();
    for name in ["conf", "docs"] {
        let linked = std::os::unix::fs::symlink(root.join(name), folder.path().join(name));
        linked.expect("the test's folder can be written");
    }
    // The script writes certificates beside itself.
    let (certs, script) = (folder.path().join("certs"), "certs/generate.sh");
    std::fs::create_dir(certs).expect("the test's folder can be written");
    let copied = std::fs::copy(root.join(script), folder.path().join(script));
    copied.expect("the test's folder can be written");
    folder
}

/// Executes a script in a process group of its own, and returns what it prints. Programs that it
/// has left in the background are stopped.
async fn shell(folder: &Path, surroundings: &Surroundings, script: &str, guide: &str) -> String {
    let out = folder.join(".out");
    std::fs::create_dir(&out).expect("the test's folder can be written");
    let end = "trap 'exec >/dev/null 2>&1; kill $(jobs -p); wait' EXIT";
    let path = folder.join(".script");
    let script = format!("exec 9>&1\n{end}\n{script}");
    std::fs::write(&path, script).expect("the test's folder can be written");
    let mut command = Command::new("bash");
    command.arg(&path).current_dir(folder).env_clear();
    command.env("PATH", search_path(&surroundings.programs));
    command
        .env("HOME", folder)
        .env("LC_ALL", "C.UTF-8")
        .env("OUT", &out);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().expect("bash can be started");
    let group = child.id().expect("a running program has an id");
    let mut stdout = child.stdout.take().expect("standard output is piped");
    let mut printed = Vec::new();
    let read = tokio::time::timeout(GUIDE_TIMEOUT, stdout.read_to_end(&mut printed)).await;
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", &format!("-{group}")]);
    let _ = kill.stderr(Stdio::null()).status().await;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(read.is_ok(), "{guide} does not end:\n{printed}");
    printed
}

/// Returns `PATH`: the given folders, the programs of the workspace, and those of the system.
fn search_path(programs: &[PathBuf]) -> String {
    let folders = programs.iter().cloned().chain([paths::built()]);
    let folders: String = folders.map(|it| format!("{}:", it.display())).collect();
    folders + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

/// Keeps the logs of the services for the scan after the tests.
fn keep_logs(folder: &Path, guide: &str) {
    for name in LOGS {
        if let Ok(text) = std::fs::read_to_string(folder.join(name)) {
            let guide = guide.replace('/', "-");
            sensitive::keep(&format!("guide-{guide}-{name}"), &text);
        }
    }
}

/// Free ports in place of those that guides name: the first port, the number of ports, and the first one
/// in their place.
struct PortMap([(u16, u16, u16); 4]);

impl PortMap {
    fn free() -> Self {
        let named = [
            (8500, STANDALONE_PORTS),
            (8600, STANDALONE_PORTS),
            (8080, 1),
            (8443, 1),
        ];
        Self(named.map(|(first, count)| (first, count, ports::free(count))))
    }

    fn get(&self, port: u16) -> Option<u16> {
        let mut ranges = self.0.iter();
        ranges.find_map(|(first, count, free)| {
            let distance = port.checked_sub(*first)?;
            (distance < *count).then_some(free + distance)
        })
    }

    /// Replaces every number that is one of the ports.
    fn apply(&self, text: &str) -> String {
        let numbers = text.split_inclusive(|it: char| !it.is_ascii_digit());
        let replaced = numbers.map(|part| {
            let digits = part.trim_end_matches(|it: char| !it.is_ascii_digit());
            match digits.parse().ok().and_then(|port| self.get(port)) {
                Some(port) => format!("{port}{}", &part[digits.len()..]),
                None => part.to_owned(),
            }
        });
        replaced.collect()
    }
}
