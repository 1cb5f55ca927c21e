//! On whose behalf a request is handled. The token of a verified user is kept for the time of the
//! handling, in a task-local value, so that calls to other services carry it. Spawned tasks, which
//! may outlive the request, do not inherit it.

use std::sync::OnceLock;

use http::HeaderMap;

use super::bearer;
use postern_core::problem::Problem;
use postern_core::secret::Secret;
use postern_core::token::{Caller, Verifier};

tokio::task_local! {
    static USER_TOKEN: OnceLock<Secret>;
}

/// Runs the handling of a request. Nobody is verified yet.
pub(super) fn handling<F: Future>(future: F) -> impl Future<Output = F::Output> {
    USER_TOKEN.scope(OnceLock::new(), future)
}

/// Verifies the bearer token of a request. Further calls of the request's handling to other
/// services carry the token of a user.
///
/// # Errors
/// 401 if there is no token or it is rejected; 503 if the issuer's keys are not available.
pub async fn authenticate(headers: &HeaderMap, verifier: &Verifier) -> Result<Caller, Problem> {
    let token = bearer(headers)?;
    let caller = verifier.verify(token).await?;
    if matches!(caller, Caller::User(_)) {
        // Outside a server, as in a unit test, there is nothing to keep it in.
        let _outside = USER_TOKEN.try_with(|kept| kept.set(Secret::from(token)));
    }
    Ok(caller)
}

/// Returns the token of the user on whose behalf the current task handles a request, if there is
/// one.
pub(crate) fn user_token() -> Option<Secret> {
    USER_TOKEN
        .try_with(|kept| kept.get().cloned())
        .ok()
        .flatten()
}
