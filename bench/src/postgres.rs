//! The PostgreSQL server of a run, which `bench/run` starts: databases, statements and CPU time.

use std::io;
use std::process::Command;

use crate::bench::BenchRun;
use crate::process;

/// A PostgreSQL server.
pub(crate) struct PostgresServer {
    /// URL without a database name.
    server: String,
    pid: u32,
}

impl PostgresServer {
    /// Returns the server of the run.
    pub(crate) fn of(bench: &BenchRun) -> io::Result<Self> {
        let (url, pid) = bench.postgres.as_ref().ok_or_else(|| {
            io::Error::other("--postgres URL and --postgres-pid PID are required: run bench/run")
        })?;
        let server = url
            .rsplit_once('/')
            .map_or(url.as_str(), |(server, _)| server)
            .to_owned();
        Ok(Self { server, pid: *pid })
    }

    /// Creates an empty database, replacing an existing one.
    pub(crate) fn database(&self, name: &str) -> io::Result<String> {
        self.ask(
            "postgres",
            &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
        )?;
        self.ask(
            "postgres",
            &format!("CREATE DATABASE {name} TEMPLATE template0"),
        )?;
        Ok(self.url(name))
    }

    /// Returns the URL of a database.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.server)
    }

    /// Runs a statement and returns its result, with columns separated by `|`.
    pub(crate) fn ask(&self, database: &str, sql: &str) -> io::Result<String> {
        let mut psql = Command::new("psql");
        let output = psql
            .args([
                &self.url(database),
                "-XAtq",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                sql,
            ])
            .output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        Err(io::Error::other(format!(
            "psql: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }

    /// Runs a statement and returns its result as a number.
    pub(crate) fn number(&self, database: &str, sql: &str) -> io::Result<f64> {
        let answer = self.ask(database, sql)?;
        answer
            .parse()
            .map_err(|_| io::Error::other(format!("psql printed {answer:?} for: {sql}")))
    }

    /// Returns the CPU time of the server and its backends, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> io::Result<u64> {
        process::family_cpu_ns(self.pid)
    }
}
