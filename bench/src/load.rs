//! The load: `wrk`, keep-alive, one thread, 64 connections.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

/// What one run of `wrk` saw.
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Socket errors and answers that were not 2xx or 3xx: a fast wrong answer counts as failed.
    pub(crate) failed: u64,
}

/// Loads `http://address/path` for `seconds`.
pub(crate) fn wrk(address: SocketAddr, path: &str, token: &str, seconds: u32) -> io::Result<Seen> {
    let output = Command::new("wrk")
        .args(["-t1", "-c64", &format!("-d{seconds}s")])
        .args(["-H", &format!("Authorization: Bearer {token}")])
        .arg(format!("http://{address}{path}"))
        .output()?;
    parse(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn parse(text: &str) -> Option<Seen> {
    let word_after = |line: &str, mark: &str| -> Option<String> {
        Some(line.split_once(mark)?.1.split([' ', ',']).find(|word| !word.is_empty())?.to_owned())
    };
    let requests =
        text.lines().find(|line| line.contains(" requests in "))?.split_whitespace().next()?.parse().ok()?;
    let per_second = text.lines().find_map(|line| word_after(line, "Requests/sec:"))?.parse().ok()?;
    let refused = text.lines().find_map(|line| word_after(line, "Non-2xx or 3xx responses:"));
    let broken = text.lines().filter(|line| line.contains("Socket errors:")).flat_map(|line| {
        ["connect", "read", "write", "timeout"].into_iter().filter_map(move |kind| word_after(line, kind))
    });
    let failed = refused.into_iter().chain(broken).filter_map(|count| count.parse::<u64>().ok()).sum();
    Some(Seen { requests, per_second, failed })
}
