//! Answers of the gateway itself: redirects and fixed responses of routes, and the redirect of a
//! listener to HTTPS.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use postern_core::{Code, Problem};
use postern_http::message::host::host_name;
use postern_http::message::target::RequestTarget;

use crate::admission::authorize::request_authority;
use crate::admission::header_changes::variables;
use crate::admission::response_headers::apply_common_headers;
use crate::admission::{cors, rate_limits};
use crate::config::{DEFAULT_HTTPS_PORT, RedirectTarget, RouteAnswer};
use crate::downstream::session_ext::SessionExt;
use crate::state::GatewayState;
use crate::state::request_context::ReceivedRequest;

/// A response before the fields that all responses have.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether it answers a preflight request, so that the route changes no fields of it.
    pub(super) is_preflight: bool,
}

impl Answer {
    /// Returns an answer without header fields and body.
    pub(super) fn new(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            is_preflight: false,
        }
    }

    fn redirect(status: StatusCode, location: HeaderValue) -> Self {
        let mut answer = Self::new(status);
        answer.headers.insert(LOCATION, location);
        answer
    }

    /// Returns the answer of a route.
    ///
    /// # Errors
    /// The location would be another host's or no URL. The configuration check excludes that.
    pub(super) fn of_route(
        answer: &RouteAnswer,
        head: &RequestHeader,
        request: &ReceivedRequest,
    ) -> Result<Self, Problem> {
        match answer {
            RouteAnswer::Redirect(redirect) => {
                let variables = variables(head, request, None);
                let location = RedirectTarget::location(variables.expand(redirect.to.template()));
                Ok(Self::redirect(
                    redirect.status,
                    location.ok_or(Code::Internal)?,
                ))
            }
            RouteAnswer::Respond(response) => {
                let mut answer = Self::new(response.status);
                answer.body = response.body.clone();
                let content_type = response.content_type.iter();
                let content_type = content_type.map(|it| (CONTENT_TYPE, it.clone()));
                answer.headers.extend(content_type);
                Ok(answer)
            }
        }
    }

    pub(super) async fn write(self, client: &mut Session, request: &ReceivedRequest) -> Result<()> {
        let has_no_body = self.body.is_empty() || client.req_header().method == Method::HEAD;
        let mut response = ResponseHeader::build(self.status, Some(8))?;
        for (name, value) in &self.headers {
            response.insert_header(name, value)?;
        }
        // RFC 9110 section 8.6.
        if !matches!(
            self.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        ) {
            response.insert_header(CONTENT_LENGTH, self.body.len())?;
        }
        response.insert_header("X-Request-Id", request.id.hyphenated().to_string())?;
        match self.is_preflight {
            true => cors::apply_headers(request, &client.req_header().headers, &mut response)?,
            false => apply_common_headers(client, &mut response, request, None)?,
        }
        client.write_head(Box::new(response), has_no_body).await?;
        let body = (!has_no_body).then_some(self.body);
        client.write_response_body(body, true).await
    }
}

/// Returns the answer to a request to a listener that redirects to HTTPS. Its host is the requested
/// one, which a route accepts.
///
/// # Errors
/// The address limit is exceeded, the target is not canonical, or no route accepts the host.
pub(super) fn to_https(
    state: &GatewayState,
    head: &RequestHeader,
    port: u16,
    request: &mut ReceivedRequest,
) -> Result<Answer, Problem> {
    rate_limits::check_address(state, request)?;
    RequestTarget::parse_ambiguous(head.raw_path())
        .map_err(|fault| Problem::new(Code::InvalidTarget).detail(fault.detail()))?;
    request.has_canonical_target = true;
    let host = host_name(request_authority(head));
    if !request.config.route_table.accepts_host(&host) {
        return Err(Code::NotFound.into());
    }
    let mut location = format!("https://{}", host.to_ascii_lowercase()).into_bytes();
    if port != DEFAULT_HTTPS_PORT {
        location.extend_from_slice(format!(":{port}").as_bytes());
    }
    location.extend_from_slice(head.raw_path());
    let location = RedirectTarget::location(location).ok_or(Code::Internal)?;
    Ok(Answer::redirect(StatusCode::PERMANENT_REDIRECT, location))
}
