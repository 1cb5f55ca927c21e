//! A Redis server process for tests of failures.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A `redis-server` process that a test can kill, suspend and restart with its data.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    arguments: Vec<String>,
    folder: PathBuf,
    child: Child,
}

impl RedisServer {
    /// Starts a server with command line options such as `--appendonly yes`.
    pub async fn start(options: &[&str]) -> Self {
        let port = free_port().to_string();
        let own = ["--port", &port, "--bind", "127.0.0.1"];
        let arguments = own.iter().chain(options).map(ToString::to_string).collect();
        Self::run(&port, arguments, temporary_folder()).await
    }

    /// Starts a sentinel that monitors a master under the name `mymaster`, with settings in a file
    /// that it rewrites.
    pub async fn sentinel_of(master: &Self) -> Self {
        let (port, of, folder) = (free_port().to_string(), master.port, temporary_folder());
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {of} 1\n\
             sentinel failover-timeout mymaster 5000\n"
        );
        std::fs::write(folder.join("sentinel.conf"), settings).expect("written");
        let arguments = ["sentinel.conf", "--sentinel"].map(str::to_owned);
        Self::run(&port, arguments.into(), folder).await
    }

    async fn run(port: &str, arguments: Vec<String>, folder: PathBuf) -> Self {
        let mut server = Self {
            port: port.parse().expect("a port"),
            child: spawn(&folder, &arguments),
            arguments,
            folder,
        };
        server.wait().await;
        server
    }

    /// Returns the server's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's URL as a cache.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command whose answer is `OK`, such as `SAVE`.
    pub async fn command(&self, command: &str) {
        let answer: String = self.query(command).await.expect("Redis answers");
        assert_eq!(answer, "OK", "{command}");
    }

    /// Sends a command.
    pub async fn query<T: FromRedisValue>(&self, command: &str) -> RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut connection).await
    }

    /// Kills the server with SIGKILL.
    pub async fn kill(&mut self) {
        let ended = self.child.try_wait().expect("the child can be polled");
        assert!(ended.is_none(), "Redis exited by itself");
        self.child.kill().await.expect("the child can be killed");
    }

    /// Restarts the server with its data at the same port.
    pub async fn restart(&mut self) {
        self.child = spawn(&self.folder, &self.arguments);
        self.wait().await;
    }

    /// Sends a signal: `STOP` suspends the server, `CONT` resumes it.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("Redis runs").to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status()
            .await;
        assert!(sent.expect("kill can be run").success());
    }

    /// Waits until the server answers.
    async fn wait(&mut self) {
        while self.query::<String>("PING").await.is_err() {
            let ended = self.child.try_wait().expect("the child can be polled");
            assert!(ended.is_none(), "Redis exited before it was ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
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

fn temporary_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("postern-redis-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).expect("the temporary directory can be written");
    folder
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server is installed: tests/run installs it")
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
