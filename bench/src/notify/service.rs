use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use postern_bench::token::{CLIENT_ID, SERVICE_CLIENT_ID};

use crate::bench::{BenchRun, OriginServer, ready};
use crate::http;
use crate::load::{LoadResult, WrkLoad, headers_script};
use crate::postgres::PostgresServer;
use crate::process::{ChildProcess, free_address};

/// Body of every request.
pub(super) const REQUEST_BODY: &str = r#"{"channel":"email","recipient":{"email":"ada@example.com"},"template":"welcome","variables":{"name":"Ada"}}"#;

/// Path of every request.
pub(super) const NOTIFICATIONS_PATH: &str = "/notifications";

/// Connections of the load: enough to fill a batch during a commit.
pub(super) const LOAD_CONNECTIONS: u32 = 256;

/// The provider of a run.
#[derive(Clone, Copy)]
pub(super) enum ProviderKind {
    /// The null provider, which responds at once, with up to `permits` concurrent calls.
    Null { permits: u32, rate: Option<u32> },
    /// A server that accepts calls and never responds, so that notifications wait.
    Never { permits: u32 },
}

/// A running notification upstream.
pub(super) struct NotifyService {
    pub(super) address: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) process: ChildProcess,
    pub(super) token: String,
    _silent: Option<TcpListener>,
}

impl ProviderKind {
    /// The null provider without a rate limit.
    pub(super) const NULL: Self = Self::Null {
        permits: 3_000,
        rate: None,
    };

    fn toml(self, silent: Option<&TcpListener>) -> io::Result<(u32, String)> {
        let head = "[[provider]]\nname = \"carrier\"\nchannel = \"email\"\n";
        Ok(match self {
            Self::Null { permits, rate } => {
                let rate = rate.map_or(String::new(), |rate| format!("rate = {rate}\n"));
                (
                    permits,
                    format!("{head}kind = \"null\"\nconcurrency = {permits}\n{rate}"),
                )
            }
            Self::Never { permits } => {
                let address = match silent {
                    Some(listener) => listener.local_addr()?,
                    None => free_address()?,
                };
                let http = format!(
                    "kind = \"http\"\nurl = \"http://{address}/\"\nbody = '''{{\"to\": {{{{ to }}}}}}'''\n"
                );
                (permits, format!("{head}{http}concurrency = {permits}\n"))
            }
        })
    }
}

impl NotifyService {
    /// Starts the service with a database.
    pub(super) fn start(
        bench: &BenchRun,
        origin: &OriginServer,
        database: &str,
        carrier: ProviderKind,
    ) -> io::Result<Self> {
        let (address, admin) = (free_address()?, free_address()?);
        let silent = match carrier {
            ProviderKind::Never { .. } => Some(TcpListener::bind("127.0.0.1:0")?),
            ProviderKind::Null { .. } => None,
        };
        let (permits, provider) = carrier.toml(silent.as_ref())?;
        let (issuer, root) = (&origin.issuer, bench.root.display());
        let file = bench
            .folder()
            .join(format!("notify-{}.toml", address.port()));
        fs::write(
            &file,
            format!(
                "listen = [{{ address = \"{address}\" }}]\nadmin = {{ address = \"{admin}\" }}\ndatabase = \"{database}\"\ncache = \"memory:\"\n\
                 actor_service = \"http://{}\"\n\
                 [identity.actor]\npool_id = \"us-west-2_Actor0001\"\nclient_id = \"{CLIENT_ID}\"\nissuer = \"{issuer}\"\n\
                 [identity.service]\npool_id = \"us-west-2_Service01\"\nclient_id = \"{SERVICE_CLIENT_ID}\"\n\
                 issuer = \"{issuer}-services\"\njwks_url = \"{issuer}/.well-known/jwks.json\"\n\
                 [templates]\nfolder = \"{root}/conf/templates\"\n[queue]\nemail_permits = {permits}\n\
                 [log]\nfilter = \"warn\"\n{provider}",
                origin.address
            ),
        )?;
        let mut command = bench.program("postern-notify")?;
        let process = ChildProcess::spawn("postern-notify", command.arg("--config").arg(&file))?;
        let process = ready(process, admin, Duration::from_millis(5))?;
        let token = origin
            .signer
            .service_token(&format!("{issuer}-services"), "bench")?;
        Ok(Self {
            address,
            admin,
            process,
            token,
            _silent: silent,
        })
    }

    /// Requests one notification and returns its id.
    pub(super) fn post(&self, body: &str) -> io::Result<String> {
        let bearer = format!("Bearer {}", self.token);
        let answer = http::once(
            self.address,
            "POST",
            NOTIFICATIONS_PATH,
            &[("Authorization", &bearer)],
            body,
        )?
        .expect(201)?;
        Ok(answer.json()["notificationId"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Returns the number of sent notifications, from the service's metrics.
    pub(super) fn sent(&self) -> io::Result<f64> {
        let answer = http::once(self.admin, "GET", "/metrics", &[], "")?.expect(200)?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let sent = text.lines().filter(|line| {
            line.starts_with("postern_notify_attempts_total{") && line.contains("outcome=\"sent\"")
        });
        Ok(sent
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    }

    /// Waits until all accepted notifications are sent, exactly once each, and the service's count
    /// matches the database.
    pub(super) fn drained(&self, postgres: &PostgresServer, database: &str) -> io::Result<()> {
        let began = Instant::now();
        loop {
            let accepted = postgres.number(database, "SELECT count(*) FROM notify_record")?;
            let stored = postgres.number(
                database,
                "SELECT count(*) FROM notify_result WHERE kind = 2",
            )?;
            let counted = self.sent()?;
            if (accepted - stored).abs() < 0.5 && (stored - counted).abs() < 0.5 {
                return Ok(());
            }
            if began.elapsed() > Duration::from_secs(120) {
                return Err(io::Error::other(format!(
                    "of {accepted} accepted {stored} are stored as sent and {counted} are counted after two minutes"
                )));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns a load of requests for notifications.
    pub(super) fn load(&self, seconds: u32) -> WrkLoad {
        let bearer = format!("Bearer {}", self.token);
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        WrkLoad {
            connections: LOAD_CONNECTIONS,
            seconds,
            script: headers_script("POST", &headers, REQUEST_BODY),
        }
    }
}

/// Checks that no request failed: a load with failed requests is not a measurement.
pub(super) fn all_answered(seen: impl IntoIterator<Item = LoadResult>) -> io::Result<()> {
    let (failed, requests) = seen.into_iter().fold((0, 0), |(failed, requests), seen| {
        (failed + seen.failed, requests + seen.requests)
    });
    if failed > 0 || requests == 0 {
        return Err(io::Error::other(format!(
            "{failed} of {requests} answers failed"
        )));
    }
    Ok(())
}
