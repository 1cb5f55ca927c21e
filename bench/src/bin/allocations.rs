//! Prints allocations per request as JSON.

use std::io::{self, Write as _};

use postern_bench::allocation::{CountingAllocator, measure};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("postern-allocations-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let counted = measure(&folder);
    std::fs::remove_dir_all(&folder)?;
    let counted = counted?;
    let (empty, all_on) = (counted.passthrough, counted.gateway);
    writeln!(
        io::stdout(),
        "{{\"passthrough\":{empty},\"gateway\":{all_on}}}"
    )
}
