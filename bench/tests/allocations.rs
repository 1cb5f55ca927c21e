//! What the gateway does for a request may cost at most four allocations over an empty Pingora pass-through.

use postern_bench::allocation::{Counting, measure};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_request_costs_at_most_four_allocations_over_an_empty_pass_through() {
    let folder = tempfile::tempdir().expect("a folder");
    let counted = measure(folder.path()).expect("both answer");
    assert!(counted.passthrough > 5.0, "the allocator does not count: {counted:?}");
    assert!(counted.gateway - counted.passthrough <= 4.0, "{counted:?}");
}
