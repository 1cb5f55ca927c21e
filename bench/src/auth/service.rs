use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::bench::{Bench, ready};
use crate::http;
use crate::process::{Process, free_address};

/// The password of everybody here.
pub(super) const PASSWORD: &str = "Correct horse battery 9";

/// An authentication upstream over Redis, with a standalone beside it that is pools, actor service
/// and social provider.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    pub(super) process: Process,
    pub(super) standalone: Process,
    pub(super) redis: String,
    environment: BTreeMap<String, String>,
}

/// Starts a standalone in a folder, on whatever ports are free, and reads the variables that it
/// tells.
pub(super) fn standalone(
    bench: &Bench,
    folder: &Path,
) -> io::Result<(Process, BTreeMap<String, String>)> {
    let file = folder.join("standalone.env");
    // What an earlier start has told is out of date.
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut command = bench.program("postern")?;
    let process = Process::spawn(
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

/// The address in a URL of the environment.
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

/// The command that starts the upstream, and where its two listeners are.
pub(super) fn command(
    bench: &Bench,
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
            "listen = \"{address}\"\nadmin = \"{admin}\"\ndatabase = \"sqlite://{folder}/auth-{}.db\"\ncache = \"{redis}\"\n\
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

impl Service {
    pub(super) fn start(bench: &Bench) -> io::Result<Self> {
        let redis = bench
            .redis
            .clone()
            .ok_or_else(|| io::Error::other("needs --redis URL: start it by bench/run"))?;
        let (standalone, environment) = standalone(bench, &bench.folder().join("standalone"))?;
        let (mut command, address, admin) = command(bench, &environment, &redis)?;
        let process = Process::spawn("postern-auth", &mut command)?;
        let process = ready(process, admin, Duration::from_millis(20))?;
        Ok(Self {
            address,
            process,
            standalone,
            redis,
            environment,
        })
    }

    /// An address in the environment of standalone.
    pub(super) fn address_of(&self, name: &str) -> io::Result<SocketAddr> {
        address(&self.environment, name)
    }

    /// Registers a person; its refresh token.
    pub(super) fn register(&self, email: &str) -> io::Result<String> {
        let body = format!("{{\"email\":\"{email}\",\"password\":\"{PASSWORD}\"}}");
        let answer = http::once(self.address, "POST", "/auth/register", &[], &body)?.expect(201)?;
        Ok(answer.json()["refreshToken"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }
}
