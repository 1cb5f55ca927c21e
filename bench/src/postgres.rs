//! The PostgreSQL server of a run, which `bench/run` starts: databases, statements and the CPU that
//! it takes.

use std::io;
use std::process::Command;

use crate::bench::Bench;
use crate::process;

/// A server.
pub(crate) struct Postgres {
    /// Without the name of a database.
    server: String,
    pid: u32,
}

impl Postgres {
    /// The server that the run was given.
    pub(crate) fn of(bench: &Bench) -> io::Result<Self> {
        let (url, pid) = bench.postgres.as_ref().ok_or_else(|| {
            io::Error::other("needs --postgres URL and --postgres-pid PID: start it by bench/run")
        })?;
        let server = url
            .rsplit_once('/')
            .map_or(url.as_str(), |(server, _)| server)
            .to_owned();
        Ok(Self { server, pid: *pid })
    }

    /// An empty database of this name, in place of any that there was.
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

    /// The address of a database.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.server)
    }

    /// What a statement answers, columns apart by `|`.
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

    /// The same as a number.
    pub(crate) fn number(&self, database: &str, sql: &str) -> io::Result<f64> {
        let answer = self.ask(database, sql)?;
        answer
            .parse()
            .map_err(|_| io::Error::other(format!("psql answered {answer:?} to: {sql}")))
    }

    /// CPU time of the server and all its backends, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> io::Result<u64> {
        process::family_cpu_ns(self.pid)
    }
}
