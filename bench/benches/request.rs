//! The steps of a request in the gateway.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use postern_bench::paths::{BenchRoutes, RequestPath};

fn route_match(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route match");
    for size in [10, 1_000, 10_000] {
        let routes = BenchRoutes::of(size);
        let mut turn = 0;
        group.bench_with_input(
            BenchmarkId::from_parameter(size),
            &routes,
            |bencher, routes| {
                bencher.iter(|| {
                    turn += 1;
                    black_box(routes.find(turn))
                });
            },
        );
    }
}

fn steps(criterion: &mut Criterion) {
    let mut journey = RequestPath::new().expect("keys and a verifier");
    let caller = journey.authenticate();
    let mut turn = 0;
    let mut next = || {
        turn += 1;
        turn
    };
    criterion.bench_function("head check", |bencher| {
        bencher.iter(|| black_box(journey.head()));
    });
    criterion.bench_function("limiter", |bencher| {
        bencher.iter(|| black_box(journey.limit(next())));
    });
    criterion.bench_function("header strip and injection", |bencher| {
        bencher.iter(|| black_box(journey.inject(&caller)));
    });
    criterion.bench_function("access event", |bencher| {
        bencher.iter(|| black_box(journey.event(&caller, 0)));
    });
    criterion.bench_function("all of it, without sockets", |bencher| {
        bencher.iter(|| journey.request(next()));
    });
}

criterion_group!(benches, route_match, steps);
criterion_main!(benches);
