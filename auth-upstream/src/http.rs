//! The HTTP interface: routes, decoding of requests and encoding of responses.
//!
//! axum's types stay in this module; each handler decodes a request, calls one flow of [`Flows`] and
//! encodes its [`Audited`] result.

mod admin;
mod landing;
mod profile;
mod request;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, RawQuery, Request, State};
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

#[derive(Debug)]
struct HttpState {
    flows: Arc<Flows>,
    /// The proxies whose `X-Forwarded-For` is accepted.
    trusted_proxies: TrustedProxies,
}

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

struct Call {
    flows: Arc<Flows>,
    client: ClientContext,
    body: Json,
}

impl FromRequest<Arc<HttpState>> for Call {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Arc<HttpState>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        // First, because it sets the owner of the body.
        let Ok(client) = ClientContext::from_request_parts(&mut parts, state).await;
        let body = Json::from_request(Request::from_parts(parts, body), state).await?;
        let flows = Arc::clone(&state.flows);
        Ok(Self {
            flows,
            client,
            body,
        })
    }
}

async fn login(call: Call) -> HandlerResult {
    let request = call.body.read(request::login)?;
    let tokens = call.flows.sign_in(&call.client, &request).await?;
    Ok(json_response(StatusCode::OK, &tokens))
}

async fn register(call: Call) -> HandlerResult {
    let request = call.body.read(request::registration)?;
    let tokens = Box::pin(call.flows.register(&call.client, &request)).await?;
    Ok(json_response(StatusCode::CREATED, &tokens))
}

async fn confirm_registration(call: Call) -> HandlerResult {
    let request = call.body.read(request::confirmation)?;
    let tokens = Box::pin(call.flows.confirm_registration(&call.client, &request)).await?;
    Ok(json_response(StatusCode::CREATED, &tokens))
}

async fn answer_challenge(call: Call) -> HandlerResult {
    let answer = call.body.read(request::challenge)?;
    let tokens = Box::pin(call.flows.answer_challenge(&call.client, answer)).await?;
    Ok(json_response(StatusCode::OK, &tokens))
}

async fn exchange(call: Call) -> HandlerResult {
    let (token, verifier) = call.body.read(request::exchange)?;
    let exchanged = call
        .flows
        .exchange(&call.client, &token, verifier.as_deref());
    Ok(json_response(StatusCode::OK, &exchanged.await?))
}

async fn refresh(call: Call) -> HandlerResult {
    let token = call.body.read(request::refresh_token)?;
    let tokens = call.flows.refresh(&call.client, &token).await?;
    Ok(json_response(StatusCode::OK, &tokens))
}

async fn logout(call: Call) -> HandlerResult {
    let token = call.body.read(request::refresh_token)?;
    let _audited = call.flows.logout(&call.client, &token).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn forgot_password(call: Call) -> HandlerResult {
    let email = call.body.read(request::email)?;
    // The response depends neither on the address nor on the outcome; the task in the background
    // writes the audit event.
    call.flows.request_code(call.client, email);
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn reset_password(call: Call) -> HandlerResult {
    let request = call.body.read(request::reset)?;
    let _audited = call.flows.reset_password(&call.client, &request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn legacy_session(call: Result<Call, Problem>) -> Response {
    let tokens = async {
        let Call {
            flows,
            client,
            body,
        } = call?;
        let tokens = match body.read(request::legacy_session)? {
            LegacySession::Login(request) => flows.sign_in(&client, &request).await?,
            LegacySession::Refresh(token) => flows.refresh(&client, &token).await?,
        };
        Ok::<_, Problem>(json_response(StatusCode::OK, &tokens))
    };
    let response = Box::pin(tokens).await.into_response();
    let link = "</auth/login>; rel=\"successor-version\"";
    let successor = (LINK, HeaderValue::from_static(link));
    let deprecation = (HeaderName::from_static("deprecation"), DEPRECATED_SINCE);
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
    let location = (LOCATION, String::from(started.await?));
    Ok(no_store((StatusCode::FOUND, [location]).into_response()))
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
    Ok(landing_response(&landing))
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
