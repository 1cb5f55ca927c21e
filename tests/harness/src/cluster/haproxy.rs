//! HAProxy in front of the gateways, which it checks by `/readyz`.

use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::faults::REPLICAS;
use crate::ports;

/// A running HAProxy.
#[derive(Debug)]
pub(super) struct Haproxy {
    pub(super) port: u16,
    _child: Child,
}

impl Haproxy {
    /// Starts it over gateways with these public and admin ports.
    pub(super) fn start(folder: &Path, gateways: [(u16, u16); REPLICAS]) -> Self {
        let port = ports::free(1);
        let server = |(number, (public, admin)): (usize, _)| {
            format!("    server gateway{number} 127.0.0.1:{public} check port {admin}\n")
        };
        let servers: String = gateways.into_iter().enumerate().map(server).collect();
        let text = format!(
            "global\n    maxconn 4000\n\
             defaults\n    mode http\n    timeout connect 1s\n    timeout client 60s\n    timeout server 30s\n\
             \x20   retries 2\n    retry-on conn-failure\n    option redispatch 1\n\
             frontend clients\n    bind 127.0.0.1:{port}\n    default_backend gateways\n\
             backend gateways\n    balance roundrobin\n    option httpchk\n\
             \x20   http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost\n\
             \x20   default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions\n{servers}"
        );
        let config = folder.join("haproxy.cfg");
        std::fs::write(&config, text).expect("the folder can be written");
        let log = std::fs::File::create(folder.join("haproxy.log"));
        let mut command = Command::new("/usr/sbin/haproxy");
        command.args(["-db", "-f"]).arg(config).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let command = command.stderr(log.expect("the folder can be written"));
        Self {
            port,
            _child: command.spawn().expect("tests/run installs HAProxy"),
        }
    }
}
