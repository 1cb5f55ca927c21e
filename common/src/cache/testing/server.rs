use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A Redis of a test's own, which can be killed, stopped and started again over what it has kept.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    options: &'static [&'static str],
    folder: PathBuf,
    child: Child,
}

// === impl RedisServer ===

impl RedisServer {
    /// Starts it with options of its command line, such as `--appendonly yes`.
    ///
    /// # Panics
    /// If `redis-server` is not there or does not start: a test cannot go on.
    pub async fn start(options: &'static [&'static str]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("postern-redis-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).expect("the folder for temporary files can be written");
        let port = free_port();
        let child = spawn(port, &folder, options).await;
        Self {
            port,
            options,
            folder,
            child,
        }
    }

    /// Its address as a cache.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Has it do something, such as `SAVE`, which writes a snapshot.
    ///
    /// # Panics
    /// If it does not.
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

    /// Ends it as a power failure would.
    ///
    /// # Panics
    /// If it has ended by itself before.
    pub async fn kill(&mut self) {
        assert!(
            self.child
                .try_wait()
                .expect("a child can be asked")
                .is_none(),
            "Redis ended by itself"
        );
        self.child.kill().await.expect("a child can be killed");
    }

    /// Starts it again over its folder, at its port.
    ///
    /// # Panics
    /// As [`RedisServer::start`].
    pub async fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, self.options).await;
    }

    /// Sends it a signal: `STOP` makes it hang, `CONT` go on.
    ///
    /// # Panics
    /// If it has ended.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("Redis runs").to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status()
            .await;
        assert!(sent.expect("kill can be run").success());
    }
}

/// Below the range that the system hands out by itself, so that nobody else gets it before the
/// server binds it; never the same twice in this program.
pub(in crate::cache) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 100).unwrap_or(0) * 100;
    (0..100)
        .map(|_| base + NEXT.fetch_add(1, Ordering::Relaxed) % 100)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a port")
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
        .expect("redis-server is there: tests/run installs it");
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    while let Some(line) = lines.next_line().await.expect("Redis writes text") {
        if line.contains("Ready to accept connections") {
            // What it says later must not fill the pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return child;
        }
    }
    panic!("Redis ended before it was ready");
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
