//! The rim: routes, bodies in, answers out. axum's types stay here; every journey is a call on
//! [`Auth`].

mod landing;
mod read;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{HeaderName, HeaderValue, LINK, LOCATION};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use postern_common::http::{BodyOwner, Json, Peer, RequestId, bearer, json, no_store};
use postern_common::{Code, Problem};

use crate::auth::{Auth, Visitor};
use crate::token_set::TokenSet;

type Answer = Result<Response, Problem>;
type Shared = State<Arc<Auth>>;

/// When `/api/session` became the older name, as RFC 9745 writes it: 2026-11-20.
const DEPRECATED_SINCE: HeaderValue = HeaderValue::from_static("@1795132800");

/// Every route of the service.
pub(crate) fn router(auth: Arc<Auth>) -> Router {
    Router::new()
        .route("/auth/login", post(login))
        .route("/auth/register", post(register))
        .route("/auth/register/confirm", post(confirm))
        .route("/auth/challenge", post(challenge))
        .route("/auth/tokens/exchange", post(exchange))
        .route("/auth/tokens/refresh", post(refresh))
        .route("/auth/refresh-user-token", post(refresh))
        .route("/auth/logout", post(logout))
        .route("/auth/password/forgot", post(forgot))
        .route("/auth/password/reset", post(reset))
        .route("/auth/social/login", get(social))
        .route("/auth/social/login/callback", get(social_callback))
        .route("/auth/me", get(me))
        .route("/api/session", post(session))
        .with_state(auth)
}

async fn login(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let login = body.read(read::login)?;
    Ok(tokens(StatusCode::OK, &auth.login(&visitor, &login).await?))
}

async fn register(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let registration = body.read(read::registration)?;
    let set = Box::pin(auth.register(&visitor, &registration)).await?;
    Ok(tokens(StatusCode::CREATED, &set))
}

async fn confirm(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let confirmation = body.read(read::confirmation)?;
    let set = Box::pin(auth.confirm_registration(&visitor, &confirmation)).await?;
    Ok(tokens(StatusCode::CREATED, &set))
}

async fn challenge(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let answer = body.read(read::challenge)?;
    Ok(tokens(
        StatusCode::OK,
        &auth.answer_challenge(&visitor, answer).await?,
    ))
}

async fn exchange(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let (token, verifier) = body.read(read::exchange)?;
    let exchanged = auth.exchange(&visitor, &token, verifier.as_deref()).await?;
    Ok(no_store(json(StatusCode::OK, &exchanged)))
}

async fn refresh(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let token = body.read(read::refresh_token)?;
    Ok(tokens(
        StatusCode::OK,
        &auth.refresh(&visitor, &token).await?,
    ))
}

async fn logout(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let token = body.read(read::refresh_token)?;
    auth.logout(&visitor, &token).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn forgot(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let email = body.read(read::email)?;
    auth.forgot_password(visitor, email);
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn reset(State(auth): Shared, visitor: Visitor, body: Json) -> Answer {
    let reset = body.read(read::reset)?;
    auth.reset_password(&visitor, &reset).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn session(State(auth): Shared, visitor: Visitor, body: Result<Json, Problem>) -> Response {
    let answer = older(&auth, visitor, body).await.into_response();
    let deprecation = (HeaderName::from_static("deprecation"), DEPRECATED_SINCE);
    let successor = (
        LINK,
        HeaderValue::from_static("</auth/login>; rel=\"successor-version\""),
    );
    ([deprecation, successor], answer).into_response()
}

async fn older(auth: &Arc<Auth>, visitor: Visitor, body: Result<Json, Problem>) -> Answer {
    let request = body?.read(read::session)?;
    Ok(tokens(
        StatusCode::OK,
        &auth.session(&visitor, &request).await?,
    ))
}

async fn me(State(auth): Shared, headers: HeaderMap) -> Answer {
    Ok(no_store(json(
        StatusCode::OK,
        &auth.me(bearer(&headers)?).await?,
    )))
}

async fn social(State(auth): Shared, RawQuery(query): RawQuery) -> Answer {
    let social = auth.social.as_ref().ok_or(Code::NotFound)?;
    let query = query.as_deref().unwrap_or_default();
    let code_challenge = read::social_query(query, social.config.require_code_challenge)?;
    let url = auth.begin_social(social, code_challenge).await?;
    let location = HeaderValue::from_str(url.as_str()).map_err(|_| Code::Internal)?;
    Ok(no_store(
        (StatusCode::FOUND, [(LOCATION, location)]).into_response(),
    ))
}

async fn social_callback(
    State(auth): Shared,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Answer {
    let social = auth.social.as_ref().ok_or(Code::NotFound)?;
    let callback = read::callback(query.as_deref().unwrap_or_default());
    let landing = Box::pin(auth.finish_social(&visitor, social, callback)).await;
    landing::answer(&landing)
}

impl FromRequestParts<Arc<Auth>> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, auth: &Arc<Auth>) -> Result<Self, Infallible> {
        let RequestId(request_id) = RequestId::from_request_parts(parts, auth).await?;
        let peer = Peer::from_request_parts(parts, auth).await?;
        let address = auth.trusted_proxies.client_address(peer, &parts.headers);
        // The gateway itself is no client: its address would be the share of everybody.
        let client = address.filter(|address| !auth.trusted_proxies.contains(*address));
        BodyOwner::Anonymous(client).set(parts);
        Ok(Self {
            request_id,
            address,
        })
    }
}

fn tokens(status: StatusCode, set: &TokenSet) -> Response {
    no_store(json(status, set))
}
