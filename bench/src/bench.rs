//! What every table needs: how long to measure, where the programs are, and a folder that is gone
//! afterwards.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use postern_bench::token::Signer;

use crate::http;
use crate::peers;
use crate::process::{Process, free_address};

/// What `bench/run` tells the driver.
#[derive(Args)]
pub(crate) struct Settings {
    /// Fewer and shorter rounds: to see that it works, not to quote.
    #[arg(long)]
    quick: bool,
    /// Only this part of the table, such as `cost`; the results are then files of its own,
    /// `gateway-cost`.
    #[arg(long)]
    only: Option<String>,
    /// Everything but this part, such as `held`, which takes half an hour.
    #[arg(long, conflicts_with = "only")]
    without: Option<String>,
    /// Folder with the programs that are measured.
    #[arg(long)]
    binaries: PathBuf,
    /// Folder with oha and the queues from npm.
    #[arg(long)]
    tools: PathBuf,
    /// Folder that the results go to.
    #[arg(long)]
    pub(crate) results: PathBuf,
    /// A PostgreSQL server that databases may be made on.
    #[arg(long)]
    postgres: Option<String>,
    /// The id of its process.
    #[arg(long)]
    postgres_pid: Option<u32>,
    /// A Redis server.
    #[arg(long)]
    redis: Option<String>,
}

/// One run of the driver.
pub(crate) struct Bench {
    pub(crate) quick: bool,
    /// The folder of the built programs.
    pub(crate) binaries: PathBuf,
    /// The folder of oha and of the queues from npm.
    pub(crate) tools: PathBuf,
    /// The repository.
    pub(crate) root: PathBuf,
    /// The PostgreSQL server of the run: an address, and the id of its process.
    pub(crate) postgres: Option<(String, u32)>,
    /// The address of the Redis server of the run.
    pub(crate) redis: Option<String>,
    /// The part that alone is measured.
    pub(crate) only: Option<String>,
    without: Option<String>,
    folder: PathBuf,
}

/// The origin with a fixed answer, which publishes the keys of the issuers as well.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    pub(crate) issuer: String,
    pub(crate) signer: Signer,
    _process: Process,
}

impl Bench {
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("postern-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self {
            quick: settings.quick,
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

    /// Where everything of this run is kept.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a part of the table is to be measured.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part) && self.without.as_deref() != Some(part)
    }

    /// One of two by how long the run may take.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    pub(crate) fn oha(&self) -> PathBuf {
        self.tools.join("bin/oha")
    }

    /// One of the programs that are measured; what it says goes to a file of the run.
    pub(crate) fn program(&self, name: &str) -> io::Result<Command> {
        let mut command = Command::new(self.binaries.join(name));
        let said = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")))?;
        command.stderr(Stdio::from(said)).current_dir(&self.folder);
        Ok(command)
    }

    /// What the programs that are measured have said last, where they said anything: why answers
    /// failed stands there.
    pub(crate) fn last_words(&self) -> String {
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
            Some(format!("\n  {program} said last: {}", line.trim()))
        });
        words.collect()
    }

    /// Whether the disk of the run has room for so many bytes.
    ///
    /// # Errors
    /// It has not, or does not say.
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

    pub(crate) fn origin(&self) -> io::Result<Origin> {
        let (signer, address) = (Signer::generate()?, free_address()?);
        let process = peers::origin(&self.folder, address, &signer)?;
        Ok(Origin {
            address,
            issuer: format!("http://{address}/pool"),
            signer,
            _process: process,
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until `/readyz` of an admin listener is green.
pub(crate) fn ready(
    process: Process,
    admin: SocketAddr,
    pause: std::time::Duration,
) -> io::Result<Process> {
    process.until(pause, || {
        http::once(admin, "GET", "/readyz", &[], "").is_ok_and(|answer| answer.status == 200)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_said_last_stands_beside_a_failure() {
        let folder =
            std::env::temp_dir().join(format!("postern-bench-words-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let bench = Bench {
            quick: true,
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
            bench.last_words(),
            "\n  postern-notify said last: cannot accept: no space left"
        );
        bench.needs_room(1).unwrap();
        let refused = bench.needs_room(u64::MAX).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("free at {}", folder.display())),
            "{refused}"
        );
        drop(bench);
        assert!(!folder.exists(), "the folder of a run goes with it");
    }
}
