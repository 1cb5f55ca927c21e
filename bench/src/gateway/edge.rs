//! Loads of real edge traffic: TLS, HTTP/2, uploads, large responses and new connections, compared
//! with current peers.

use std::fs;
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::bench::{BenchRun, OriginServer};
use crate::edge_origin::{DOCUMENT_BYTES, DOCUMENT_PATH, document};
use crate::figure::{Bound, TargetFigure};
use crate::http::HttpClient;
use crate::http2::Http2Client;
use crate::load::{EdgeProtocol, H2loadLoad, LoadResult, NewConnectionsLoad};
use crate::peers::{self, ORIGIN_RESPONSE, REQUEST_PATH};
use crate::report::{BenchReport, ReportTable, median, ranged, spread};
use crate::rounds::{self, BenchPeer, LoadRequest, PeerRow};
use crate::tls;

/// The route of uploads and of the large response.
const DOCUMENT_ROUTE: &str = "[[route]]\npath = \"/documents/{id}\"\nmethods = [\"GET\", \"POST\"]\n\
                              upstream = \"origin\"\npolicy = { users = \"any\" }\n";

/// Concurrent requests of every load except downloads.
const CONCURRENT_REQUESTS: u32 = 64;

/// Concurrent downloads.
const CONCURRENT_DOWNLOADS: u32 = 16;

/// Concurrent streams of an HTTP/2 connection.
const STREAMS: u32 = 4;

/// What a load transfers.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    /// GET with a response of 127 bytes.
    Small,
    /// POST with a body of this size.
    Upload(usize),
    /// GET with a response of 1 MiB.
    Download,
    /// A new connection, closed after one small GET.
    NewConnection,
}

/// One row of the table.
struct EdgeLoad {
    name: &'static str,
    protocol: EdgeProtocol,
    transfer: Transfer,
}

const fn load(name: &'static str, protocol: EdgeProtocol, transfer: Transfer) -> EdgeLoad {
    EdgeLoad {
        name,
        protocol,
        transfer,
    }
}

/// The rows of the table.
const LOADS: [EdgeLoad; 9] = {
    use EdgeProtocol::{Http1, TlsHttp1, TlsHttp2};
    use Transfer::{Download, NewConnection, Small, Upload};
    [
        load("HTTP/1.1, GET", Http1, Small),
        load("TLS 1.3, HTTP/1.1, GET", TlsHttp1, Small),
        load("TLS 1.3, HTTP/2, GET", TlsHttp2, Small),
        load("HTTP/1.1, POST of 4 KiB", Http1, Upload(4 << 10)),
        load("HTTP/1.1, POST of 64 KiB", Http1, Upload(64 << 10)),
        load(
            "TLS 1.3, HTTP/2, POST of 64 KiB",
            TlsHttp2,
            Upload(64 << 10),
        ),
        load("HTTP/1.1, GET of 1 MiB", Http1, Download),
        load("TLS 1.3, HTTP/2, GET of 1 MiB", TlsHttp2, Download),
        load("new TLS 1.3 connection, one GET", TlsHttp1, NewConnection),
    ]
};

/// What all loads of a run share.
struct EdgeClients<'a> {
    bench: &'a BenchRun,
    token: String,
    http1: Arc<ClientConfig>,
    http2: Http2Client,
}

/// Measures the table.
pub(super) fn traffic(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let (upstream, _origin) = peers::edge_origin()?;
    let peers = peers::all(bench, origin, upstream, DOCUMENT_ROUTE)?;
    let clients = EdgeClients {
        bench,
        token: origin.signer.token(&origin.issuer, 1)?,
        http1: tls::client_config(bench.folder(), tls::HTTP1)?,
        http2: Http2Client::trusting(bench.folder())?,
    };
    let (rounds, seconds) = bench.pick((2, 1), (3, 4));
    let mut summary = Vec::new();
    let mut details = Vec::new();
    for load in &LOADS {
        let title = format!("edge: {}", load.name);
        let run = |peer: &BenchPeer, seconds| clients.run(load, peer, seconds);
        let rows = rounds::interleaved(&title, &peers, rounds, seconds, run)?;
        report.rounds["edge"][load.name] = rounds::json(&rows);
        summary.push(ratios(load.name, &rows));
        details.extend(rows.iter().map(|row| detail(load.name, row)));
        let failed: u64 = rows.iter().map(|row| row.failed).sum();
        report.figures.push(TargetFigure::number(
            &format!("{}: wrong answers", load.name),
            Bound::AtMost(0.0),
            failed as f64,
            "",
        ));
    }
    let columns = ["load"]
        .into_iter()
        .chain(peers.iter().map(|peer| peer.name));
    report.sheets.push(ReportTable {
        title: "Edge traffic: CPU per request, µs, and its ratio to that of the current nginx"
            .to_owned(),
        columns: columns.collect(),
        rows: summary,
    });
    report.sheets.push(ReportTable {
        title: "Edge traffic: median (min to max) of all rounds".to_owned(),
        columns: vec![
            "load",
            "peer",
            "CPU per request, µs",
            "requests/s",
            "p99, ms",
            "failed",
            "other CPU",
        ],
        rows: details,
    });
    Ok(())
}

/// Returns the row of a load in the table of ratios. The first peer is the base.
fn ratios(name: &str, rows: &[PeerRow]) -> Vec<String> {
    let base = rows.first().map_or(f64::NAN, PeerRow::cost);
    let cells = rows.iter().map(|row| {
        let cost = row.cost();
        format!("{cost:.1} (**{:.2}**)", cost / base)
    });
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn detail(name: &str, row: &PeerRow) -> Vec<String> {
    let (least, middle, most) = spread(&row.cpu_us);
    vec![
        name.to_owned(),
        row.name.to_owned(),
        format!("{middle:.1} ({least:.1} to {most:.1})"),
        ranged(&row.per_second),
        ranged(&row.p99_ms),
        row.failed.to_string(),
        format!("{:.0} %", median(&row.foreign_cpu)),
    ]
}

impl EdgeClients<'_> {
    /// Checks one response of a peer byte by byte, then sends the load.
    fn run(&self, load: &EdgeLoad, peer: &BenchPeer, seconds: u32) -> io::Result<LoadResult> {
        self.check(load, peer)?;
        let address = load.address(peer);
        if matches!(load.transfer, Transfer::NewConnection) {
            let request = LoadRequest {
                path: REQUEST_PATH,
                token: &self.token,
                body: ORIGIN_RESPONSE,
            };
            let load = NewConnectionsLoad {
                config: &self.http1,
                request: &request,
            };
            return load.run(address, seconds);
        }
        let concurrent = match load.transfer {
            Transfer::Download => CONCURRENT_DOWNLOADS,
            Transfer::Small | Transfer::Upload(_) | Transfer::NewConnection => CONCURRENT_REQUESTS,
        };
        let streams = match load.protocol {
            EdgeProtocol::TlsHttp2 => STREAMS,
            EdgeProtocol::Http1 | EdgeProtocol::TlsHttp1 => 1,
        };
        let upload = match load.transfer {
            Transfer::Upload(bytes) => {
                let file = self.bench.folder().join(format!("upload-{bytes}"));
                fs::write(&file, document(bytes))?;
                Some(file)
            }
            Transfer::Small | Transfer::Download | Transfer::NewConnection => None,
        };
        let h2load = H2loadLoad {
            protocol: load.protocol,
            connections: concurrent / streams,
            streams,
            path: load.path(),
            token: &self.token,
            upload,
            response_bytes: load.response().len(),
        };
        h2load.run(address, seconds)
    }

    fn check(&self, load: &EdgeLoad, peer: &BenchPeer) -> io::Result<()> {
        let address = load.address(peer);
        let bearer = format!("Bearer {}", self.token);
        let upload = load.upload();
        let length = upload.len().to_string();
        let mut headers = vec![("authorization", bearer.as_str())];
        if !upload.is_empty() {
            headers.push(("content-length", &length));
        }
        let method = if upload.is_empty() { "GET" } else { "POST" };
        let received = match load.protocol {
            EdgeProtocol::Http1 => {
                HttpClient::connect(address)?
                    .send(method, load.path(), &headers, &upload)?
                    .expect(200)?
                    .body
            }
            EdgeProtocol::TlsHttp1 => {
                tls::connect(&self.http1, address)?
                    .send(method, load.path(), &headers, &upload)?
                    .expect(200)?
                    .body
            }
            EdgeProtocol::TlsHttp2 => {
                let mut connection = self.http2.connect(address)?;
                let request = (method, load.path());
                self.http2
                    .ask(&mut connection, request, &headers, &upload)?
            }
        };
        if received == load.response() {
            Ok(())
        } else {
            Err(io::Error::other("the response is wrong"))
        }
    }
}

impl EdgeLoad {
    fn address(&self, peer: &BenchPeer) -> std::net::SocketAddr {
        if self.protocol.is_tls() {
            peer.tls
        } else {
            peer.address
        }
    }

    fn path(&self) -> &'static str {
        match self.transfer {
            Transfer::Small | Transfer::NewConnection => REQUEST_PATH,
            Transfer::Upload(_) | Transfer::Download => DOCUMENT_PATH,
        }
    }

    /// Returns the body of the request, which may be empty.
    fn upload(&self) -> bytes::Bytes {
        match self.transfer {
            Transfer::Upload(bytes) => document(bytes),
            Transfer::Small | Transfer::Download | Transfer::NewConnection => bytes::Bytes::new(),
        }
    }

    /// Returns the body of the correct response.
    fn response(&self) -> bytes::Bytes {
        match self.transfer {
            Transfer::Download => document(DOCUMENT_BYTES),
            Transfer::Small | Transfer::Upload(_) | Transfer::NewConnection => {
                bytes::Bytes::from_static(ORIGIN_RESPONSE.as_bytes())
            }
        }
    }
}
