//! A run: start, requests, faults, check.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::checker;
use super::faults::{KINDS, Schedule};
use super::history::{self, History};
use super::installation::Cluster;
use super::options::Options;
use super::provider;
use super::summary::Summary;
use super::violation::Violation;
use super::workload::{Clients, Workload};
use crate::Client;

/// Time without faults at the beginning, for registrations, and at the end, for the recovery.
const QUIET: Duration = Duration::from_secs(15);

/// Age at which the token of the service is replaced.
const TOKEN_AGE: Duration = Duration::from_secs(600);

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Numbers.
    pub summary: Summary,
    /// Violated guarantees.
    pub violations: Vec<Violation>,
}

/// Runs the installation and checks its history, or checks an existing one. Progress is written to `out`.
pub async fn run(options: &Options, out: &mut (impl Write + Send)) -> std::io::Result<Report> {
    if let Some(file) = &options.check {
        return report(file);
    }
    std::fs::create_dir_all(&options.folder)?;
    let folder = options.folder.canonicalize()?;
    let file = folder.join("history.jsonl");
    let history = Arc::new(History::create(&file)?);
    let provider = provider::start(Arc::clone(&history)).await;
    let mut installation = Box::pin(Cluster::start(&folder, &provider)).await;
    let kinds = kinds(options, &installation, out)?;
    let gateway = format!("http://127.0.0.1:{}", installation.haproxy.port);
    let client = Client::new(&gateway);
    let workload = Workload::new(client, Arc::clone(&history), options.seed, options.rate);
    let workload = Arc::new(workload);
    renew_token(&installation, &workload).await;
    let clients = Clients::start(Arc::clone(&workload));
    tokio::time::sleep(QUIET).await;
    let interval = Duration::from_secs(options.interval);
    let schedule = Schedule::new(options.seed, kinds, interval);
    let end = tokio::time::Instant::now() + Duration::from_secs(options.seconds);
    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut renewed = tokio::time::Instant::now();
    for (pause, fault) in schedule {
        if tokio::time::Instant::now() + pause > end {
            break;
        }
        tokio::time::sleep(pause).await;
        if renewed.elapsed() > TOKEN_AGE {
            renew_token(&installation, &workload).await;
            renewed = tokio::time::Instant::now();
        }
        let at_s = history.now_ms() / 1000;
        writeln!(out, "{at_s:>5} s  {fault}")?;
        let place = random.usize(..);
        Box::pin(installation.apply(fault, place, &history)).await;
    }
    tokio::time::sleep(QUIET).await;
    workload.each_rare_request().await;
    clients.finish().await;
    installation.stop(&history).await;
    history.flush();
    report(&file)
}

async fn renew_token(installation: &Cluster, workload: &Workload) {
    let token = installation.development.service_token("document").await;
    *workload.service.lock() = token;
}

/// Returns the kinds of faults that were asked for and can be made here.
fn kinds(
    options: &Options,
    installation: &Cluster,
    out: &mut impl Write,
) -> std::io::Result<Vec<&'static str>> {
    let mut asked = options.faults.iter();
    if let Some(kind) = asked.find(|kind| !KINDS.contains(&kind.as_str())) {
        let message = format!("unknown fault {kind}; there are: {}", KINDS.join(", "));
        return Err(std::io::Error::other(message));
    }
    let mut kinds = Vec::new();
    for kind in KINDS {
        if !options.faults.is_empty() && !options.faults.iter().any(|one| one == kind) {
            continue;
        }
        match installation.obstacle(kind) {
            None => kinds.push(kind),
            Some(obstacle) => writeln!(out, "without {kind}: {obstacle}")?,
        }
    }
    Ok(kinds)
}

fn report(file: &Path) -> std::io::Result<Report> {
    let history = history::read(file)?;
    Ok(Report {
        summary: Summary::of(&history),
        violations: checker::check(&history),
    })
}
