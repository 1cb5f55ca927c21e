//! The programs as separate processes: exit statuses, signals and restarts.

mod restartable;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::net::UnixDatagram;
use tokio::process::{Child, ChildStdout, Command};

pub use self::restartable::Process;
use crate::{paths, sensitive};

/// Timeout of each step, after which the test fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A program to be started with an empty environment plus the given variables.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    folder: PathBuf,
    /// Listening sockets passed to the program.
    passed: Vec<Arc<TcpListener>>,
    /// File on standard input.
    input: Option<PathBuf>,
}

/// Moves the sockets, passed as standard input and standard error, to the descriptors of
/// `sd_listen_fds(3)`, and executes the program. A shell is used because `LISTEN_PID` must contain
/// the process id, which is known only after the fork.
const PASS: &str = r#"exec 3<&0 0</dev/null
if [ "$LISTEN_FDS" = 2 ]; then exec 4<&2 2>>"$LOG"; fi
unset LOG; export LISTEN_PID=$$
exec "$0" "$@""#;

/// A program that has exited.
#[derive(Debug)]
#[must_use = "the exit of a program must be checked"]
pub struct Ended {
    /// The exit status; `None` if it was killed by a signal.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Notifications to the service manager that [`Running::until_ready`] has not read.
    pub notifications: Vec<String>,
}

/// A running program, killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    /// Socket of `NOTIFY_SOCKET`, see `sd_notify(3)`.
    says: UnixDatagram,
}

impl Program {
    /// Returns a program of the workspace, which `tests/run` builds next to the test program.
    pub fn of_workspace(name: &str, folder: &Path) -> Self {
        Self::at(Self::path_of_workspace(name), folder)
    }

    /// Returns the path of a program of the workspace.
    pub fn path_of_workspace(name: &str) -> PathBuf {
        let built = paths::built().join(name);
        let shown = built.display();
        assert!(built.exists(), "{shown} is missing: ./tests/run builds it");
        built
    }

    /// Returns another program, with `folder` as its working directory.
    pub fn at(path: PathBuf, folder: &Path) -> Self {
        Self {
            path,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            folder: folder.to_owned(),
            passed: Vec::new(),
            input: None,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator<Item: Into<String>>>(self, arguments: I) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    /// Sets variables.
    pub fn envs<N: Into<String>, V: Into<String>>(
        self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let set = |program: Self, (name, value)| program.env(name, value);
        variables.into_iter().fold(self, set)
    }

    /// Sets the configuration, which is written to a file of this name in the folder of the program.
    pub fn config(self, name: &str, text: &str) -> Self {
        std::fs::write(self.folder.join(name), text).expect("the test's folder can be written");
        self.arg("--config").arg(name)
    }

    /// Passes one or two listening sockets as systemd does.
    pub fn passing(mut self, sockets: &[Arc<TcpListener>]) -> Self {
        assert!(sockets.len() <= 2, "at most two sockets can be passed");
        self.passed = sockets.to_vec();
        self
    }

    /// Sets a file as standard input, which is empty by default.
    pub fn input(mut self, file: PathBuf) -> Self {
        self.input = Some(file);
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if !self.passed.is_empty() {
            command = Command::new("/bin/sh");
            command.args(["-c", PASS]).arg(&self.path);
        }
        command.args(&self.arguments).env_clear();
        command.envs(&self.environment).current_dir(&self.folder);
        let open = |file: &PathBuf| {
            Stdio::from(std::fs::File::open(file).expect("the input file can be opened"))
        };
        let input = self.input.as_ref().map_or_else(Stdio::null, open);
        command.stdin(input).kill_on_drop(true);
        command
    }

    /// Runs the program to its end.
    pub async fn run(&self) -> Ended {
        self.run_for(STEP_TIMEOUT).await
    }

    /// As [`Program::run`], with another time limit.
    pub async fn run_for(&self, limit: Duration) -> Ended {
        let output = tokio::time::timeout(limit, self.command().output()).await;
        let output = output.unwrap_or_else(|_| panic!("{} did not end", self.path.display()));
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        Ended {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            notifications: Vec::new(),
        }
    }

    /// Starts the program. Its standard error is written to a file in its folder; its notifications
    /// are received on a socket next to it.
    pub fn start(&self) -> Running {
        let name = self.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let id = uuid::Uuid::new_v4().simple();
        let log = match name.starts_with("postern") {
            true => sensitive::log_file(&format!("{name}-{id}.log"), &self.folder),
            false => self.folder.join(format!("{name}-{id}.log")),
        };
        let file = std::fs::File::create(&log).expect("the test's folder can be written");
        let heard = self.folder.join(format!("{name}-{id}.notify"));
        let says = UnixDatagram::bind(&heard).expect("the test's folder can be written");
        let mut command = self.command();
        command.env("NOTIFY_SOCKET", heard);
        command.stdout(Stdio::piped()).stderr(file);
        if let [first, others @ ..] = self.passed.as_slice() {
            let count = self.passed.len().to_string();
            command.env("LISTEN_FDS", count).env("LOG", &log);
            command.stdin(duplicate(first));
            if let Some(second) = others.first() {
                command.stderr(duplicate(second));
            }
        }
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        let stdout = child.stdout.take().expect("standard output is piped");
        Running {
            child,
            name,
            lines: BufReader::new(stdout).lines(),
            log,
            says,
        }
    }
}

/// Keeps the standard output of a service for the scan. The standalone program greets with commands
/// for a sample account.
fn keep(program: &str, output: &str) {
    if program.starts_with("postern-") && !output.is_empty() {
        sensitive::keep(&format!("{program}.out"), output);
    }
}

fn duplicate(socket: &TcpListener) -> OwnedFd {
    let copy = socket.as_fd().try_clone_to_owned();
    copy.expect("a descriptor is free")
}

impl Running {
    /// Reads standard output up to the first line that contains `text` and returns these lines.
    pub async fn wait_for_line(&mut self, text: &str) -> Vec<String> {
        let said = self.line_or_end(text).await;
        said.unwrap_or_else(|said| panic!("{} ended: {said:?}\n{}", self.name, self.log()))
    }

    /// As [`Running::wait_for_line`], for a program that may end before.
    pub async fn line_or_end(&mut self, text: &str) -> Result<Vec<String>, Vec<String>> {
        let mut said = Vec::new();
        loop {
            match tokio::time::timeout(STEP_TIMEOUT, self.lines.next_line()).await {
                Ok(Ok(Some(line))) => {
                    keep(&self.name, &format!("{line}\n"));
                    said.push(line);
                    if said.last().is_some_and(|line| line.contains(text)) {
                        return Ok(said);
                    }
                }
                Ok(Ok(None) | Err(_)) => return Err(said),
                Err(_) => {
                    let (name, log) = (&self.name, self.log());
                    panic!("{name} did not print {text:?}: {said:?}\n{log}");
                }
            }
        }
    }

    /// Waits until the program reports that all components are ready.
    pub async fn until_ready(&mut self) {
        let mut datagram = [0; 4096];
        let mut last = "nothing".to_owned();
        loop {
            let heard = tokio::select! {
                heard = tokio::time::timeout(STEP_TIMEOUT, self.says.recv(&mut datagram)) => heard,
                ended = self.child.wait() => panic!("{} ended: {ended:?}\n{}", self.name, self.log()),
            };
            let Ok(length) = heard else {
                panic!("{} is not ready: {last:?}\n{}", self.name, self.log());
            };
            last = String::from_utf8_lossy(&datagram[..length.expect("a datagram")]).into_owned();
            if last.lines().any(|line| line == "STATUS=ready") {
                return;
            }
        }
    }

    /// Asserts that the program is running.
    pub fn expect_alive(&mut self) {
        let ended = self.child.try_wait().expect("the child can be polled");
        let log = self.log();
        assert!(ended.is_none(), "{} exited by itself: {log}", self.name);
    }

    /// Returns its standard error so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the program with SIGKILL and waits for its end.
    pub async fn kill(mut self) {
        self.expect_alive();
        self.child.kill().await.expect("the child can be killed");
    }

    /// Returns the peak resident memory in KiB: `VmHWM` of `proc(5)`.
    pub fn peak_memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("a running process");
        let mut lines = status.lines();
        let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix(" kB"));
        let peak = peak.and_then(|peak| peak.trim().parse().ok());
        peak.expect("a number")
    }

    /// Sends a signal (`INT`, `TERM`) and waits for the end of the program.
    pub async fn stop(self, signal: &str) -> Ended {
        self.signal(signal).await;
        self.wait().await
    }

    /// Sends a signal, such as `HUP`.
    pub async fn signal(&self, signal: &str) {
        let mut kill = Command::new("kill");
        kill.args([format!("-{signal}"), self.pid().to_string()]);
        let sent = kill.status().await;
        assert!(sent.expect("kill can be run").success());
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("a running program has an id")
    }

    /// Waits for the end of the program.
    pub async fn wait(mut self) -> Ended {
        let status = tokio::time::timeout(STEP_TIMEOUT, self.child.wait()).await;
        let status =
            status.unwrap_or_else(|_| panic!("{} did not stop: {}", self.name, self.log()));
        let mut stdout = String::new();
        let rest = self.lines.into_inner().read_to_string(&mut stdout).await;
        rest.expect("the rest of standard output is text");
        keep(&self.name, &stdout);
        let stderr = std::fs::read_to_string(&self.log).unwrap_or_default();
        let (mut notifications, mut datagram) = (Vec::new(), [0; 4096]);
        while let Ok(length) = self.says.try_recv(&mut datagram) {
            notifications.push(String::from_utf8_lossy(&datagram[..length]).into_owned());
        }
        Ended {
            status: status.expect("the exit status of the child").code(),
            stdout,
            stderr,
            notifications,
        }
    }
}

impl Ended {
    /// Asserts the status, and the number of lines on standard error.
    #[track_caller]
    pub fn expect(&self, status: i32, lines: usize) -> Vec<&str> {
        assert_eq!(self.status, Some(status), "{}{}", self.stdout, self.stderr);
        let said: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(said.len(), lines, "{}", self.stderr);
        said
    }
}
