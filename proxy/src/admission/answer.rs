//! Answers of the gateway itself: redirects and fixed responses of routes, and the redirect of a
//! listener to HTTPS.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::Result;
use pingora_proxy::Session;
use postern_core::{Code, Problem};

use crate::admission::authorize::request_authority;
use crate::admission::header_changes::{field_value, variables};
use crate::admission::response_headers::apply_common_headers;
use crate::admission::{rate_limits, rejection};
use crate::config::{FixedResponse, HttpsRedirect, RedirectAnswer, RedirectTarget, RouteAnswer};
use crate::downstream::session_ext::SessionExt;
use crate::message::host::host_name;
use crate::message::target::RequestTarget;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;

/// A response before the fields that all responses have.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// The port of `https` URLs without a port.
const DEFAULT_HTTPS_PORT: u16 = 443;

/// Answers an admitted request, if its route has an answer. Returns whether it was answered.
pub(crate) async fn answer_route(client: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
    let answer = ctx.route().and_then(|route| route.answer.clone());
    let Some(answer) = answer else {
        return Ok(false);
    };
    write(client, &answer, ctx).await?;
    Ok(true)
}

async fn write(client: &mut Session, answer: &RouteAnswer, ctx: &mut RequestContext) -> Result<()> {
    let answer = match answer {
        RouteAnswer::Redirect(redirect) => redirect_answer(redirect, client, ctx),
        RouteAnswer::Respond(response) => Some(fixed_answer(response, client, ctx)),
    };
    match answer {
        Some(answer) => write_answer(client, answer, ctx).await,
        None => rejection::write_rejection(client, ctx, &Problem::new(Code::Internal)).await,
    }
}

/// Returns `None` if the location would be another host's or no URL. The configuration check
/// excludes that.
fn redirect_answer(
    redirect: &RedirectAnswer,
    client: &Session,
    ctx: &RequestContext,
) -> Option<Answer> {
    let expanded = variables(client.req_header(), ctx).expand(redirect.to.template());
    let location = RedirectTarget::location(expanded)?;
    Some(Answer {
        status: redirect.status,
        headers: [(LOCATION, location)].into_iter().collect(),
        body: Bytes::new(),
    })
}

fn fixed_answer(response: &FixedResponse, client: &Session, ctx: &RequestContext) -> Answer {
    let variables = variables(client.req_header(), ctx);
    let mut headers = HeaderMap::new();
    if let Some(content_type) = &response.content_type {
        headers.insert(CONTENT_TYPE, content_type.clone());
    }
    for (name, template) in &response.headers {
        if let Some(value) = field_value(name, template, &variables) {
            headers.insert(name, value);
        }
    }
    Answer {
        status: response.status,
        headers,
        body: response.bytes(),
    }
}

/// Answers a request to a listener that redirects to HTTPS. Returns whether the request was
/// answered.
pub(crate) async fn redirect_to_https(
    state: &GatewayState,
    client: &mut Session,
    ctx: &mut RequestContext,
) -> Result<bool> {
    if ctx.is_tls {
        return Ok(false);
    }
    let Some(redirect) = client.https_redirect().cloned() else {
        return Ok(false);
    };
    match https_location(state, client, &redirect, ctx) {
        Ok(location) => {
            let answer = Answer {
                status: StatusCode::PERMANENT_REDIRECT,
                headers: [(LOCATION, location)].into_iter().collect(),
                body: Bytes::new(),
            };
            write_answer(client, answer, ctx).await?;
        }
        Err(problem) => rejection::write_rejection(client, ctx, &problem).await?,
    }
    Ok(true)
}

/// Returns the location of a redirect to HTTPS. Its host is that of the listener, or a requested one
/// that a route accepts.
///
/// # Errors
/// The address limit is exceeded, the target is not canonical, or no route accepts the host.
fn https_location(
    state: &GatewayState,
    client: &Session,
    redirect: &HttpsRedirect,
    ctx: &mut RequestContext,
) -> std::result::Result<HeaderValue, Problem> {
    rate_limits::check_address(state, ctx)?;
    let head = client.req_header();
    RequestTarget::parse_ambiguous(head.raw_path())
        .map_err(|fault| Problem::new(Code::InvalidTarget).detail(fault.detail()))?;
    ctx.has_canonical_target = true;
    let requested = host_name(request_authority(head));
    let host = match &redirect.host {
        Some(host) => host.as_str(),
        None if ctx.config.route_table.accepts_host(&requested) => &*requested,
        None => return Err(Code::NotFound.into()),
    };
    let mut location = format!("https://{}", host.to_ascii_lowercase()).into_bytes();
    if redirect.port != DEFAULT_HTTPS_PORT {
        location.extend_from_slice(format!(":{}", redirect.port).as_bytes());
    }
    location.extend_from_slice(head.raw_path());
    RedirectTarget::location(location).ok_or_else(|| Code::Internal.into())
}

async fn write_answer(
    client: &mut Session,
    answer: Answer,
    ctx: &mut RequestContext,
) -> Result<()> {
    let Answer {
        status,
        headers,
        body,
    } = answer;
    let has_no_body = body.is_empty() || client.req_header().method == Method::HEAD;
    let mut response = ResponseHeader::build(status, Some(8))?;
    for (name, value) in &headers {
        response.insert_header(name, value)?;
    }
    // RFC 9110 section 8.6.
    if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        response.insert_header(CONTENT_LENGTH, body.len())?;
    }
    response.insert_header("X-Request-Id", ctx.id.hyphenated().to_string())?;
    apply_common_headers(client, &mut response, ctx)?;
    client.write_head(Box::new(response), has_no_body).await?;
    let body = (!has_no_body).then_some(body);
    client.write_response_body(body, true).await
}
