use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::bench::{BenchRun, ready};
use crate::http;
use crate::process::{ChildProcess, free_address};

/// Password of all users.
pub(super) const PASSWORD: &str = "Correct horse battery 9";

/// An authentication upstream with Redis, and a standalone process as pools, actor service and
/// social provider.
pub(super) struct AuthService {
    pub(super) address: SocketAddr,
    pub(super) process: ChildProcess,
    pub(super) standalone: ChildProcess,
    pub(super) redis: String,
    environment: BTreeMap<String, String>,
}

/// Starts a standalone process in `folder` on free ports, and reads the variables that it writes.
pub(super) fn standalone(
    bench: &BenchRun,
    folder: &Path,
) -> io::Result<(ChildProcess, BTreeMap<String, String>)> {
    let file = folder.join("standalone.env");
    // An earlier start may have left an outdated file.
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut command = bench.program("postern")?;
    let process = ChildProcess::spawn(
        "postern",
        command.args(["--port", "0", "--data-dir"]).arg(folder),
    )?;
    let process = process.until(Duration::from_millis(20), || file.exists())?;
    let text = fs::read_to_string(&file)?;
    let pairs = text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
        Some((name.to_owned(), value.trim_matches('\'').to_owned()))
    });
    let environment: BTreeMap<String, String> = pairs.collect();
    let admin = address(&environment, "POSTERN_PROXY_ADMIN_URL")?;
    Ok((
        ready(process, admin, Duration::from_millis(20))?,
        environment,
    ))
}

/// Returns the address of a URL in the environment.
pub(super) fn address(
    environment: &BTreeMap<String, String>,
    name: &str,
) -> io::Result<SocketAddr> {
    let url = environment
        .get(name)
        .map(String::as_str)
        .unwrap_or_default();
    let text = url
        .trim_start_matches("http://")
        .split('/')
        .next()
        .unwrap_or_default();
    text.parse()
        .map_err(|_| io::Error::other(format!("standalone.env: {name} is {url:?}")))
}

/// Returns the command that starts the upstream, and its two addresses.
pub(super) fn command(
    bench: &BenchRun,
    environment: &BTreeMap<String, String>,
    redis: &str,
) -> io::Result<(Command, SocketAddr, SocketAddr)> {
    let (address, admin) = (free_address()?, free_address()?);
    let file = bench.folder().join(format!("auth-{}.toml", address.port()));
    let url = |name: &str| environment.get(name).cloned().unwrap_or_default();
    let folder = bench.folder().display();
    fs::write(
        &file,
        format!(
            "listen = [{{ address = \"{address}\" }}]\nadmin = {{ address = \"{admin}\" }}\ndatabase = \"sqlite://{folder}/auth-{}.db\"\ncache = \"{redis}\"\n\
             actor_service = \"{}\"\n\
             [abuse]\naccount = 1000000\naddress = 1000000\nnetwork = 1000000\nall = 1000000\n\
             sign_ins = 1000000\n\
             [log]\nfilter = \"error\"\n\
             [social]\nprovider = \"development\"\nissuer = \"{}\"\n\
             redirect_uri = \"{}/auth/social/login/callback\"\nui = \"{}/\"\n\
             scopes = [\"openid\", \"email\", \"profile\"]\n",
            address.port(),
            url("POSTERN_ACTOR_URL"),
            url("POSTERN_SOCIAL_URL"),
            url("POSTERN_URL"),
            url("POSTERN_URL"),
        ),
    )?;
    let mut command = bench.program("postern-auth")?;
    command.envs(environment).arg("--config").arg(&file);
    Ok((command, address, admin))
}

impl AuthService {
    pub(super) fn start(bench: &BenchRun) -> io::Result<Self> {
        let redis = bench
            .redis
            .clone()
            .ok_or_else(|| io::Error::other("--redis URL is required: run bench/run"))?;
        let (standalone, environment) = standalone(bench, &bench.folder().join("standalone"))?;
        let (mut command, address, admin) = command(bench, &environment, &redis)?;
        let process = ChildProcess::spawn("postern-auth", &mut command)?;
        let process = ready(process, admin, Duration::from_millis(20))?;
        Ok(Self {
            address,
            process,
            standalone,
            redis,
            environment,
        })
    }

    /// Returns the address of a URL in the standalone process's environment.
    pub(super) fn address_of(&self, name: &str) -> io::Result<SocketAddr> {
        address(&self.environment, name)
    }

    /// Registers a user and returns the refresh token.
    pub(super) fn register(&self, email: &str) -> io::Result<String> {
        let body = format!("{{\"email\":\"{email}\",\"password\":\"{PASSWORD}\"}}");
        let answer = http::once(self.address, "POST", "/auth/register", &[], &body)?.expect(201)?;
        Ok(answer.json()["refreshToken"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }
}
