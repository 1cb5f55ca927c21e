//! Executes one path repeatedly, for the instruction count of the cost guard.
//!
//! `postern-bench-paths request|token-seen|token-new TIMES`

use std::hint::black_box;
use std::io;

use postern_bench::paths::{BenchTokens, RequestPath};
use postern_bench::token::SigningAlgorithm;

/// The path to execute.
enum MeasuredPath {
    Request(Box<RequestPath>),
    BenchTokens(BenchTokens),
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let times = arguments
        .next()
        .and_then(|times| times.parse().ok())
        .unwrap_or(0);
    let mut path = match name.as_str() {
        "request" => MeasuredPath::Request(Box::new(RequestPath::new()?)),
        "token-seen" => MeasuredPath::BenchTokens(BenchTokens::of(SigningAlgorithm::Es256, true)?),
        "token-new" => MeasuredPath::BenchTokens(BenchTokens::of(SigningAlgorithm::Rs256, false)?),
        _ => {
            return Err(io::Error::other(
                "expected request, token-seen or token-new, and a count",
            ));
        }
    };
    walk(&mut path, times);
    Ok(())
}

/// Executes the path. The guard counts the instructions of this function, found by its name.
#[inline(never)]
fn walk(path: &mut MeasuredPath, times: u64) {
    for turn in 0..times {
        match path {
            MeasuredPath::Request(journey) => journey.request(turn),
            MeasuredPath::BenchTokens(tokens) => drop(black_box(tokens.verify())),
        }
    }
}
