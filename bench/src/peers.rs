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
use crate::host;
use crate::process::{ChildProcess, free_address};
use crate::rounds::BenchPeer;

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
    nginx("origin", folder, address, &body)
}

/// Where a peer comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerRelease {
    /// The package that is installed on this system.
    System,
    /// The package of Debian's unstable suite, unpacked by `bench/peers/install-current`.
    Current,
}

impl PeerRelease {
    /// Returns the path or name of a program.
    pub(crate) fn program(self, bench: &BenchRun, name: &str) -> PathBuf {
        match self {
            Self::System => PathBuf::from(name),
            Self::Current => bench.tools.join("current").join(name),
        }
    }
}

/// Returns the versions of all peers, for the notes of a report.
pub(crate) fn versions(bench: &BenchRun) -> String {
    let releases = [PeerRelease::System, PeerRelease::Current];
    let lines = releases.into_iter().flat_map(|release| {
        [("nginx", "-v"), ("haproxy", "-v")].map(|(name, argument)| {
            host::line(
                &release.program(bench, name).display().to_string(),
                &[argument],
            )
        })
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// Starts all peers of the edge loads, the base of the ratios first and the gateway last. `more` is
/// TOML after the gateway's routes.
pub(crate) fn all(
    bench: &BenchRun,
    origin: &OriginServer,
    upstream: SocketAddr,
    more: &str,
) -> io::Result<[BenchPeer; 6]> {
    let gateway = PosternSetup {
        upstream: Some(upstream),
        more,
        ..PosternSetup::default()
    };
    let named = |peer: io::Result<BenchPeer>, name| Ok::<_, io::Error>(BenchPeer { name, ..peer? });
    let (current, system) = (PeerRelease::Current, PeerRelease::System);
    Ok([
        named(nginx_proxy(bench, current, upstream), "nginx, current")?,
        named(nginx_proxy(bench, system, upstream), "nginx, system")?,
        named(haproxy(bench, current, upstream), "HAProxy, current")?,
        named(haproxy(bench, system, upstream), "HAProxy, system")?,
        passthrough(bench, upstream)?,
        gateway.start(bench, origin)?.into_peer("Postern, all on"),
    ])
}

/// Starts nginx as a proxy without authentication, the base of every ratio.
pub(crate) fn nginx_proxy(
    bench: &BenchRun,
    release: PeerRelease,
    origin: SocketAddr,
) -> io::Result<BenchPeer> {
    let template = match release {
        PeerRelease::System => include_str!("../peers/nginx-system.conf"),
        PeerRelease::Current => include_str!("../peers/nginx-current.conf"),
    };
    let listen = ListenAddresses::free()?;
    let text = filled(template, bench.folder(), listen, origin, "");
    let file = bench
        .folder()
        .join(format!("nginx-{}.conf", listen.plain.port()));
    fs::write(&file, text)?;
    let mut command = Command::new(release.program(bench, "nginx"));
    listen.start("nginx, no auth", command.arg("-c").arg(&file))
}

fn nginx(
    name: &'static str,
    folder: &Path,
    address: SocketAddr,
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
             server {{ listen {address}; {locations} }} }}\n"
        ),
    )?;
    ChildProcess::start(name, Command::new("nginx").arg("-c").arg(&file), address)
}

/// Starts HAProxy without authentication.
pub(crate) fn haproxy(
    bench: &BenchRun,
    release: PeerRelease,
    origin: SocketAddr,
) -> io::Result<BenchPeer> {
    start_haproxy("HAProxy, no auth", bench, release, origin, "")
}

/// Starts HAProxy with verification of RS256, issuer and expiry on every request; it has no token
/// cache.
pub(crate) fn haproxy_rs256(bench: &BenchRun, origin: &OriginServer) -> io::Result<BenchPeer> {
    let key = bench.folder().join("haproxy-key.pem");
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
    let release = PeerRelease::System;
    start_haproxy("HAProxy, RS256", bench, release, origin.address, &rules)
}

fn start_haproxy(
    name: &'static str,
    bench: &BenchRun,
    release: PeerRelease,
    origin: SocketAddr,
    rules: &str,
) -> io::Result<BenchPeer> {
    let template = match release {
        PeerRelease::System => include_str!("../peers/haproxy-system.cfg"),
        PeerRelease::Current => include_str!("../peers/haproxy-current.cfg"),
    };
    let listen = ListenAddresses::free()?;
    let text = filled(template, bench.folder(), listen, origin, rules);
    let file = bench
        .folder()
        .join(format!("haproxy-{}.cfg", listen.plain.port()));
    fs::write(&file, text)?;
    let mut command = Command::new(release.program(bench, "haproxy"));
    listen.start(name, command.arg("-f").arg(&file))
}

/// Listening addresses of a proxy.
#[derive(Clone, Copy)]
struct ListenAddresses {
    plain: SocketAddr,
    tls: SocketAddr,
}

impl ListenAddresses {
    fn free() -> io::Result<Self> {
        Ok(Self {
            plain: free_address()?,
            tls: free_address()?,
        })
    }

    fn start(self, name: &'static str, command: &mut Command) -> io::Result<BenchPeer> {
        Ok(BenchPeer {
            name,
            address: self.plain,
            tls: self.tls,
            process: ChildProcess::start(name, command, self.plain)?,
        })
    }
}

/// Fills in the names between at signs.
fn filled(
    template: &str,
    folder: &Path,
    listen: ListenAddresses,
    origin: SocketAddr,
    rules: &str,
) -> String {
    template
        .replace("@folder@", &folder.display().to_string())
        .replace("@port@", &listen.plain.port().to_string())
        .replace("@address@", &listen.plain.to_string())
        .replace("@tls@", &listen.tls.to_string())
        .replace("@origin@", &origin.to_string())
        .replace("@rules@", rules)
}

/// Starts the empty Pingora pass-through, which is this program.
pub(crate) fn passthrough(bench: &BenchRun, origin: SocketAddr) -> io::Result<BenchPeer> {
    let listen = ListenAddresses::free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("passthrough")
        .args(["--listen", &listen.plain.to_string()])
        .args(["--tls", &listen.tls.to_string()])
        .args(["--origin", &origin.to_string()])
        .arg("--certificate")
        .arg(bench.folder().join("server.pem"))
        .arg("--key")
        .arg(bench.folder().join("server.key"));
    listen.start("Pingora, empty", &mut command)
}

/// Starts the origin of the edge loads, which is this program.
pub(crate) fn edge_origin() -> io::Result<(SocketAddr, ChildProcess)> {
    let address = free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["edge-origin", "--listen", &address.to_string()]);
    let process = ChildProcess::start("origin", &mut command, address)?;
    Ok((address, process))
}

/// Variable with the secret of the admin routes.
pub(crate) const ADMIN_TOKEN_ENV: &str = "BENCH_ADMIN_TOKEN";

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
    /// The secret of the admin routes, if they are offered.
    pub(crate) admin_token: Option<&'a str>,
}

impl Default for PosternSetup<'_> {
    fn default() -> Self {
        Self {
            workers: 1,
            routes: 100,
            tokens: "",
            upstream: None,
            more: "",
            admin_token: None,
        }
    }
}

/// A running gateway.
pub(crate) struct RunningGateway {
    pub(crate) address: SocketAddr,
    /// Listener with TLS.
    pub(crate) tls: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) file: PathBuf,
    pub(crate) process: ChildProcess,
}

impl RunningGateway {
    pub(crate) fn into_peer(self, name: &'static str) -> BenchPeer {
        BenchPeer {
            name,
            address: self.address,
            tls: self.tls,
            process: self.process,
        }
    }
}

impl PosternSetup<'_> {
    /// Starts the gateway with all features: RS256, policy, identity headers, limits, metrics, and
    /// an access log to a file.
    pub(crate) fn start(
        &self,
        bench: &BenchRun,
        origin: &OriginServer,
    ) -> io::Result<RunningGateway> {
        let ListenAddresses {
            plain: address,
            tls,
        } = ListenAddresses::free()?;
        let admin = free_address()?;
        let file = bench
            .folder()
            .join(format!("postern-{}.toml", address.port()));
        let setup = GatewaySetup {
            workers: self.workers,
            routes: self.routes,
            tokens: self.tokens,
            address,
            tls: Some((tls, bench.folder())),
            admin,
            admin_token_env: self.admin_token.map(|_| ADMIN_TOKEN_ENV),
            upstream: self.upstream.unwrap_or(origin.address),
            issuer: &origin.issuer,
            access_log: &bench
                .folder()
                .join(format!("access-{}.log", address.port())),
        };
        fs::write(&file, setup.toml() + self.more)?;
        let mut command = bench.program("postern-proxy")?;
        if let Some(token) = self.admin_token {
            command.env(ADMIN_TOKEN_ENV, token);
        }
        let process = ChildProcess::start(
            "Postern, all on",
            command.arg("--config").arg(&file),
            address,
        )?;
        let process = ready(process, admin, Duration::from_millis(20))?;
        Ok(RunningGateway {
            address,
            tls,
            admin,
            file,
            process,
        })
    }
}
