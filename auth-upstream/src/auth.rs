//! What every journey has at hand.

use std::sync::Arc;

use postern_common::cache::{Cache, CacheError};
use postern_common::token::Verifier;
use postern_common::{Clock, Code, Problem};

use crate::actors::ActorService;
use crate::config::{Confirm, Refresh};
use crate::metrics::Metrics;
use crate::pool::UserPool;
use crate::seal::KeyRing;
use crate::social::Social;
use crate::store::Store;
use crate::vault::Vault;

/// The authentication upstream without its sockets. Each journey is a method, in a file of its own.
#[derive(Debug)]
pub(crate) struct Auth {
    pub(crate) clock: Clock,
    pub(crate) pool: UserPool,
    pub(crate) actors: ActorService,
    pub(crate) store: Store,
    pub(crate) cache: Cache,
    pub(crate) vault: Vault,
    /// Seals refresh tokens and challenge sessions.
    pub(crate) ring: KeyRing,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) confirm: Confirm,
    pub(crate) refresh: Refresh,
    pub(crate) social: Option<Social>,
    pub(crate) metrics: Metrics,
}

/// Who is at the door, as far as that is known before anybody has signed in.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// The request's id, for the audit log.
    pub(crate) request_id: Arc<str>,
}

/// The cache is away: what needs it says so, within its deadline.
pub(crate) fn cache_away(error: CacheError) -> Problem {
    tracing::warn!(%error, "the shared cache failed");
    Problem::new(Code::Unavailable)
}
