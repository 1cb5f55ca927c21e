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

use crate::accept::Door;
use crate::dispatch::Board;
use crate::mail_token::MailTokens;
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
    /// The issuer whose users are actors.
    pub actor_issuer: Arc<str>,
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
    /// What a click is proven with.
    pub mail_tokens: Option<MailTokens>,
    /// Addresses that providers report as dead.
    pub suppression: Arc<Suppression>,
    /// What is counted.
    pub metrics: Metrics,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted_proxies: TrustedProxies,
    /// Whether a user may address others than itself. Default: no.
    pub users_may_address_anyone: bool,
    /// Whether a user may send CRITICAL and HIGH.
    pub users_may_send_urgent: bool,
}

/// The routes of this service.
pub fn router(service: Service) -> Router {
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
