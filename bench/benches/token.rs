//! Token verification: in full and from memory, each algorithm.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use postern_bench::paths::Tokens;
use postern_bench::token::Algorithm;

fn verification(criterion: &mut Criterion) {
    for (how, remembered) in [("new", false), ("seen before", true)] {
        let mut group = criterion.benchmark_group(format!("token, {how}"));
        for algorithm in [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa] {
            let mut tokens = Tokens::of(algorithm, remembered).expect("keys and a verifier");
            group.bench_function(format!("{algorithm:?}"), |bencher| {
                bencher.iter(|| black_box(tokens.verify()));
            });
        }
    }
}

criterion_group!(benches, verification);
criterion_main!(benches);
