//! The HTTP API.
//!
//! Requests enter through [`router`]; validated notifications leave to [`intake`](crate::intake),
//! status requests to [`status`](crate::status), webhooks to [`receipts`](crate::receipts). Types
//! of axum occur only in this module.
//!
//! Depends on the modules that it calls and on `address`, `delivery`, `dispatch`, `metrics`,
//! `notification`, `principal`, `store` and `templates`.

mod admin;
mod create;
mod list;
mod preferences;
mod status;
mod unsubscribe;
mod webhook;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::routing::{get, post};
use http::request::Parts;
use postern_core::token::{Caller, Verifier};
use postern_core::{Clock, Problem};
use postern_service::http::{BodyOwner, Peer, TrustedProxies, authenticate};
use tokio::sync::Semaphore;

pub(crate) use self::admin::{AdminParts, admin_routes};
pub(crate) use self::status::CONCURRENT_READS;
use crate::delivery::actors::ActorClient;
use crate::delivery::mail_token::MailTokens;
use crate::delivery::suppression::Suppression;
use crate::delivery::unverified::UnverifiedQuota;
use crate::dispatch::DispatchState;
use crate::intake::group_commit::SubmissionQueue;
use crate::intake::quota::CallerQuota;
use crate::metrics::NotifyMetrics;
use crate::principal::Principal;
use crate::receipts::webhook::Webhooks;
use crate::store::Store;
use crate::templates::Templates;

/// Shared state of the request handlers.
pub(crate) struct ApiState {
    /// Verifies tokens again: requests are not trusted because of where they come from.
    pub(crate) verifier: Arc<Verifier>,
    /// Issuer whose users are actors.
    pub(crate) actor_issuer: Arc<str>,
    pub(crate) clock: Clock,
    /// The templates in force.
    pub(crate) templates: Arc<arc_swap::ArcSwap<Templates>>,
    pub(crate) store: Store,
    pub(crate) submissions: SubmissionQueue,
    /// At most [`CONCURRENT_READS`] read a status at a time.
    pub(crate) status_reads: Semaphore,
    /// The state that intake and dispatch share.
    pub(crate) dispatch_state: Arc<DispatchState>,
    pub(crate) quota: CallerQuota,
    pub(crate) webhooks: Arc<Webhooks>,
    /// Verifies the tokens of unsubscribe links.
    pub(crate) mail_tokens: Option<MailTokens>,
    /// Knows the addresses of actors.
    pub(crate) actors: ActorClient,
    pub(crate) unverified: UnverifiedQuota,
    pub(crate) suppression: Arc<Suppression>,
    pub(crate) metrics: NotifyMetrics,
    /// Proxies whose `X-Forwarded-For` is used.
    pub(crate) trusted_proxies: TrustedProxies,
    /// Services that may read all notifications.
    pub(crate) readers: Arc<[String]>,
    /// Whether users may send to recipients other than themselves.
    pub(crate) users_may_address_anyone: bool,
    /// Whether users may send CRITICAL and HIGH.
    pub(crate) users_may_send_urgent: bool,
}

/// Returns the routes of this service.
pub(crate) fn router(service: Arc<ApiState>) -> Router {
    Router::new()
        .route("/notifications", post(create::create).get(list::list))
        .route("/notification-batches", post(create::batch))
        .route(
            "/notifications/{id}",
            get(status::get).delete(status::cancel),
        )
        .route(
            "/unsubscriptions",
            get(unsubscribe::page).post(unsubscribe::leave),
        )
        .route(
            "/notification-preferences",
            get(preferences::get).put(preferences::put),
        )
        .route("/webhooks/{provider}", post(webhook::receive))
        .with_state(service)
}

/// The principal of a verified bearer token.
struct AuthenticatedCaller {
    principal: Principal,
    /// Whether it may read all notifications.
    may_read_all: bool,
}

impl FromRequestParts<Arc<ApiState>> for AuthenticatedCaller {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<ApiState>,
    ) -> Result<Self, Problem> {
        let caller = authenticate(&parts.headers, &service.verifier).await?;
        let owner = match &caller {
            Caller::Service(_) => BodyOwner::Service,
            Caller::User(user) => BodyOwner::user(&user.issuer, &user.subject),
        };
        owner.set(parts);
        Ok(Self {
            principal: Principal::of(&caller, &service.actor_issuer),
            may_read_all: Principal::may_read_all(&caller, &service.actor_issuer, &service.readers),
        })
    }
}

/// A caller without a token. Its body is charged to the budget of its address.
struct AnonymousCaller;

/// Returns the client's address, or `None` if only the address of a trusted proxy is known.
async fn client_address(parts: &mut Parts, service: &Arc<ApiState>) -> Option<IpAddr> {
    let Ok(peer) = Peer::from_request_parts(parts, service).await;
    let proxies = &service.trusted_proxies;
    proxies
        .client_address(peer, &parts.headers)
        .filter(|address| !proxies.contains(*address))
}

impl FromRequestParts<Arc<ApiState>> for AnonymousCaller {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<ApiState>,
    ) -> Result<Self, Infallible> {
        BodyOwner::Anonymous(client_address(parts, service).await).set(parts);
        Ok(Self)
    }
}

#[cfg(test)]
mod tests;
