//! A process under test: started, weighed and stopped by its id.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A child process that is stopped when this goes out of scope.
pub(crate) struct Process {
    child: Child,
    name: &'static str,
}

impl Process {
    /// Starts it and waits until `address` accepts connections, for at most ten seconds.
    pub(crate) fn start(name: &'static str, command: &mut Command, address: SocketAddr) -> io::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut process = Self { child, name };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.child.try_wait()? {
                return Err(io::Error::other(format!("{name} ended at once: {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{name} does not listen on {address}")));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// CPU time of the process and its children, in nanoseconds, from `/proc/PID/task/*/schedstat`.
    pub(crate) fn cpu_ns(&self) -> io::Result<u64> {
        family(self.child.id())?.into_iter().map(cpu_ns).sum()
    }

    /// Resident memory of the process and its children, in KiB.
    pub(crate) fn resident_kib(&self) -> io::Result<u64> {
        family(self.child.id())?.into_iter().map(resident_kib).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let members = family(self.child.id()).unwrap_or_default();
        for pid in members.into_iter().rev().filter(|pid| *pid != self.child.id()) {
            let _already_gone = Command::new("kill").arg(pid.to_string()).stderr(Stdio::null()).status();
        }
        let _already_gone = self.child.kill();
        if self.child.wait().is_err() {
            let _no_terminal = io::Write::write_all(&mut io::stderr(), self.name.as_bytes());
        }
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// The process and its descendants.
fn family(root: u32) -> io::Result<Vec<u32>> {
    let mut members = vec![root];
    let mut next = 0;
    while let Some(pid) = members.get(next).copied() {
        next += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            members.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    Ok(members)
}

fn cpu_ns(pid: u32) -> io::Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let line = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        total += line.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total)
}

fn resident_kib(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Ok(line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0))
}
