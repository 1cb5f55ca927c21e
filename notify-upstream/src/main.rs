//! `postern-notify`: the notification upstream as a process of its own, and its operator's tools.

use std::process::ExitCode;

/// The one that all of Postern has; the gateway's `main.rs` says why.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(postern_notify::cli::run()).await
}
