//! Shared state of all tables: durations, program paths, and a temporary folder.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use postern_bench::token::TokenSigner;

use crate::http;
use crate::peers;
use crate::process::{ChildProcess, free_address};
use crate::tls;

/// Build profile of published results.
pub(crate) const PUBLISHED_PROFILE: &str = "production";

/// Arguments of the driver.
#[derive(Args)]
pub(crate) struct BenchSettings {
    /// Fewer and shorter rounds, to verify that the benchmark works. Not for publication.
    #[arg(long)]
    quick: bool,
    /// Measure only this part of the table, such as `cost`. The results are written to separate
    /// files, such as `gateway-cost`.
    #[arg(long)]
    only: Option<String>,
    /// Skip this part, such as `held`, which takes half an hour.
    #[arg(long, conflicts_with = "only")]
    without: Option<String>,
    /// Build profile of the programs under test.
    #[arg(long, default_value = PUBLISHED_PROFILE)]
    profile: String,
    /// Folder with the programs under test.
    #[arg(long)]
    binaries: PathBuf,
    /// Folder with oha, the npm queues, and the current nginx and HAProxy.
    #[arg(long)]
    tools: PathBuf,
    /// Folder for the results: medians as Markdown, and plots.
    #[arg(long)]
    pub(crate) results: PathBuf,
    /// Folder for the results of every round as JSON.
    #[arg(long)]
    pub(crate) raw: PathBuf,
    /// URL of a PostgreSQL server on which databases may be created.
    #[arg(long)]
    postgres: Option<String>,
    /// Process id of the PostgreSQL server.
    #[arg(long)]
    postgres_pid: Option<u32>,
    /// URL of a Redis server.
    #[arg(long)]
    redis: Option<String>,
}

/// A run of the driver.
pub(crate) struct BenchRun {
    pub(crate) quick: bool,
    /// Build profile of the programs under test.
    pub(crate) profile: String,
    pub(crate) binaries: PathBuf,
    /// Folder with oha, the npm queues, and the current nginx and HAProxy.
    pub(crate) tools: PathBuf,
    /// Root of the repository.
    pub(crate) root: PathBuf,
    /// URL and process id of the PostgreSQL server.
    pub(crate) postgres: Option<(String, u32)>,
    /// URL of the Redis server.
    pub(crate) redis: Option<String>,
    /// The only part to measure, if set.
    pub(crate) only: Option<String>,
    without: Option<String>,
    folder: PathBuf,
}

/// An origin with a fixed response, which also publishes the keys of the issuers.
pub(crate) struct OriginServer {
    pub(crate) address: SocketAddr,
    pub(crate) issuer: String,
    pub(crate) signer: TokenSigner,
    _process: ChildProcess,
}

impl BenchRun {
    pub(crate) fn new(settings: &BenchSettings) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("postern-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        tls::write_certificate(&folder)?;
        Ok(Self {
            quick: settings.quick,
            profile: settings.profile.clone(),
            binaries: settings.binaries.canonicalize()?,
            tools: settings.tools.clone(),
            root: std::env::current_dir()?,
            postgres: settings.postgres.clone().zip(settings.postgres_pid),
            redis: settings.redis.clone(),
            only: settings.only.clone(),
            without: settings.without.clone(),
            folder,
        })
    }

    /// Returns the folder of this run.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether a part of the table is to be measured.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part) && self.without.as_deref() != Some(part)
    }

    /// Returns the value for a quick or for a full run.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    pub(crate) fn oha(&self) -> PathBuf {
        self.tools.join("bin/oha")
    }

    /// Returns a command for a program under test. Its output is written to a file in the run's
    /// folder.
    pub(crate) fn program(&self, name: &str) -> io::Result<Command> {
        let mut command = Command::new(self.binaries.join(name));
        let said = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")))?;
        command.stderr(Stdio::from(said)).current_dir(&self.folder);
        Ok(command)
    }

    /// Returns the last log line of each program under test, which usually explains failed
    /// responses.
    pub(crate) fn last_log_lines(&self) -> String {
        let mut logs: Vec<_> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        logs.sort_by_key(fs::DirEntry::file_name);
        let words = logs.iter().filter_map(|log| {
            let name = log.file_name().into_string().ok()?;
            let program = name.strip_suffix(".log")?;
            let text = fs::read(log.path()).ok()?;
            let text = String::from_utf8_lossy(&text);
            let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
            Some(format!("\n  {program} logged last: {}", line.trim()))
        });
        words.collect()
    }

    /// Checks that the disk has `bytes` of free space.
    ///
    /// # Errors
    /// There is less, or it cannot be determined.
    pub(crate) fn needs_room(&self, bytes: u64) -> io::Result<()> {
        let disk = rustix::fs::statvfs(&self.folder)?;
        let free = disk.f_bavail * disk.f_frsize;
        if free < bytes {
            let [bytes, free] = [bytes, free].map(|bytes| bytes.div_ceil(1 << 30));
            let folder = self.folder.display();
            return Err(io::Error::other(format!(
                "needs {bytes} GiB free at {folder}, which has {free}"
            )));
        }
        Ok(())
    }

    pub(crate) fn origin(&self) -> io::Result<OriginServer> {
        let (signer, address) = (TokenSigner::generate()?, free_address()?);
        let process = peers::origin(&self.folder, address, &signer)?;
        Ok(OriginServer {
            address,
            issuer: format!("http://{address}/pool"),
            signer,
            _process: process,
        })
    }
}

impl Drop for BenchRun {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until `/readyz` of an admin listener returns 200.
pub(crate) fn ready(
    process: ChildProcess,
    admin: SocketAddr,
    pause: std::time::Duration,
) -> io::Result<ChildProcess> {
    process.until(pause, || {
        http::once(admin, "GET", "/readyz", &[], "").is_ok_and(|answer| answer.status == 200)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_includes_the_last_log_lines() {
        let folder =
            std::env::temp_dir().join(format!("postern-bench-words-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let bench = BenchRun {
            quick: true,
            profile: PUBLISHED_PROFILE.to_owned(),
            binaries: folder.clone(),
            tools: folder.clone(),
            root: folder.clone(),
            postgres: None,
            redis: None,
            only: None,
            without: None,
            folder: folder.clone(),
        };
        fs::write(
            folder.join("postern-notify.log"),
            "cannot bind\ncannot accept: no space left\n\n",
        )
        .unwrap();
        fs::write(folder.join("postern-auth.log"), "").unwrap();
        fs::write(folder.join("load.lua"), "done()\n").unwrap();
        assert_eq!(
            bench.last_log_lines(),
            "\n  postern-notify logged last: cannot accept: no space left"
        );
        bench.needs_room(1).unwrap();
        let refused = bench.needs_room(u64::MAX).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("free at {}", folder.display())),
            "{refused}"
        );
        drop(bench);
        assert!(!folder.exists(), "the folder is removed with the run");
    }
}
