//! What a request may cost the gateway in allocations: at most four more than an empty Pingora
//! pass-through, and an absolute bound, because what is carried without Pingora, as this request
//! is, needs far fewer.

use postern_bench::allocation::{Counting, measure};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fifteen were counted in a release build; the rest is room for another build and other
/// dependencies.
const MOST: f64 = 20.0;

#[test]
fn a_request_costs_at_most_twenty_allocations_and_four_over_an_empty_pass_through() {
    let folder = tempfile::tempdir().expect("a folder");
    let counted = measure(folder.path()).expect("both answer");
    assert!(
        counted.passthrough > 5.0,
        "the allocator does not count: {counted:?}"
    );
    assert!(counted.gateway - counted.passthrough <= 4.0, "{counted:?}");
    assert!(counted.gateway <= MOST, "{counted:?}");
}
