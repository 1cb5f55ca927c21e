//! A Redis server process for tests of failures.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A `redis-server` process that a test can kill, suspend and restart with its data.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    options: &'static [&'static str],
    folder: PathBuf,
    child: Child,
}

// === impl RedisServer ===

impl RedisServer {
    /// Starts a server with command line options such as `--appendonly yes`.
    ///
    /// # Panics
    /// If `redis-server` is not installed or does not start.
    pub async fn start(options: &'static [&'static str]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("postern-redis-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).expect("the temporary directory can be written");
        let port = free_port();
        let child = spawn(port, &folder, options).await;
        Self {
            port,
            options,
            folder,
            child,
        }
    }

    /// Returns the server's URL as a cache.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command whose answer is `OK`, such as `SAVE`.
    ///
    /// # Panics
    /// If the answer is different.
    pub async fn command(&self, command: &str) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port))
            .await
            .expect("Redis listens");
        connection
            .write_all(format!("{command}\r\n").as_bytes())
            .await
            .expect("sent");
        let mut answer = [0; 5];
        connection.read_exact(&mut answer).await.expect("answered");
        assert_eq!(&answer, b"+OK\r\n", "{command}");
    }

    /// Kills the server with SIGKILL.
    ///
    /// # Panics
    /// If it has exited by itself before.
    pub async fn kill(&mut self) {
        assert!(
            self.child
                .try_wait()
                .expect("the child can be polled")
                .is_none(),
            "Redis exited by itself"
        );
        self.child.kill().await.expect("the child can be killed");
    }

    /// Restarts the server with its data at the same port.
    ///
    /// # Panics
    /// As [`RedisServer::start`].
    pub async fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, self.options).await;
    }

    /// Sends a signal: `STOP` suspends the server, `CONT` resumes it.
    ///
    /// # Panics
    /// If the server has exited.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("Redis runs").to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status()
            .await;
        assert!(sent.expect("kill can be run").success());
    }
}

/// Returns a free port below the ephemeral range, so that the system does not assign it before the
/// server binds it. Ports of one process differ.
pub(in crate::cache) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 100).unwrap_or(0) * 100;
    (0..100)
        .map(|_| base + NEXT.fetch_add(1, Ordering::Relaxed) % 100)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

async fn spawn(port: u16, folder: &PathBuf, options: &[&str]) -> Child {
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .arg("--dir")
        .arg(folder);
    command
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .expect("redis-server is installed: tests/run installs it");
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    while let Some(line) = lines.next_line().await.expect("Redis writes text") {
        if line.contains("Ready to accept connections") {
            // Later output must not fill the pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return child;
        }
    }
    panic!("Redis exited before it was ready");
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
