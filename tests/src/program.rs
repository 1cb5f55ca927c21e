//! The real programs as processes of their own, for what only a process shows: exit statuses,
//! signals, restarts.

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

/// How long a program may take before the test fails rather than hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that is about to be started: no environment but what it is given.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    folder: PathBuf,
    /// Listening sockets that it is started with.
    passed: Vec<Arc<TcpListener>>,
    /// What it reads on standard input.
    input: Option<PathBuf>,
}

/// Puts standard input, and standard error where two sockets are passed, where `sd_listen_fds(3)`
/// looks for them, and becomes the program. A shell, because the id of the process must stand in a
/// variable before the process is there.
const PASS: &str = r#"exec 3<&0 0</dev/null
if [ "$LISTEN_FDS" = 2 ]; then exec 4<&2 2>>"$LOG"; fi
unset LOG; export LISTEN_PID=$$
exec "$0" "$@""#;

/// A program that has ended.
#[derive(Debug)]
#[must_use = "how a program ended is what the test is about"]
pub struct Ended {
    /// Its status; `None` when a signal ended it.
    pub status: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// What it told its service manager, but for what [`Running::until_ready`] has read.
    pub told: Vec<String>,
}

/// A program that runs; it is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    /// Where it says how it is: `NOTIFY_SOCKET` of `sd_notify(3)`.
    says: UnixDatagram,
}

// === impl Program ===

impl Program {
    /// One of the workspace's programs, built by `tests/run` into the folder of the test program
    /// itself.
    ///
    /// # Panics
    /// If it has not been built.
    #[must_use]
    pub fn of_workspace(name: &str, folder: &Path) -> Self {
        let own = std::env::current_exe().expect("a process knows its program");
        let built = own
            .ancestors()
            .nth(2)
            .expect("test programs stand in target/PROFILE/deps")
            .join(name);
        assert!(
            built.exists(),
            "{} is not there: run ./tests/run, which builds it",
            built.display()
        );
        Self::at(built, folder)
    }

    /// Any other program, which is run in the folder.
    #[must_use]
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

    /// With an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// With a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// With these sockets, as systemd passes them; one or two.
    #[must_use]
    pub fn passing(mut self, sockets: &[Arc<TcpListener>]) -> Self {
        assert!(
            sockets.len() <= 2,
            "there are two standard streams to pass sockets by"
        );
        self.passed = sockets.to_vec();
        self
    }

    /// With a file on standard input; without one that is empty.
    #[must_use]
    pub fn input(mut self, file: PathBuf) -> Self {
        self.input = Some(file);
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(if self.passed.is_empty() {
            &self.path
        } else {
            Path::new("/bin/sh")
        });
        if !self.passed.is_empty() {
            command.args(["-c", PASS]).arg(&self.path);
        }
        command
            .args(&self.arguments)
            .env_clear()
            .envs(&self.environment)
            .current_dir(&self.folder);
        let open =
            |file: &PathBuf| Stdio::from(std::fs::File::open(file).expect("the input can be read"));
        command
            .stdin(self.input.as_ref().map_or_else(Stdio::null, open))
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started or does not end within a minute.
    pub async fn run(&self) -> Ended {
        let output = tokio::time::timeout(PATIENCE, self.command().output()).await;
        let output = output.unwrap_or_else(|_| panic!("{} did not end", self.path.display()));
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        Ended {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            told: Vec::new(),
        }
    }

    /// Starts it; its standard error goes to a file in its folder, and a socket beside it hears how
    /// it is.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(&self) -> Running {
        let name = self
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let log = self
            .folder
            .join(format!("{name}-{}.log", uuid::Uuid::new_v4().simple()));
        let file = std::fs::File::create(&log).expect("the test's folder can be written");
        let heard = log.with_extension("notify");
        let says = UnixDatagram::bind(&heard).expect("the test's folder can be written");
        let mut command = self.command();
        command
            .env("NOTIFY_SOCKET", heard)
            .stdout(Stdio::piped())
            .stderr(file);
        if let [first, others @ ..] = self.passed.as_slice() {
            command
                .env("LISTEN_FDS", self.passed.len().to_string())
                .env("LOG", &log)
                .stdin(duplicate(first));
            if let Some(second) = others.first() {
                command.stderr(duplicate(second));
            }
        }
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
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

fn duplicate(socket: &TcpListener) -> OwnedFd {
    socket
        .as_fd()
        .try_clone_to_owned()
        .expect("a descriptor is free")
}

// === impl Running ===

impl Running {
    /// Reads standard output up to the first line that contains the text, and returns all lines
    /// until then.
    ///
    /// # Panics
    /// If the program ends before it has said so, or takes more than a minute.
    pub async fn wait_for_line(&mut self, text: &str) -> Vec<String> {
        let said = self.line_or_end(text).await;
        said.unwrap_or_else(|said| panic!("{} ended: {said:?}\n{}", self.name, self.log()))
    }

    /// The same for a program that may end before.
    ///
    /// # Errors
    /// What it said until it ended.
    ///
    /// # Panics
    /// If it takes more than a minute.
    pub async fn line_or_end(&mut self, text: &str) -> Result<Vec<String>, Vec<String>> {
        let mut said = Vec::new();
        loop {
            match tokio::time::timeout(PATIENCE, self.lines.next_line()).await {
                Ok(Ok(Some(line))) => {
                    said.push(line);
                    if said.last().is_some_and(|line| line.contains(text)) {
                        return Ok(said);
                    }
                }
                Ok(Ok(None) | Err(_)) => return Err(said),
                Err(_) => panic!(
                    "{} did not say {text:?}: {said:?}\n{}",
                    self.name,
                    self.log()
                ),
            }
        }
    }

    /// Returns when it says that every part of it is ready.
    ///
    /// # Panics
    /// If it ends before, or takes more than a minute.
    pub async fn until_ready(&mut self) {
        let mut datagram = [0; 4096];
        let mut last = "nothing".to_owned();
        loop {
            let heard = tokio::select! {
                heard = tokio::time::timeout(PATIENCE, self.says.recv(&mut datagram)) => heard,
                ended = self.child.wait() => panic!("{} ended: {ended:?}\n{}", self.name, self.log()),
            };
            let length =
                heard.unwrap_or_else(|_| panic!("{} says {last:?}\n{}", self.name, self.log()));
            last = String::from_utf8_lossy(&datagram[..length.expect("a datagram")]).into_owned();
            if last.lines().any(|line| line == "STATUS=ready") {
                return;
            }
        }
    }

    /// Fails the test when it has ended.
    ///
    /// # Panics
    /// If it has ended by itself.
    pub fn expect_alive(&mut self) {
        let ended = self.child.try_wait().expect("a child can be asked");
        assert!(
            ended.is_none(),
            "{} ended by itself: {}",
            self.name,
            self.log()
        );
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it as a power failure would, and waits until it is gone.
    ///
    /// # Panics
    /// If it has ended by itself before.
    pub async fn kill(mut self) {
        self.expect_alive();
        self.child.kill().await.expect("a child can be killed");
    }

    /// The most memory that it has had resident so far, in KiB: `VmHWM` of `proc(5)`.
    ///
    /// # Panics
    /// If it has ended by itself.
    #[must_use]
    pub fn peak_memory_kib(&self) -> u64 {
        let pid = self.child.id().expect("a running program has an id");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is listed");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("it has a peak");
        peak.trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number")
    }

    /// Asks it to stop with a signal (`INT`, `TERM`), and waits until it is gone.
    ///
    /// # Panics
    /// If it is not gone within a minute.
    pub async fn stop(self, signal: &str) -> Ended {
        self.signal(signal).await;
        self.wait().await
    }

    /// Sends it a signal, such as `HUP`.
    ///
    /// # Panics
    /// If it has ended by itself.
    pub async fn signal(&self, signal: &str) {
        let pid = self
            .child
            .id()
            .expect("a running program has an id")
            .to_string();
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &pid])
            .status()
            .await;
        assert!(sent.expect("kill can be run").success());
    }

    /// Waits until it is gone.
    ///
    /// # Panics
    /// If it is not gone within a minute.
    pub async fn wait(mut self) -> Ended {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status =
            status.unwrap_or_else(|_| panic!("{} did not stop: {}", self.name, self.log()));
        let mut stdout = String::new();
        let rest = self.lines.into_inner().read_to_string(&mut stdout).await;
        rest.expect("the rest of standard output is text");
        let stderr = std::fs::read_to_string(&self.log).unwrap_or_default();
        let (mut told, mut datagram) = (Vec::new(), [0; 4096]);
        while let Ok(length) = self.says.try_recv(&mut datagram) {
            told.push(String::from_utf8_lossy(&datagram[..length]).into_owned());
        }
        Ended {
            status: status.expect("a child can be waited for").code(),
            stdout,
            stderr,
            told,
        }
    }
}

// === impl Ended ===

impl Ended {
    /// Holds the status, and that standard error says why in this many lines.
    #[track_caller]
    pub fn expect(&self, status: i32, lines: usize) -> Vec<&str> {
        assert_eq!(self.status, Some(status), "{}{}", self.stdout, self.stderr);
        let said: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(said.len(), lines, "{}", self.stderr);
        said
    }
}
