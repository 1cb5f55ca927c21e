//! The HTTP rim: axum's types stay here.

mod create;
mod status;
mod unsubscribe;
mod webhook;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::routing::{MethodFilter, get, post};
use http::request::Parts;
use postern_common::http::{BodyOwner, Peer, TrustedProxies};
use postern_common::token::{Caller, Verifier};
use postern_common::{Clock, Code, Problem};

use crate::delivery::mail_token::MailTokens;
use crate::delivery::suppression::Suppression;
use crate::dispatch::Board;
use crate::intake::group_commit::Door;
use crate::intake::quota::Quota;
use crate::metrics::Metrics;
use crate::principal::Principal;
use crate::receipts::webhook::Webhooks;
use crate::status::reader::Reader;
use crate::store::Recent;
use crate::store::Store;
use crate::templates::Templates;

/// What the handlers work with.
#[derive(Clone)]
pub(crate) struct Service {
    /// Verifies callers again: no network location is trusted.
    pub(crate) verifier: Arc<Verifier>,
    /// The issuer whose users are actors.
    pub(crate) actor_issuer: Arc<str>,
    /// The time.
    pub(crate) clock: Clock,
    /// The templates of the moment.
    pub(crate) templates: Arc<arc_swap::ArcSwap<Templates>>,
    /// Where requests are accepted.
    pub(crate) door: Door,
    /// Where the status is read.
    pub(crate) reader: Reader,
    /// What was read lately.
    pub(crate) recent: Arc<Recent>,
    /// For what is neither.
    pub(crate) store: Store,
    /// For the LOW gate's word.
    pub(crate) board: Arc<Board>,
    /// How many each caller may ask for.
    pub(crate) quota: Quota,
    /// What providers report.
    pub(crate) webhooks: Arc<Webhooks>,
    /// What a click is proven with.
    pub(crate) mail_tokens: Option<MailTokens>,
    /// Addresses that providers report as dead.
    pub(crate) suppression: Arc<Suppression>,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// Whose `X-Forwarded-For` is believed.
    pub(crate) trusted_proxies: TrustedProxies,
    /// Whether a user may address others than itself. Default: no.
    pub(crate) users_may_address_anyone: bool,
    /// Whether a user may send CRITICAL and HIGH.
    pub(crate) users_may_send_urgent: bool,
}

/// The routes of this service.
pub(crate) fn router(service: Service) -> Router {
    Router::new()
        .route("/notifications", post(create::one))
        .route(
            "/notifications/batch",
            post(create::batch).on(MethodFilter::GET, nothing),
        )
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

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<Service>,
    ) -> Result<Self, Problem> {
        let token = postern_common::http::bearer(&parts.headers)?;
        let caller = match service.verifier.verify_cached(token) {
            Some(verdict) => verdict?,
            None => service.verifier.verify_unseen(token).await?,
        };
        let owner = match &caller {
            Caller::Service(_) => BodyOwner::Service,
            Caller::User(user) => BodyOwner::user(&user.issuer, &user.subject),
        };
        owner.set(parts);
        Ok(Self(Principal::of(&caller, &service.actor_issuer)))
    }
}

/// A caller without a token: its body is charged to its address.
struct Anonymous;

/// The client's address; `None` where only the gateway's is known.
async fn client_address(parts: &mut Parts, service: &Arc<Service>) -> Option<IpAddr> {
    let Ok(peer) = Peer::from_request_parts(parts, service).await;
    let proxies = &service.trusted_proxies;
    proxies
        .client_address(peer, &parts.headers)
        .filter(|address| !proxies.contains(*address))
}

impl FromRequestParts<Arc<Service>> for Anonymous {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<Service>,
    ) -> Result<Self, Infallible> {
        BodyOwner::Anonymous(client_address(parts, service).await).set(parts);
        Ok(Self)
    }
}

#[cfg(test)]
mod tests;
