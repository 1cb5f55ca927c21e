//! The HTTP rim: axum's types stay here.

mod create;
mod status;
mod unsubscribe;
mod webhook;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::routing::{MethodFilter, get, post};
use http::request::Parts;
use postern_common::token::Verifier;
use postern_common::{Clock, Code, Problem};

use crate::accept::Door;
use crate::dispatch::Board;
use crate::metrics::Metrics;
use crate::quota::Quota;
use crate::read::{Reader, Recent};
use crate::request::Principal;
use crate::store::Store;
use crate::suppression::Suppression;
use crate::template::Templates;
use crate::webhook::Webhooks;

/// What the handlers work with.
#[derive(Clone)]
pub struct Service {
    /// Verifies callers again: no network location is trusted.
    pub verifier: Arc<Verifier>,
    /// The time.
    pub clock: Clock,
    /// The templates of the moment.
    pub templates: Arc<arc_swap::ArcSwap<Templates>>,
    /// Where requests are accepted.
    pub door: Door,
    /// Where the status is read.
    pub reader: Reader,
    /// What was read lately.
    pub recent: Arc<Recent>,
    /// For what is neither.
    pub store: Store,
    /// For the LOW gate's word.
    pub board: Arc<Board>,
    /// How many each caller may ask for.
    pub quota: Quota,
    /// What providers report.
    pub webhooks: Arc<Webhooks>,
    /// Addresses that providers report as dead.
    pub suppression: Arc<Suppression>,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether a user may address others than itself. Default: no.
    pub users_may_address_anyone: bool,
    /// Whether a user may send CRITICAL and HIGH.
    pub users_may_send_urgent: bool,
}

/// The routes of this service.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/notifications", post(create::one))
        .route("/notifications/batch", post(create::batch).on(MethodFilter::GET, nothing))
        .route("/notifications/{id}", get(status::get))
        .route("/notifications/{id}/cancel", post(status::cancel))
        .route("/webhooks/unsubscribe", post(unsubscribe::one_click))
        .route("/webhooks/{provider}", post(webhook::receive))
        .with_state(Arc::new(service))
}

/// A GET of this path is the status of a notification of this name, and there is none.
async fn nothing() -> Problem {
    Code::NotFound.into()
}

/// A verified caller.
struct Authenticated(Principal);

impl FromRequestParts<Arc<Service>> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Problem> {
        let token = postern_common::http::bearer(&parts.headers)?;
        let caller = match service.verifier.verify_cached(token) {
            Some(verdict) => verdict?,
            None => service.verifier.verify_unseen(token).await?,
        };
        Ok(Self(Principal::of(&caller)))
    }
}

#[cfg(test)]
mod tests;
