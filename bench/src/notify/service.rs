use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use postern_bench::token::{CLIENT_ID, SERVICE_CLIENT_ID};

use crate::bench::{Bench, Origin, ready};
use crate::http;
use crate::load::{Seen, Wrk, headers_script};
use crate::postgres::Postgres;
use crate::process::{Process, free_address};

/// What every request asks for.
pub(super) const BODY: &str = r#"{"channel":"email","recipient":{"email":"ada@example.com"},"template":"welcome","variables":{"name":"Ada"}}"#;

/// Where it is asked for.
pub(super) const PATH: &str = "/notifications";

/// Connections that ask: enough for a commit to find a batch.
pub(super) const CONNECTIONS: u32 = 256;

/// Who carries messages.
#[derive(Clone, Copy)]
pub(super) enum Carrier {
    /// Nobody, at once: the null provider, as many at a time as there are permits.
    Null { permits: u32, rate: Option<u32> },
    /// A server that takes the call and never answers: what is accepted waits.
    Never { permits: u32 },
}

/// A notification upstream that runs.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) process: Process,
    pub(super) token: String,
    _silent: Option<TcpListener>,
}

impl Carrier {
    /// The null provider, unhurried.
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

impl Service {
    /// Starts it over a database.
    pub(super) fn start(
        bench: &Bench,
        origin: &Origin,
        database: &str,
        carrier: Carrier,
    ) -> io::Result<Self> {
        let (address, admin) = (free_address()?, free_address()?);
        let silent = match carrier {
            Carrier::Never { .. } => Some(TcpListener::bind("127.0.0.1:0")?),
            Carrier::Null { .. } => None,
        };
        let (permits, provider) = carrier.toml(silent.as_ref())?;
        let (issuer, root) = (&origin.issuer, bench.root.display());
        let file = bench
            .folder()
            .join(format!("notify-{}.toml", address.port()));
        fs::write(
            &file,
            format!(
                "listen = \"{address}\"\nadmin = \"{admin}\"\ndatabase = \"{database}\"\ncache = \"memory:\"\n\
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
        let process = Process::spawn("postern-notify", command.arg("--config").arg(&file))?;
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

    /// Asks for one notification; its id.
    pub(super) fn post(&self, body: &str) -> io::Result<String> {
        let bearer = format!("Bearer {}", self.token);
        let answer = http::once(
            self.address,
            "POST",
            PATH,
            &[("Authorization", &bearer)],
            body,
        )?
        .expect(201)?;
        Ok(answer.json()["notificationId"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// How many a provider has taken, by the service's own count.
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

    /// Waits until all that was accepted is sent, once each, and its count of that is what the
    /// database says.
    pub(super) fn drained(&self, postgres: &Postgres, database: &str) -> io::Result<()> {
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

    /// A load of requests for notifications.
    pub(super) fn load(&self, seconds: u32) -> Wrk {
        let bearer = format!("Bearer {}", self.token);
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        Wrk {
            connections: CONNECTIONS,
            seconds,
            script: headers_script("POST", &headers, BODY),
        }
    }
}

/// A load whose answers failed is no measurement: a fast wrong answer is not a notification.
pub(super) fn all_answered(seen: impl IntoIterator<Item = Seen>) -> io::Result<()> {
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
