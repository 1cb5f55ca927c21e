//! The HTTP interface: routes, decoding of requests and encoding of responses.
//!
//! Enters: requests of the gateway. Leaves: responses. axum's types stay in this module; each
//! handler decodes a request, calls one flow of [`Flows`] and encodes its
//! [`Audited`] result.
//!
//! Depends on `audit_trail`, `client`, `config`, `email`, `flows` and `telemetry`.

mod admin;
mod landing;
mod profile;
mod request;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{ACCEPT_LANGUAGE, HeaderName, HeaderValue, LINK, LOCATION};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use postern_core::{Code, Problem};
use postern_service::http::{
    BodyOwner, Json, Peer, Raw, RequestId, TrustedProxies, json, no_store,
};
use serde::Serialize;

pub(crate) use self::admin::admin_routes;
use self::landing::landing_response;
use self::request::LegacySession;
use crate::client::ClientContext;
use crate::flows::Flows;
use crate::telemetry::Audited;

type HandlerResult = Result<Response, Problem>;
type SharedState = State<Arc<HttpState>>;

/// The `Deprecation` field (RFC 9745) of `/api/session`: 2026-11-20.
const DEPRECATED_SINCE: HeaderValue = HeaderValue::from_static("@1795132800");

/// The state of the handlers.
#[derive(Debug)]
struct HttpState {
    flows: Arc<Flows>,
    /// The proxies whose `X-Forwarded-For` is accepted.
    trusted_proxies: TrustedProxies,
}

/// Returns the router of the service.
pub(crate) fn router(flows: Arc<Flows>, trusted_proxies: TrustedProxies) -> Router {
    Router::new()
        .route("/auth/login", post(login))
        .route("/auth/register", post(register))
        .route("/auth/register/confirm", post(confirm_registration))
        .route("/auth/challenge", post(answer_challenge))
        .route("/auth/tokens/exchange", post(exchange))
        .route("/auth/tokens/refresh", post(refresh))
        .route("/auth/refresh-user-token", post(refresh))
        .route("/auth/logout", post(logout))
        .route("/auth/password/forgot", post(forgot_password))
        .route("/auth/password/reset", post(reset_password))
        .route("/auth/social/login", get(start_social_sign_in))
        .route(
            "/auth/social/login/callback",
            get(social_callback).post(social_callback),
        )
        .route("/auth/me", get(current_user))
        .route("/api/session", post(legacy_session))
        .with_state(Arc::new(HttpState {
            flows,
            trusted_proxies,
        }))
}

async fn login(State(state): SharedState, client: ClientContext, body: Json) -> HandlerResult {
    let request = body.read(request::login)?;
    let tokens = state.flows.sign_in(&client, &request).await?;
    Ok(json_response(StatusCode::OK, &tokens))
}

async fn register(State(state): SharedState, client: ClientContext, body: Json) -> HandlerResult {
    let request = body.read(request::registration)?;
    let tokens = Box::pin(state.flows.register(&client, &request)).await?;
    Ok(json_response(StatusCode::CREATED, &tokens))
}

async fn confirm_registration(
    State(state): SharedState,
    client: ClientContext,
    body: Json,
) -> HandlerResult {
    let request = body.read(request::confirmation)?;
    let tokens = Box::pin(state.flows.confirm_registration(&client, &request)).await?;
    Ok(json_response(StatusCode::CREATED, &tokens))
}

async fn answer_challenge(
    State(state): SharedState,
    client: ClientContext,
    body: Json,
) -> HandlerResult {
    let answer = body.read(request::challenge)?;
    let tokens = Box::pin(state.flows.answer_challenge(&client, answer)).await?;
    Ok(json_response(StatusCode::OK, &tokens))
}

async fn exchange(State(state): SharedState, client: ClientContext, body: Json) -> HandlerResult {
    let (token, verifier) = body.read(request::exchange)?;
    let exchanged = state.flows.exchange(&client, &token, verifier.as_deref());
    let exchanged = exchanged.await?;
    Ok(json_response(StatusCode::OK, &exchanged))
}

async fn refresh(State(state): SharedState, client: ClientContext, body: Json) -> HandlerResult {
    let token = body.read(request::refresh_token)?;
    let tokens = state.flows.refresh(&client, &token).await?;
    Ok(json_response(StatusCode::OK, &tokens))
}

async fn logout(State(state): SharedState, client: ClientContext, body: Json) -> HandlerResult {
    let token = body.read(request::refresh_token)?;
    let _audited = state.flows.logout(&client, &token).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn forgot_password(
    State(state): SharedState,
    client: ClientContext,
    body: Json,
) -> HandlerResult {
    let email = body.read(request::email)?;
    // The response depends neither on the address nor on the outcome; the task in the background
    // writes the audit event.
    state.flows.request_code(client, email);
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn reset_password(
    State(state): SharedState,
    client: ClientContext,
    body: Json,
) -> HandlerResult {
    let request = body.read(request::reset)?;
    let _audited = state.flows.reset_password(&client, &request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn legacy_session(
    State(state): SharedState,
    client: ClientContext,
    body: Result<Json, Problem>,
) -> Response {
    let flows = &state.flows;
    let tokens = async {
        let tokens = match body?.read(request::legacy_session)? {
            LegacySession::Login(request) => flows.sign_in(&client, &request).await?,
            LegacySession::Refresh(token) => flows.refresh(&client, &token).await?,
        };
        Ok::<_, Problem>(json_response(StatusCode::OK, &tokens))
    };
    let response = Box::pin(tokens).await.into_response();
    let deprecation = (HeaderName::from_static("deprecation"), DEPRECATED_SINCE);
    let successor = (
        LINK,
        HeaderValue::from_static("</auth/login>; rel=\"successor-version\""),
    );
    ([deprecation, successor], response).into_response()
}

async fn current_user(State(state): SharedState, headers: HeaderMap) -> HandlerResult {
    // A verification of a token changes nothing and is not audited.
    let user = state.flows.describe_caller(&headers).await?;
    Ok(no_store(json(StatusCode::OK, &user)))
}

async fn start_social_sign_in(
    State(state): SharedState,
    client: ClientContext,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let social = state.flows.social.as_ref().ok_or(Code::NotFound)?;
    let query = query.as_deref().unwrap_or_default();
    let config = &social.config;
    let names: Vec<&str> = config.providers.iter().map(|it| &*it.name).collect();
    let (provider, code_challenge) =
        request::social_query(query, &names, config.require_code_challenge)?;
    let started = state
        .flows
        .start_social_sign_in(&client, provider, code_challenge);
    let url = started.await?;
    let location = HeaderValue::from_str(url.as_str()).map_err(|_| Code::Internal)?;
    Ok(no_store(
        (StatusCode::FOUND, [(LOCATION, location)]).into_response(),
    ))
}

/// `GET` or `POST /auth/social/login/callback`: the provider returns its parameters in the query, or
/// as a form (OAuth 2.0 Form Post Response Mode), which the redirect URI's own parameters precede.
async fn social_callback(
    State(state): SharedState,
    client: ClientContext,
    RawQuery(query): RawQuery,
    Raw(form, _permit): Raw,
) -> HandlerResult {
    let query = query.unwrap_or_default();
    let callback = request::social_callback(&[query.as_bytes(), &form]);
    let landing = Box::pin(state.flows.finish_callback(&client, callback)).await?;
    landing_response(&landing)
}

impl FromRequestParts<Arc<HttpState>> for ClientContext {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<HttpState>,
    ) -> Result<Self, Infallible> {
        let RequestId(request_id) = RequestId::from_request_parts(parts, state).await?;
        let peer = Peer::from_request_parts(parts, state).await?;
        let address = state.trusted_proxies.client_address(peer, &parts.headers);
        // Requests of the gateway itself do not count against the share of one client address.
        let client = address.filter(|address| !state.trusted_proxies.contains(*address));
        BodyOwner::Anonymous(client).set(parts);
        let languages = parts.headers.get(ACCEPT_LANGUAGE);
        let languages = languages.and_then(|value| value.to_str().ok());
        Ok(Self::new(request_id, address).speaking(languages))
    }
}

fn json_response<T: Serialize>(status: StatusCode, result: &Audited<T>) -> Response {
    no_store(json(status, &**result))
}
