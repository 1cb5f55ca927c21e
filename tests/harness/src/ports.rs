//! Ports for processes whose port is configured.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Number of ports per test program, below the ephemeral range.
const SPAN: u16 = 2000;

/// Returns the first of `count` consecutive free loopback ports. A port is returned once per
/// program.
pub fn free(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 10).unwrap_or(0) * SPAN;
    for _ in 0..SPAN / count {
        let first = NEXT.fetch_add(count, Ordering::Relaxed) % (SPAN - count);
        let mut ports = base + first..base + first + count;
        if ports.all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return base + first;
        }
    }
    panic!("no {count} consecutive free ports from {base}")
}
