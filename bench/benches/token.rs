//! Token verification, complete and cached, by algorithm.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use postern_bench::paths::BenchTokens;
use postern_bench::token::SigningAlgorithm;

fn verification(criterion: &mut Criterion) {
    for (how, remembered) in [("new", false), ("seen before", true)] {
        let mut group = criterion.benchmark_group(format!("token, {how}"));
        for algorithm in [
            SigningAlgorithm::Rs256,
            SigningAlgorithm::Es256,
            SigningAlgorithm::EdDsa,
        ] {
            let mut tokens = BenchTokens::of(algorithm, remembered).expect("keys and a verifier");
            group.bench_function(format!("{algorithm:?}"), |bencher| {
                bencher.iter(|| black_box(tokens.verify()));
            });
        }
    }
}

criterion_group!(benches, verification);
criterion_main!(benches);
