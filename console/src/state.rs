//! What the routes share. Depends on `access`, `config`, `frames`, `processes`, `prometheus`, `sampling`,
//! `sign_in` and `tail_limit`.

use std::sync::Arc;

use postern_service::http::TrustedProxies;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::config::TraceLink;
use crate::frames::Frames;
use crate::processes::ProcessDirectory;
use crate::prometheus::Prometheus;
use crate::sampling::Sampler;
use crate::sign_in::SignInService;
use crate::tail_limit::TailLimit;

/// The parts of a running console.
#[derive(Debug)]
pub(crate) struct ConsoleState {
    pub(crate) access: Access,
    pub(crate) directory: Arc<ProcessDirectory>,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) frames: Frames,
    pub(crate) sign_in: SignInService,
    pub(crate) tail_limit: TailLimit,
    pub(crate) trace_link: Option<TraceLink>,
    pub(crate) prometheus: Option<Prometheus>,
    /// Proxies in front of the console.
    pub(crate) trusted_proxies: TrustedProxies,
    /// Ends streams, for which a shutdown would wait.
    pub(crate) shutdown: CancellationToken,
}
