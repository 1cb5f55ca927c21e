//! The servers under test: nginx, HAProxy and the two proxies built here, each with one worker and
//! otherwise equal settings.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use postern_bench::setup::GatewaySetup;
use postern_bench::token::TokenSigner;

use crate::bench::{BenchRun, OriginServer, ready};
use crate::process::{ChildProcess, free_address};

/// JSON response of the origin: 127 bytes.
pub(crate) const ORIGIN_RESPONSE: &str = r#"{"actorId":"7d8ca528-4931-4254-9273-ea5ee853f271","firstName":"Ada","lastName":"Lovelace","email":"ada@example.com","open":true}"#;

/// Path of every request.
pub(crate) const REQUEST_PATH: &str = "/actors/7d8ca528-4931-4254-9273-ea5ee853f271";

/// Starts the origin: nginx with one fixed response, which also publishes the issuer's JWKS under
/// `/pool`.
pub(crate) fn origin(
    folder: &Path,
    address: SocketAddr,
    signer: &TokenSigner,
) -> io::Result<ChildProcess> {
    fs::create_dir_all(folder.join("www/pool/.well-known"))?;
    fs::write(folder.join("www/pool/.well-known/jwks.json"), &signer.jwks)?;
    let root = folder.join("www");
    let body = format!(
        "location /pool/ {{ root {}; default_type application/json; }}\n\
         location / {{ default_type application/json; return 200 '{ORIGIN_RESPONSE}'; }}",
        root.display()
    );
    nginx("origin", folder, address, "", &body)
}

/// Starts nginx as a proxy without authentication, the base of every ratio.
pub(crate) fn nginx_proxy(
    folder: &Path,
    address: SocketAddr,
    origin: SocketAddr,
) -> io::Result<ChildProcess> {
    let upstream = format!("upstream origin {{ server {origin}; keepalive 128; }}");
    let body = "location / { proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; }";
    nginx("nginx, no auth", folder, address, &upstream, body)
}

fn nginx(
    name: &'static str,
    folder: &Path,
    address: SocketAddr,
    outside: &str,
    locations: &str,
) -> io::Result<ChildProcess> {
    let file = folder.join(format!("nginx-{}.conf", address.port()));
    let folder = folder.display();
    let port = address.port();
    fs::write(
        &file,
        format!(
            "daemon off; worker_processes 1; pid {folder}/nginx-{port}.pid; error_log {folder}/nginx-{port}.log error;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 300s;\n\
             client_body_temp_path {folder}/body-{port}; proxy_temp_path {folder}/proxy-{port};\n\
             fastcgi_temp_path {folder}/f-{port}; uwsgi_temp_path {folder}/u-{port}; scgi_temp_path {folder}/s-{port};\n\
             {outside}\nserver {{ listen {address}; {locations} }} }}\n"
        ),
    )?;
    ChildProcess::start(name, Command::new("nginx").arg("-c").arg(&file), address)
}

/// Starts HAProxy without authentication.
pub(crate) fn haproxy(
    folder: &Path,
    address: SocketAddr,
    origin: &OriginServer,
) -> io::Result<ChildProcess> {
    start_haproxy("HAProxy, no auth", folder, address, origin, "")
}

/// Starts HAProxy with verification of RS256, issuer and expiry on every request; it has no token
/// cache.
pub(crate) fn haproxy_rs256(
    folder: &Path,
    address: SocketAddr,
    origin: &OriginServer,
) -> io::Result<ChildProcess> {
    let key = folder.join("haproxy-key.pem");
    fs::write(&key, &origin.signer.public_pem)?;
    let rules = format!(
        "  http-request set-var(txn.bearer) http_auth_bearer\n\
         \x20 http-request set-var(txn.alg) var(txn.bearer),jwt_header_query('$.alg')\n\
         \x20 http-request set-var(txn.iss) var(txn.bearer),jwt_payload_query('$.iss')\n\
         \x20 http-request set-var(txn.exp) var(txn.bearer),jwt_payload_query('$.exp','int')\n\
         \x20 http-request set-var(txn.now) date()\n\
         \x20 http-request deny deny_status 401 unless {{ var(txn.alg) -m str RS256 }}\n\
         \x20 http-request deny deny_status 401 unless {{ var(txn.iss) -m str \"{}\" }}\n\
         \x20 http-request deny deny_status 401 unless {{ var(txn.exp),sub(txn.now) -m int gt 0 }}\n\
         \x20 http-request deny deny_status 401 unless {{ var(txn.bearer),jwt_verify(txn.alg,\"{}\") -m int 1 }}\n",
        origin.issuer,
        key.display()
    );
    start_haproxy("HAProxy, RS256", folder, address, origin, &rules)
}

fn start_haproxy(
    name: &'static str,
    folder: &Path,
    address: SocketAddr,
    origin: &OriginServer,
    rules: &str,
) -> io::Result<ChildProcess> {
    let file = folder.join(format!("haproxy-{}.cfg", address.port()));
    fs::write(
        &file,
        format!(
            "global\n  nbthread 1\n  maxconn 8192\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n\
             \x20 timeout server 60s\n  http-reuse always\nfrontend edge\n  bind {address}\n{rules}\
             \x20 default_backend origin\nbackend origin\n  server one {}\n",
            origin.address
        ),
    )?;
    ChildProcess::start(name, Command::new("haproxy").arg("-f").arg(&file), address)
}

/// Starts the empty Pingora pass-through, which is this program.
pub(crate) fn passthrough(address: SocketAddr, origin: SocketAddr) -> io::Result<ChildProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("passthrough").args([
        "--listen",
        &address.to_string(),
        "--origin",
        &origin.to_string(),
    ]);
    ChildProcess::start("Pingora, empty", &mut command, address)
}

/// Settings of the gateway. The default is the setup of the cost table.
pub(crate) struct PosternSetup<'a> {
    pub(crate) workers: usize,
    pub(crate) routes: usize,
    /// Lines of `[tokens]`.
    pub(crate) tokens: &'a str,
    /// Upstream of all routes, if not the origin.
    pub(crate) upstream: Option<SocketAddr>,
    /// TOML after the routes.
    pub(crate) more: &'a str,
}

impl Default for PosternSetup<'_> {
    fn default() -> Self {
        Self {
            workers: 1,
            routes: 100,
            tokens: "",
            upstream: None,
            more: "",
        }
    }
}

/// A running gateway.
pub(crate) struct RunningGateway {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) file: PathBuf,
    pub(crate) process: ChildProcess,
}

impl PosternSetup<'_> {
    /// Starts the gateway with all features: RS256, policy, identity headers, limits, metrics, and
    /// an access log to a file.
    pub(crate) fn start(
        &self,
        bench: &BenchRun,
        origin: &OriginServer,
    ) -> io::Result<RunningGateway> {
        let (address, admin) = (free_address()?, free_address()?);
        let file = bench
            .folder()
            .join(format!("postern-{}.toml", address.port()));
        let setup = GatewaySetup {
            workers: self.workers,
            routes: self.routes,
            tokens: self.tokens,
            address,
            admin,
            upstream: self.upstream.unwrap_or(origin.address),
            issuer: &origin.issuer,
            access_log: &bench
                .folder()
                .join(format!("access-{}.log", address.port())),
        };
        fs::write(&file, setup.toml() + self.more)?;
        let mut command = bench.program("postern-proxy")?;
        let process = ChildProcess::start(
            "Postern, all on",
            command.arg("--config").arg(&file),
            address,
        )?;
        let process = ready(process, admin, Duration::from_millis(20))?;
        Ok(RunningGateway {
            address,
            admin,
            file,
            process,
        })
    }
}
