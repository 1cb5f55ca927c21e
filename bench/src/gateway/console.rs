//! What the web console costs the gateway: CPU with its busiest pages open, and memory with the live
//! tail at a high rate.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

use super::latency::saturate;
use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure};
use crate::host::ForeignCpuMonitor;
use crate::http;
use crate::load::{LoadPace, PacedResult};
use crate::peers::{ADMIN_TOKEN_ENV, ORIGIN_RESPONSE, PosternSetup, REQUEST_PATH};
use crate::process::{ChildProcess, free_address};
use crate::report::{BenchReport, ReportTable, median, progress, ranged};
use crate::rounds::{BenchPeer, LoadRequest, paired};

const ADMIN_TOKEN: &str = "the secret of the admin routes in this benchmark";
/// The pages with the most events: the live tail, and the overview.
const PAGES: [&str; 2] = ["/live/requests", "/live/fragments/overview"];
/// Fraction of the saturation rate at which the cost is measured.
const FRACTION: f64 = 0.5;
/// Requests per second at which memory is measured.
const TAIL_RATE: u32 = 10_000;
/// Time between the opening of the pages and the measurement: until the overview is sent again.
const WARM_UP: Duration = Duration::from_secs(6);
/// Time after which a page looks whether it is closed.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// The console with its busiest pages open, which are closed when it is dropped.
struct OpenConsole {
    process: ChildProcess,
    pages: Vec<OpenPage>,
}

/// A page that a browser would keep open, and what it has received.
struct OpenPage {
    is_closed: Arc<AtomicBool>,
    events: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    reader: Option<JoinHandle<()>>,
}

/// Measures both.
pub(super) fn open_pages(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let setup = PosternSetup {
        admin_token: Some(ADMIN_TOKEN),
        ..PosternSetup::default()
    };
    let gateway = setup.start(bench, origin)?;
    let admin = gateway.admin;
    let peer = gateway.into_peer("Postern, all on");
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &token,
        body: ORIGIN_RESPONSE,
    };
    let issuer = format!("{}-services", origin.issuer);
    let operator = origin.signer.service_token(&issuer, "console")?;
    let open = || OpenConsole::start(bench, admin, &operator);
    cost(bench, &peer, &question, &open, report)?;
    memory(bench, &peer, &question, &open, report)
}

/// Measures the CPU of the gateway at half of the saturation rate, in turn without a console and
/// with the pages open.
fn cost(
    bench: &BenchRun,
    peer: &BenchPeer,
    question: &LoadRequest<'_>,
    open: &dyn Fn() -> io::Result<OpenConsole>,
    report: &mut BenchReport,
) -> io::Result<()> {
    let saturation = saturate(bench, peer, question)?;
    let pace = LoadPace {
        per_second: (median(&saturation) * FRACTION) as u32,
        seconds: bench.pick(3, 10),
    };
    let (rounds, foreign_cpu) = (bench.pick(3, 15), ForeignCpuMonitor::watch()?);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        progress(&format!(
            "console: round {round} of {rounds}: {}/s",
            pace.per_second
        ));
        without.push(cpu_percent(peer, question, pace)?);
        let console = open()?;
        thread::sleep(WARM_UP);
        with.push(cpu_percent(peer, question, pace)?);
        console.expect_events()?;
    }
    progress("");
    let rows = [("no console", &without), ("two pages open", &with)];
    report.sheets.push(ReportTable {
        title: format!(
            "CPU of the gateway at {} requests per second, half of the saturation rate (other processes used {:.0} % of a core)",
            pace.per_second,
            foreign_cpu.percent()?
        ),
        columns: vec!["", "percent of a core"],
        rows: rows
            .map(|(name, values)| vec![name.to_owned(), ranged(values)])
            .into(),
    });
    report.rounds["console"] =
        json!({ "perSecond": pace.per_second, "without": without, "with": with });
    let added: Vec<f64> = with
        .iter()
        .zip(&without)
        .map(|(with, without)| with - without)
        .collect();
    let what =
        "console with its busiest pages open, half of the saturation rate: CPU of the gateway";
    let figure = TargetFigure::number(what, Bound::AtMost(1.0), median(&added), " % of a core");
    let note = format!("{} times", ranged(&paired(&with, &without)));
    report.figures.push(figure.noting(&note));
    Ok(())
}

/// Returns the CPU of the gateway during one run, in percent of a core.
fn cpu_percent(peer: &BenchPeer, question: &LoadRequest<'_>, pace: LoadPace) -> io::Result<f64> {
    let (before, began) = (peer.process.cpu_ns()?, Instant::now());
    let seen = PacedResult::run(peer.name, peer.address, question, pace)?;
    let spent = peer.process.cpu_ns()?.saturating_sub(before) as f64;
    match seen.is_rate_achieved() {
        true => Ok(100.0 * spent / began.elapsed().as_nanos() as f64),
        false => Err(io::Error::other("the rate was not kept")),
    }
}

/// Measures the memory that the live tail needs at [`TAIL_RATE`], in the gateway and in the console,
/// and what it drops.
fn memory(
    bench: &BenchRun,
    peer: &BenchPeer,
    question: &LoadRequest<'_>,
    open: &dyn Fn() -> io::Result<OpenConsole>,
    report: &mut BenchReport,
) -> io::Result<()> {
    let pace = LoadPace {
        per_second: TAIL_RATE,
        seconds: bench.pick(3, 20),
    };
    progress(&format!("console: live tail at {TAIL_RATE}/s"));
    let rated = |pace| PacedResult::run(peer.name, peer.address, question, pace);
    rated(pace)?;
    let resident =
        |process: &ChildProcess| Ok::<_, io::Error>(process.resident_kib()? as f64 / 1024.0);
    let before = resident(&peer.process)?;
    let console = open()?;
    thread::sleep(WARM_UP);
    let console_before = resident(&console.process)?;
    let seen = rated(pace)?;
    let gateway_mib = resident(&peer.process)? - before;
    let console_mib = resident(&console.process)? - console_before;
    progress("");
    let tail = &console.pages[0];
    let (events, dropped) = (
        tail.events.load(Ordering::Relaxed),
        tail.dropped.load(Ordering::Relaxed),
    );
    if !seen.is_rate_achieved() || events == 0 || dropped == 0 {
        return Err(io::Error::other(format!(
            "{} of {} requests, {events} events, {dropped} dropped",
            seen.requests, seen.asked
        )));
    }
    report.sheets.push(ReportTable {
        title: format!(
            "Live tail at {TAIL_RATE} requests per second for {} s",
            pace.seconds
        ),
        columns: vec!["", "value"],
        rows: vec![
            vec!["gateway, added MiB".to_owned(), format!("{gateway_mib:.1}")],
            vec!["console, added MiB".to_owned(), format!("{console_mib:.1}")],
            vec!["events shown".to_owned(), events.to_string()],
            vec!["events dropped and counted".to_owned(), dropped.to_string()],
        ],
    });
    let what =
        format!("live tail at {TAIL_RATE} requests per second: memory of gateway and console");
    let added = gateway_mib.max(0.0) + console_mib.max(0.0);
    let figure = TargetFigure::number(&what, Bound::AtMost(20.0), added, " MiB");
    report.figures.push(figure);
    Ok(())
}

// === impl OpenConsole ===

impl OpenConsole {
    fn start(bench: &BenchRun, admin: SocketAddr, token: &str) -> io::Result<Self> {
        let address = free_address()?;
        let file = bench
            .folder()
            .join(format!("console-{}.toml", address.port()));
        fs::write(
            &file,
            format!(
                "[[listen]]\naddress = \"{address}\"\n[roles.operator]\nservices = [\"console\"]\n\
                 [[process]]\nkind = \"gateway\"\nurls = [\"http://{admin}\"]\ntoken_env = \"{ADMIN_TOKEN_ENV}\"\n"
            ),
        )?;
        let mut command = bench.program("postern-console")?;
        command.arg("--config").arg(&file);
        command.env(ADMIN_TOKEN_ENV, ADMIN_TOKEN);
        let process = ChildProcess::spawn("console", &mut command)?;
        let process = process.until(Duration::from_millis(20), || {
            http::once(address, "GET", "/livez", &[], "").is_ok_and(|answer| answer.status == 200)
        })?;
        let pages = PAGES.map(|path| OpenPage::open(address, path, token));
        let pages = pages.into_iter().collect::<io::Result<_>>()?;
        Ok(Self { process, pages })
    }

    /// Checks that each page has received something.
    fn expect_events(&self) -> io::Result<()> {
        for (page, path) in self.pages.iter().zip(PAGES) {
            if page.events.load(Ordering::Relaxed) == 0 {
                return Err(io::Error::other(format!("{path} received nothing")));
            }
        }
        Ok(())
    }
}

// === impl OpenPage ===

impl OpenPage {
    fn open(address: SocketAddr, path: &str, token: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let (events, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let page = (is_closed.clone(), events.clone(), dropped.clone());
        let reader = thread::spawn(move || follow(stream, &page.0, &page.1, &page.2));
        Ok(Self {
            is_closed,
            events,
            dropped,
            reader: Some(reader),
        })
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _panicked = reader.join();
        }
    }
}

/// Reads a stream of server-sent events, as a browser does, until it is closed. Counts the events,
/// and the sum of those that report dropped ones.
fn follow(mut stream: TcpStream, is_closed: &AtomicBool, events: &AtomicU64, dropped: &AtomicU64) {
    let (mut buffer, mut text) = (vec![0; 64 << 10], Vec::new());
    while !is_closed.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(count) = line.trim().strip_prefix("data: {\"count\":") {
                let count = count.trim_end_matches('}').parse::<u64>().unwrap_or(0);
                dropped.fetch_add(count, Ordering::Relaxed);
            } else if line.starts_with("data: ") {
                events.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
