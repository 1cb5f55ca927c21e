//! Bounds the allocations of a request: at most four more than an empty Pingora pass-through, and
//! an absolute number, because this request takes the fast path, which needs far fewer.

use postern_bench::allocation::{CountingAllocator, measure};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Fifteen were counted in a release build; the rest allows for other builds and dependencies.
const MAX_ALLOCATIONS: f64 = 20.0;

#[test]
fn request_allocates_at_most_twenty_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let counted = measure(folder.path()).expect("both answer");
    assert!(
        counted.passthrough > 5.0,
        "the allocator counted nothing: {counted:?}"
    );
    assert!(counted.gateway - counted.passthrough <= 4.0, "{counted:?}");
    assert!(counted.gateway <= MAX_ALLOCATIONS, "{counted:?}");
}
