use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use postern_bench::token::{CLIENT_ID, SERVICE_CLIENT_ID};

use crate::bench::{Bench, Origin, ready};
use crate::http;
use crate::load::{Wrk, headers_script};
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
    pub(super) const NULL: Self = Self::Null { permits: 1_000, rate: None };

    fn toml(self, silent: Option<&TcpListener>) -> io::Result<(u32, String)> {
        let head = "[[provider]]\nname = \"carrier\"\nchannel = \"email\"\n";
        Ok(match self {
            Self::Null { permits, rate } => {
                let rate = rate.map_or(String::new(), |rate| format!("rate = {rate}\n"));
                (permits, format!("{head}kind = \"null\"\nconcurrency = {permits}\n{rate}"))
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
        let file = bench.folder().join(format!("notify-{}.toml", address.port()));
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
        let token = origin.signer.service_token(&format!("{issuer}-services"), "bench")?;
        Ok(Self { address, admin, process, token, _silent: silent })
    }

    /// Asks for one notification; its id.
    pub(super) fn post(&self, body: &str) -> io::Result<String> {
        let bearer = format!("Bearer {}", self.token);
        let answer =
            http::once(self.address, "POST", PATH, &[("Authorization", &bearer)], body)?.expect(201)?;
        Ok(answer.json()["notificationId"].as_str().unwrap_or_default().to_owned())
    }

    /// How many attempts have ended.
    pub(super) fn attempts(&self) -> io::Result<f64> {
        self.metric("postern_notify_attempts_total")
    }

    /// The sum of a family of counters.
    pub(super) fn metric(&self, name: &str) -> io::Result<f64> {
        let answer = http::once(self.admin, "GET", "/metrics", &[], "")?.expect(200)?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let values = text.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// A load of requests for notifications.
    pub(super) fn load(&self, seconds: u32) -> Wrk {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        Wrk { connections: CONNECTIONS, seconds, script: headers_script("POST", &headers, BODY) }
    }
}
