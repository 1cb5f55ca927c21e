//! Ports for processes that must be told one.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports of one test program: below the range that the system hands out by itself.
const SPAN: u16 = 2000;

/// The first of `count` neighbouring ports of the loopback that are free, never the same twice in
/// this program.
///
/// # Panics
/// If there are none.
#[must_use]
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
    panic!("no {count} neighbouring ports are free from {base} on")
}
