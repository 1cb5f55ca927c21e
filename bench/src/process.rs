//! Processes under test: start, resource usage, and stop by process id.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A child process that is stopped when dropped.
pub(crate) struct ChildProcess {
    child: Child,
    name: &'static str,
}

impl ChildProcess {
    /// Starts the process and waits until `address` accepts connections, for at most ten seconds.
    pub(crate) fn start(
        name: &'static str,
        command: &mut Command,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let process = Self::spawn(name, command)?;
        process.until(Duration::from_millis(20), || {
            TcpStream::connect(address).is_ok()
        })
    }

    /// Starts the process without waiting.
    pub(crate) fn spawn(name: &'static str, command: &mut Command) -> io::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        Ok(Self { child, name })
    }

    /// Waits until `is_ready` returns true, for at most thirty seconds.
    pub(crate) fn until(
        mut self,
        pause: Duration,
        mut is_ready: impl FnMut() -> bool,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "{} exited during startup: {status}",
                    self.name
                )));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!(
                    "{} is not ready after 30 s",
                    self.name
                )));
            }
            sleep(pause);
        }
        Ok(self)
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU time of the process and its children, in nanoseconds. It may decrease by
    /// some ticks when a thread or child exits: subtract with `saturating_sub`.
    pub(crate) fn cpu_ns(&self) -> io::Result<u64> {
        family_cpu_ns(self.child.id())
    }

    /// Returns the resident memory of the process and its children, in KiB.
    pub(crate) fn resident_kib(&self) -> io::Result<u64> {
        family(self.child.id())?.into_iter().map(resident_kib).sum()
    }
}

/// Sends SIGTERM first, so that files and shared memory are cleaned up, then SIGKILL.
impl Drop for ChildProcess {
    fn drop(&mut self) {
        let members = family(self.child.id()).unwrap_or_default();
        signal(Signal::INT, self.child.id());
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
        for pid in members
            .into_iter()
            .rev()
            .filter(|pid| *pid != self.child.id())
        {
            signal(Signal::TERM, pid);
        }
        let _already_gone = self.child.kill();
        if self.child.wait().is_err() {
            let _no_terminal = io::Write::write_all(&mut io::stderr(), self.name.as_bytes());
        }
    }
}

/// Returns the CPU time of a process and its descendants, in nanoseconds. Exited descendants that
/// were waited for count with the resolution of kernel ticks; without them, the total would
/// decrease when a vacuum worker exits.
pub(crate) fn family_cpu_ns(pid: u32) -> io::Result<u64> {
    let of = |pid| Ok(cpu_ns(pid)? + ticks(pid, CHILD_TIME_FIELDS) * NANOSECONDS_PER_TICK);
    // Parents last, so that a child that exits meanwhile is counted by its parent.
    family(pid)?
        .into_iter()
        .rev()
        .map(|member| {
            if member == pid {
                of(pid)
            } else {
                or_gone(of(member))
            }
        })
        .sum()
}

/// Returns the default for a process that has exited meanwhile.
fn or_gone<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(NO_SUCH_PROCESS) =>
        {
            Ok(T::default())
        }
        read => read,
    }
}

/// ESRCH, returned by `/proc` for a process that exits while it is read.
const NO_SUCH_PROCESS: i32 = 3;

/// Sends a signal to a process, which may have exited.
pub(crate) fn signal(signal: Signal, pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _already_gone = pid.map(|pid| kill_process(pid, signal));
}

/// Returns the CPU time of the run in nanoseconds, with the resolution of kernel ticks: of
/// `bench/run`, which started this process and the servers, and of all their descendants including
/// exited ones.
pub(crate) fn own_cpu_ns() -> io::Result<u64> {
    Ok(family(std::os::unix::process::parent_id())?
        .into_iter()
        .map(|pid| ticks(pid, ALL_TIME_FIELDS))
        .sum::<u64>()
        * NANOSECONDS_PER_TICK)
}

/// Returns the CPU time of all processes of the machine and of its host, in nanoseconds.
pub(crate) fn all_cpu_ns() -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .flat_map(str::parse)
        .collect();
    // user, nice, system and steal; interrupts are not attributed to a process.
    Ok([0, 1, 2, 7]
        .iter()
        .filter_map(|at| fields.get(*at))
        .sum::<u64>()
        * NANOSECONDS_PER_TICK)
}

/// Nanoseconds per tick: Linux reports hundredths of a second.
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

/// Fields of `/proc/PID/stat` after the name: user and system time, then those of children that
/// were waited for.
const ALL_TIME_FIELDS: Range<usize> = 11..15;
const OWN_TIME_FIELDS: Range<usize> = 11..13;
const CHILD_TIME_FIELDS: Range<usize> = 13..15;

fn ticks(pid: u32, fields: Range<usize>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name
        .split_whitespace()
        .skip(fields.start)
        .take(fields.len())
        .flat_map(str::parse::<u64>)
        .sum()
}

/// Returns a port that was free at the time of the call.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Returns the process and its descendants.
fn family(root: u32) -> io::Result<Vec<u32>> {
    let mut members = vec![root];
    let mut next = 0;
    while let Some(pid) = members.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map(Some);
        for task in if pid == root { tasks? } else { or_gone(tasks)? }
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            members.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
    }
    Ok(members)
}

/// Returns the larger of two values: the CPU time of living threads in nanoseconds, and of the
/// process in ticks, which includes exited threads.
fn cpu_ns(pid: u32) -> io::Result<u64> {
    Ok(threads_cpu_ns(pid, |_| true)?.max(ticks(pid, OWN_TIME_FIELDS) * NANOSECONDS_PER_TICK))
}

/// Returns the CPU time of the threads of one process whose names match, in nanoseconds.
pub(crate) fn threads_cpu_ns(pid: u32, wanted: impl Fn(&str) -> bool) -> io::Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        if wanted(
            fs::read_to_string(task.join("comm"))
                .unwrap_or_default()
                .trim(),
        ) {
            let line = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            total += line
                .split_whitespace()
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Ok(total)
}

fn resident_kib(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or_default();
    Ok(line
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0))
}
