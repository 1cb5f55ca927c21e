//! Walks one path so many times: what the cost guard counts the instructions of.
//!
//! `postern-bench-paths request|token-seen|token-new TIMES`

use std::hint::black_box;
use std::io;

use postern_bench::paths::{Journey, Tokens};
use postern_bench::token::Algorithm;

/// What is walked.
enum Path {
    Request(Box<Journey>),
    Tokens(Tokens),
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let times = arguments
        .next()
        .and_then(|times| times.parse().ok())
        .unwrap_or(0);
    let mut path = match name.as_str() {
        "request" => Path::Request(Box::new(Journey::new()?)),
        "token-seen" => Path::Tokens(Tokens::of(Algorithm::Es256, true)?),
        "token-new" => Path::Tokens(Tokens::of(Algorithm::Rs256, false)?),
        _ => {
            return Err(io::Error::other(
                "request, token-seen or token-new, and how often",
            ));
        }
    };
    walk(&mut path, times);
    Ok(())
}

/// The guard counts between the beginning and the end of this function, found by its name.
#[inline(never)]
fn walk(path: &mut Path, times: u64) {
    for turn in 0..times {
        match path {
            Path::Request(journey) => journey.request(turn),
            Path::Tokens(tokens) => drop(black_box(tokens.verify())),
        }
    }
}
