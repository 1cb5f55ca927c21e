//! `postern-notify`: the notification upstream as a separate process, and the operator's commands.

use std::process::ExitCode;

/// The same allocator as in all of Postern; the gateway's `main.rs` gives the reason.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(postern_notify::cli::run()).await
}
