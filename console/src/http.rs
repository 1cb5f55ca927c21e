//! Routes of the console.
//!
//! Shells and assets are public. Changes of other origins are rejected. Fragments, streams and changes require a bearer token. Changes
//! require the role operator and a JSON body, which a form of another site cannot send.
//!
//! Depends on `access`, `actions`, `live`, `pages`, `sessions`, `shell`, `sign_in`, `state`,
//! `tail` and `widgets`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
use http::header::{ALLOW, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, StatusCode, Uri};
use maud::Markup;
use postern_core::{Code, Problem, Secret};
use postern_service::http::{AllowedHosts, Json, Peer, SmallJson, json, no_store};
use serde_json::json as object;

use crate::access::{Caller, Person, Role};
use crate::pages::{self, Context};
use crate::state::ConsoleState;
use crate::widgets::to_text;
use crate::{actions, configuration, live, shell, tail};

impl FromRequestParts<Arc<ConsoleState>> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<ConsoleState>,
    ) -> Result<Self, Infallible> {
        let peer = Peer::from_request_parts(parts, state).await?;
        Ok(Self {
            headers: parts.headers.clone(),
            address: state.trusted_proxies.client_address(peer, &parts.headers),
        })
    }
}

/// Pages outside of the navigation.
const OTHER_PAGES: &str =
    "/search /notifications/{id} /history/{number} /templates/{name} /users/{name}";

type Shared = State<Arc<ConsoleState>>;

/// The body of a sign-in: anybody may send one.
type Credentials = SmallJson<{ 4 << 10 }>;

/// A caller with a role. Extracted from the head of a request: a body of anybody else is not read.
struct SignedIn {
    person: Person,
    caller: Caller,
}

/// A person with the role operator, extracted as [`SignedIn`] is.
struct OperatorOnly(Person);

impl FromRequestParts<Arc<ConsoleState>> for SignedIn {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<ConsoleState>,
    ) -> Result<Self, Problem> {
        let Ok(caller) = Caller::from_request_parts(parts, state).await;
        let person = state.access.authenticate(&caller).await?;
        Ok(Self { person, caller })
    }
}

impl FromRequestParts<Arc<ConsoleState>> for OperatorOnly {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<ConsoleState>,
    ) -> Result<Self, Problem> {
        let SignedIn { person, .. } = SignedIn::from_request_parts(parts, state).await?;
        if person.role < Role::Operator {
            let detail = "changes require the role operator ([roles] of console.toml)";
            return Err(Problem::new(Code::InsufficientScope).detail(detail));
        }
        Ok(Self(person))
    }
}

/// Returns the router of the console.
pub(crate) fn router(state: Arc<ConsoleState>, hosts: AllowedHosts) -> Router {
    let mut router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route(
            "/assets/{hash}/{name}",
            get(|uri: Uri| async move { shell::asset(uri.path()) }),
        )
        .route("/session", get(session).delete(sign_out))
        .route("/session/sign-in", post(sign_in))
        .route("/session/exchange", post(exchange))
        .route("/session/link", post(create_link))
        .route("/fragments/{*page}", get(fragment))
        .route("/frames/{secret}", get(frame))
        .route("/live/requests", get(live_requests))
        .route("/live/fragments/{*page}", get(live_fragment))
        .route("/actions/{name}", post(act))
        .route("/check-configuration", post(check_configuration))
        .route("/request-details", post(request_details))
        .route("/configuration/changes", post(configuration_changes));
    for path in shell::pages()
        .map(|(path, ..)| *path)
        .chain(OTHER_PAGES.split(' '))
    {
        router = router.route(path, get(page));
    }
    // A route, because the request layer sets the fallback, which would lack the header fields.
    let router = router.route("/{*path}", any(|| async { Code::NotFound }));
    let router = router
        .with_state(state)
        .layer(from_fn(reject_other_origins));
    // The outermost layer: the answer to a foreign host has the header fields, too.
    hosts.guard(router).layer(map_response(protect))
}

async fn protect(mut response: Response) -> Response {
    // The request layer would create a new response, without the header fields.
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = response.headers().get(ALLOW);
        let allow = allow.and_then(|allow| allow.to_str().ok());
        let problem = Problem::method_not_allowed(allow.unwrap_or_default().to_owned());
        response.extensions_mut().insert(problem);
    }
    shell::protect(response)
}

/// Answers 400 to a change from a page of another origin (RFC 6454). Browsers send `Origin` with
/// every change; other clients need not.
async fn reject_other_origins(request: Request, next: Next) -> Response {
    if request.method().is_safe() || is_own_origin(request.headers()) {
        return next.run(request).await;
    }
    let detail = "Origin is not that of this console";
    Problem::new(Code::InvalidHeader)
        .detail(detail)
        .into_response()
}

/// Returns whether the host and port of `Origin` are those of `Host`, or there is no `Origin`. The
/// scheme may differ behind a proxy with TLS.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return true;
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let authority = origin.to_str().ok().and_then(|origin| {
        let (scheme, authority) = origin.split_once("://")?;
        matches!(scheme, "http" | "https").then_some(authority)
    });
    let both = authority.zip(host);
    both.is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host)) && origins.next().is_none()
}

fn markup(markup: Markup) -> Response {
    Html(to_text(markup)).into_response()
}

async fn page(State(state): Shared) -> Response {
    markup(shell::page(state.access.sessions.link_command()))
}

async fn session(SignedIn { person, .. }: SignedIn) -> Response {
    let body = object!({ "name": person.name, "role": person.role.as_str() });
    no_store(json(StatusCode::OK, &body))
}

async fn sign_out(State(state): Shared, caller: Caller) -> Response {
    state.access.sign_out(&caller);
    StatusCode::NO_CONTENT.into_response()
}

async fn sign_in(
    State(state): Shared,
    caller: Caller,
    SmallJson(body): Credentials,
) -> Result<Response, Problem> {
    let credentials = body.read(|root| {
        let email = root.required("email", |field| field.text(1..=254));
        let password = root.required("password", |field| field.text(1..=1024));
        Some(object!({ "email": email?, "password": password? }))
    })?;
    let attempt = state.access.attempts.admit(caller.address)?;
    let token = state.sign_in.sign_in(&credentials, caller.address).await;
    attempt.settle(&token);
    Ok(secret_answer("token", &token?))
}

/// Exchanges the secret of a one-time link for the token of a session.
async fn exchange(
    State(state): Shared,
    caller: Caller,
    SmallJson(body): Credentials,
) -> Result<Response, Problem> {
    let secret = body.read(|root| root.required("secret", |field| field.text(1..=128)))?;
    let token = state.access.exchange(&caller, &secret)?;
    Ok(secret_answer("token", &token))
}

/// Creates a one-time link for `postern console-link`.
async fn create_link(State(state): Shared, caller: Caller) -> Result<Response, Problem> {
    let secret = state.access.create_link(&caller)?;
    Ok(secret_answer("secret", &secret))
}

fn secret_answer(name: &str, secret: &Secret) -> Response {
    no_store(json(StatusCode::OK, &object!({ name: secret.expose() })))
}

async fn fragment(
    State(state): Shared,
    SignedIn { person, .. }: SignedIn,
    Path(page): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let context = Context::new(&state, &person, uri.query());
    let rendered = Box::pin(pages::render(&page, &context)).await;
    rendered.map(markup)
}

async fn frame(State(state): Shared, Path(secret): Path<String>) -> Response {
    state.frames.take(&secret)
}

async fn live_fragment(
    State(state): Shared,
    SignedIn { caller, .. }: SignedIn,
    Path(page): Path<String>,
    uri: Uri,
) -> Response {
    live::fragments(state, page, uri, caller)
}

async fn live_requests(
    State(state): Shared,
    SignedIn { person, caller }: SignedIn,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = uri.query().unwrap_or_default();
    tail::requests(state, &person, caller, query).await
}

/// Renders the details of a request from its event in the live tail, which changes nothing.
async fn request_details(
    State(state): Shared,
    SignedIn { person, .. }: SignedIn,
    body: Json,
) -> Result<Response, Problem> {
    let event = body.into_node()?.to_json();
    if !event.is_object() {
        return Err(Code::InvalidRequest.into());
    }
    let context = Context::new(&state, &person, None);
    let details = Box::pin(pages::request_details(&context, &event)).await;
    Ok(markup(details))
}

async fn act(
    State(state): Shared,
    OperatorOnly(person): OperatorOnly,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    let outcomes = if name == configuration::SAVE {
        let change = body.read(configuration::Change::read)?;
        // A task, because a change that has begun continues if the browser has gone.
        let directory = Arc::clone(&state.directory);
        let save = async move { configuration::save(&change, &person, &directory).await };
        let saved = tokio::spawn(save).await;
        saved.map_err(|_panicked| Code::Internal)?
    } else {
        let action = actions::find(&name).ok_or(Code::NotFound)?;
        let node = body.into_node()?.to_json();
        let fields = node.as_object().ok_or(Code::InvalidRequest)?;
        actions::perform(action, fields, &person, &state.directory).await?
    };
    let is_done = actions::are_done(&outcomes);
    let body = object!({ "isDone": is_done, "outcomes": outcomes });
    Ok(no_store(json(StatusCode::OK, &body)))
}

/// Checks a configuration text, which changes nothing. It may name any file of the gateway, so it
/// requires the role operator.
async fn check_configuration(
    State(state): Shared,
    OperatorOnly(person): OperatorOnly,
    body: Json,
) -> Result<Response, Problem> {
    let text =
        body.read(|root| root.required("text", |field| field.string().map(str::to_owned)))?;
    let context = Context::new(&state, &person, None);
    Ok(markup(pages::check_configuration(&context, &text).await))
}

/// Returns how the files of the gateways differ from the text on which an edited one is based, and
/// their hashes.
async fn configuration_changes(
    State(state): Shared,
    _: OperatorOnly,
    body: Json,
) -> Result<Response, Problem> {
    let base =
        body.read(|root| root.required("base", |field| field.string().map(str::to_owned)))?;
    let files = configuration::read_all(&state.directory).await;
    let body = object!({
        "html": to_text(pages::configuration_changes(&files, &base)),
        "bases": configuration::bases(&files),
    });
    Ok(no_store(json(StatusCode::OK, &body)))
}
