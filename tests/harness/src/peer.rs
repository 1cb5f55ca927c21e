//! Servers that others wrote, from `tests/peers`.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::paths;

/// Joins the two outputs of a program.
const JOINED: &str = r#"exec "$0" "$@" 2>&1"#;

/// A running server, killed when dropped.
#[derive(Debug)]
pub struct Peer {
    lines: UnboundedReceiver<String>,
    _child: Child,
}

impl Peer {
    /// Starts a program. Returns what follows `announcement` in the line that it prints when it is
    /// ready.
    pub async fn start(
        program: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
        announcement: &str,
    ) -> (Self, String) {
        let mut command = Command::new("sh");
        command.args(["-c", JOINED]).arg(program).args(arguments);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().expect("a shell");
        let output = child.stdout.take().expect("standard output is piped");
        let (sender, lines) = unbounded_channel();
        // Everything is read, so that the pipe does not fill.
        tokio::spawn(async move {
            let mut output = BufReader::new(output).lines();
            while let Ok(Some(line)) = output.next_line().await {
                let _ = sender.send(line);
            }
        });
        let mut peer = Self {
            lines,
            _child: child,
        };
        loop {
            let line = peer.next_line().await;
            if let Some((_, rest)) = line.split_once(announcement) {
                return (peer, rest.trim().to_owned());
            }
        }
    }

    /// Starts moto, an independent implementation of Cognito's API, with software tokens. Returns its
    /// URL.
    pub async fn moto() -> (Self, String) {
        let program = paths::peer("boto3/python/bin/moto_server");
        let tokens = [("MOTO_COGNITO_IDP_USER_POOL_ENABLE_TOTP", "true")];
        let arguments = ["-H", "127.0.0.1", "-p", "0"];
        Self::start(&program, &arguments, &tokens, "Running on ").await
    }

    /// Returns the next line that the program prints.
    pub async fn next_line(&mut self) -> String {
        let line = self.lines.recv().await;
        line.expect("the peer runs: tests/run installs it")
    }
}
