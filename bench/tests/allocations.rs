//! Bounds the allocations of a request. An empty Pingora pass-through needs 84; this request takes
//! the fast path, which needs far fewer.

use postern_bench::allocation::{CountingAllocator, measure};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The rest allows for other builds and dependencies.
const MAX_ALLOCATIONS: f64 = 30.0;

#[test]
fn request_allocates_at_most_thirty_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let counted = measure(folder.path()).expect("both answer");
    assert!(
        counted.passthrough > 5.0,
        "the allocator counted nothing: {counted:?}"
    );
    assert!(counted.gateway <= MAX_ALLOCATIONS, "{counted:?}");
}
