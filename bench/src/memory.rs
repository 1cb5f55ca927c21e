//! `bench/run memory`: resident memory of the gateway and its peers: idle, per idle connection,
//! with many tokens.

use std::fs;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure};
use crate::http::{self, HttpClient};
use crate::http2::{Http2Client, Http2Connection};
use crate::load::{EdgeProtocol, WrkLoad, tokens_script};
use crate::peers::{self, ORIGIN_RESPONSE, PosternSetup, REQUEST_PATH, RunningGateway};
use crate::report::{BenchReport, ReportTable, median, progress, ranged};
use crate::rounds::{self, BenchPeer, LoadRequest, range};
use crate::tls::{self, TlsStream};

/// Idle connections opened to each peer.
const IDLE_CONNECTIONS: usize = 4_000;

/// Cached tokens.
const CACHED_TOKENS: u64 = 100_000;

/// Number of starts, because the memory that an allocator retains varies from start to start.
const PROCESS_STARTS: usize = 3;

/// Kinds of idle connections.
const PROTOCOLS: [EdgeProtocol; 3] = [
    EdgeProtocol::Http1,
    EdgeProtocol::TlsHttp1,
    EdgeProtocol::TlsHttp2,
];

/// Measures the table.
pub(crate) fn measure(bench: &BenchRun) -> io::Result<BenchReport> {
    let mut report = BenchReport::new("memory", "Memory", bench);
    report.notes.push(format!("{}.", peers::versions(bench)));
    let origin = bench.origin()?;
    report.part(bench, "connections", |report| {
        connections(bench, &origin, report)
    });
    report.part(bench, "tokens", |report| tokens(bench, &origin, report));
    Ok(report)
}

/// The measurements of one peer, by start.
struct MemoryRow {
    name: &'static str,
    idle_mib: Vec<f64>,
    /// By protocol, in the order of [`PROTOCOLS`].
    each_kib: [Vec<f64>; 3],
}

impl MemoryRow {
    fn json(&self) -> Value {
        let [plain, tls, http2] = &self.each_kib;
        json!({
            "name": self.name, "idleMib": self.idle_mib, "perConnectionKib": plain,
            "perTlsConnectionKib": tls, "perHttp2ConnectionKib": http2,
        })
    }

    fn cells(&self) -> Vec<String> {
        let each = self.each_kib.iter().map(|each| ranged(each));
        [self.name.to_owned(), ranged(&self.idle_mib)]
            .into_iter()
            .chain(each)
            .collect()
    }
}

fn connections(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let clients = IdleClients {
        token: origin.signer.token(&origin.issuer, 1)?,
        http1: tls::client_config(bench.folder(), tls::HTTP1)?,
        http2: Http2Client::trusting(bench.folder())?,
    };
    let starts = bench.pick(1, PROCESS_STARTS);
    let mut rows: Vec<MemoryRow> = Vec::new();
    for start in 1..=starts {
        for (kind, protocol) in PROTOCOLS.into_iter().enumerate() {
            // Fresh processes for each protocol: memory of closed connections would be used again.
            for (at, peer) in peers::all(bench, origin, origin.address, "")?
                .iter()
                .enumerate()
            {
                progress(&format!(
                    "memory: start {start} of {starts}: {} with {IDLE_CONNECTIONS} idle connections, {protocol:?}",
                    peer.name
                ));
                let (idle, each) = clients.measure(peer, protocol).map_err(|error| {
                    io::Error::other(format!("{}, {protocol:?}: {error}", peer.name))
                })?;
                if rows.len() == at {
                    rows.push(MemoryRow {
                        name: peer.name,
                        idle_mib: Vec::new(),
                        each_kib: Default::default(),
                    });
                }
                rows[at].idle_mib.push(idle);
                rows[at].each_kib[kind].push(each);
            }
        }
    }
    progress("");
    report.rounds["connections"] = rows.iter().map(MemoryRow::json).collect();
    report.sheets.push(ReportTable {
        title: format!(
            "Resident memory; {IDLE_CONNECTIONS} idle connections that have asked once; {starts} starts"
        ),
        columns: vec![
            "peer",
            "idle, MiB",
            "per idle connection, KiB",
            "per idle TLS connection, HTTP/1.1, KiB",
            "per idle TLS connection, HTTP/2, KiB",
        ],
        rows: rows.iter().map(MemoryRow::cells).collect(),
    });
    if let Some(ours) = rows.last() {
        let idle = TargetFigure::number(
            "memory: idle",
            Bound::AtMost(30.0),
            median(&ours.idle_mib),
            " MiB",
        );
        report.figures.push(idle.noting(&range(&ours.idle_mib)));
        let each = median(&ours.each_kib[0]);
        let figure = TargetFigure::number(
            "memory: per idle connection",
            Bound::AtMost(16.0),
            each,
            " KiB",
        );
        report
            .figures
            .push(figure.noting(&range(&ours.each_kib[0])));
    }
    Ok(())
}

/// Opens the connections.
struct IdleClients {
    token: String,
    http1: Arc<ClientConfig>,
    http2: Http2Client,
}

/// Open connections, which are closed when dropped.
enum OpenConnections {
    Http1(Vec<HttpClient>),
    TlsHttp1(Vec<HttpClient<TlsStream>>),
    TlsHttp2(Vec<Http2Connection>),
}

impl OpenConnections {
    fn len(&self) -> usize {
        match self {
            Self::Http1(all) => all.len(),
            Self::TlsHttp1(all) => all.len(),
            Self::TlsHttp2(all) => all.len(),
        }
    }
}

impl IdleClients {
    /// Measures MiB when idle, and KiB per idle connection.
    fn measure(&self, peer: &BenchPeer, protocol: EdgeProtocol) -> io::Result<(f64, f64)> {
        let idle = peer.process.resident_kib()? as f64 / 1024.0;
        // The first requests allocate pools, caches and thread buffers once.
        let warm = self.open(peer, protocol, 200)?;
        let before = peer.process.resident_kib()?;
        let held = self.open(peer, protocol, IDLE_CONNECTIONS)?;
        let added = peer.process.resident_kib()?.saturating_sub(before) as f64;
        let each = added / held.len() as f64;
        drop((warm, held));
        Ok((idle, each))
    }

    /// Opens connections, sends one request on each, and checks the response.
    fn open(
        &self,
        peer: &BenchPeer,
        protocol: EdgeProtocol,
        count: usize,
    ) -> io::Result<OpenConnections> {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("authorization", bearer.as_str())];
        let one = (0..count).map(|_| ());
        Ok(match protocol {
            EdgeProtocol::Http1 => OpenConnections::Http1(
                one.map(|()| ask(HttpClient::connect(peer.address)?, &headers))
                    .collect::<Result<_, _>>()?,
            ),
            EdgeProtocol::TlsHttp1 => OpenConnections::TlsHttp1(
                one.map(|()| ask(tls::connect(&self.http1, peer.tls)?, &headers))
                    .collect::<Result<_, _>>()?,
            ),
            EdgeProtocol::TlsHttp2 => OpenConnections::TlsHttp2(
                one.map(|()| {
                    let mut connection = self.http2.connect(peer.tls)?;
                    let request = ("GET", REQUEST_PATH);
                    let body = self.http2.ask(&mut connection, request, &headers, b"")?;
                    expect_origin_response(&body)?;
                    Ok(connection)
                })
                .collect::<io::Result<_>>()?,
            ),
        })
    }
}

fn ask<S: Read + Write>(
    mut client: HttpClient<S>,
    headers: &[(&str, &str)],
) -> io::Result<HttpClient<S>> {
    let answer = client.ask("GET", REQUEST_PATH, headers, "")?.expect(200)?;
    expect_origin_response(&answer.body)?;
    Ok(client)
}

fn expect_origin_response(body: &[u8]) -> io::Result<()> {
    if body == ORIGIN_RESPONSE.as_bytes() {
        Ok(())
    } else {
        Err(io::Error::other("the response is wrong"))
    }
}

/// Measures many different tokens, each verified once. They are signed with Ed25519, because
/// 100,000 RSA signatures take minutes, and padded to the length of RS256 tokens.
fn tokens(bench: &BenchRun, origin: &OriginServer, report: &mut BenchReport) -> io::Result<()> {
    progress(&format!("memory: {CACHED_TOKENS} tokens are signed"));
    let made: Vec<String> = (0..CACHED_TOKENS)
        .map(|serial| origin.signer.cheap_token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = bench.folder().join("many-tokens");
    fs::write(&file, made.join("\n"))?;
    let load = WrkLoad {
        connections: 32,
        seconds: 5,
        script: tokens_script(&file, REQUEST_PATH),
    };
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &made[0],
        body: ORIGIN_RESPONSE,
    };
    let (mut resident, mut entries, mut failed) = (Vec::new(), Vec::new(), 0);
    for _ in 0..bench.pick(1, PROCESS_STARTS) {
        let how = PosternSetup {
            tokens: "cache_bytes = \"256MiB\"",
            ..PosternSetup::default()
        };
        let gateway = how.start(bench, origin)?;
        failed += send_tokens(bench, &gateway, &question, &load)?;
        // The gauges are updated periodically.
        std::thread::sleep(Duration::from_secs(6));
        resident.push(gateway.process.resident_kib()? as f64 / 1024.0);
        entries.push(cached(&gateway)?);
    }
    progress("");
    report.rounds["tokens"] = json!({"residentMib": resident, "cached": entries, "failed": failed});
    let what = "memory: with 100,000 tokens cached";
    let figure = rounds::figure(
        what,
        Bound::AtMost(120.0),
        median(&resident),
        " MiB",
        failed,
    );
    report.figures.push(figure.noting(&format!(
        "{}; {} in the cache",
        range(&resident),
        ranged(&entries)
    )));
    Ok(())
}

/// Sends all tokens and returns the number of failed requests.
fn send_tokens(
    bench: &BenchRun,
    gateway: &RunningGateway,
    question: &LoadRequest<'_>,
    load: &WrkLoad,
) -> io::Result<u64> {
    let answer_bytes = question.answer_bytes("Postern, all on", gateway.address)?;
    let (mut asked, mut failed, mut seconds) = (0, 0, load.seconds);
    while asked < CACHED_TOKENS * 11 / 10 {
        progress(&format!(
            "memory: {asked} of {CACHED_TOKENS} tokens are shown"
        ));
        if seconds > 60 {
            return Err(io::Error::other(format!(
                "only {asked} of {CACHED_TOKENS} tokens could be shown"
            )));
        }
        // Each run begins at the first token again; cached ones are fast.
        let seen = load
            .lasting(seconds)
            .run(bench.folder(), gateway.address, REQUEST_PATH)?;
        let seen = seen.hold_to(answer_bytes, load.connections);
        asked = seen.requests;
        failed += seen.failed;
        seconds *= 2;
    }
    Ok(failed)
}

/// Returns the number of cached tokens, from the gateway's metrics.
fn cached(gateway: &RunningGateway) -> io::Result<f64> {
    let answer = http::once(gateway.admin, "GET", "/metrics", &[], "")?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("postern_proxy_token_cache_entries "));
    Ok(line
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or(f64::NAN))
}
