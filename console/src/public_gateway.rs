//! Calls of the gateway's public listener on behalf of a browser: sign-in, and requests of the page
//! API.
//!
//! The gateway learns the address of the browser, so that its limits count people, not the console.
//! Responses are bounded in size and time. Input: a request and the address of the browser. Output:
//! a token, or a response. Depends on nothing.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::Method;
use http::header::{CONTENT_TYPE, HeaderName};
use postern_common::{Code, Problem, Secret};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use url::Url;

/// Maximum time of a sign-in.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum bytes of the response to a sign-in.
const MAX_SIGN_IN_RESPONSE_BYTES: usize = 64 << 10;
/// Maximum time of a request of the page API, with its response.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes that are read of the response to a request of the page API.
const MAX_TRY_RESPONSE_BYTES: usize = 512 << 10;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The public listener of the gateway.
#[derive(Debug)]
pub(crate) struct PublicGateway {
    client: reqwest::Client,
    base: Url,
}

/// A request of the page API.
#[derive(Debug)]
pub(crate) struct TryRequest {
    pub(crate) method: Method,
    /// Path and query, with a slash at the beginning.
    pub(crate) path: String,
    /// A JSON text.
    pub(crate) body: Option<String>,
    pub(crate) token: Secret,
    /// The address of the browser.
    pub(crate) client_address: Option<IpAddr>,
}

/// A response to a request of the page API.
#[derive(Debug)]
pub(crate) struct TryResponse {
    pub(crate) status: u16,
    pub(crate) request_id: Option<String>,
    pub(crate) body: String,
    /// Why the body is not complete, if it is not.
    pub(crate) note: Option<&'static str>,
}

/// The beginning of a body, and why the rest was not read.
#[derive(Debug)]
struct BodyStart {
    bytes: Vec<u8>,
    note: Option<&'static str>,
}

// === impl PublicGateway ===

impl PublicGateway {
    pub(crate) fn new(client: reqwest::Client, base: Url) -> Self {
        Self { client, base }
    }

    /// Signs in. The answer to wrong credentials is passed on.
    ///
    /// # Errors
    /// The problem of the gateway, or 503 if it does not answer.
    pub(crate) async fn sign_in(
        &self,
        credentials: &Value,
        client_address: Option<IpAddr>,
    ) -> Result<Secret, Problem> {
        let deadline = Instant::now() + SIGN_IN_TIMEOUT;
        let url = self.base.join("auth/login").map_err(|_| unavailable())?;
        let request = self.client.post(url).json(credentials);
        let reply = send(request, client_address, deadline).await?;
        let status = reply.status();
        let body = read_start(reply.bytes_stream(), MAX_SIGN_IN_RESPONSE_BYTES, deadline).await?;
        let answer: Value = serde_json::from_slice(&body.bytes).map_err(|_| unavailable())?;
        match answer["accessToken"].as_str() {
            Some(token) if status.is_success() => Ok(Secret::from(token)),
            Some(_) | None => {
                let code = answer["code"].as_str().and_then(Code::named);
                let problem = Problem::new(code.unwrap_or(Code::Unavailable));
                Err(match code {
                    Some(Code::ChallengeRequired) => problem.detail(
                        "this account signs in with a second step: sign in elsewhere and use its access token",
                    ),
                    Some(_) | None => problem,
                })
            }
        }
    }

    /// Sends a request of the page API. Of a long or slow response, the beginning is returned.
    ///
    /// # Errors
    /// 503 if the gateway does not begin to answer in time.
    pub(crate) async fn try_request(&self, request: TryRequest) -> Result<TryResponse, Problem> {
        let deadline = Instant::now() + TRY_TIMEOUT;
        let base = self.base.as_str().trim_end_matches('/');
        let url = format!("{base}{}", request.path);
        let call = self.client.request(request.method, url);
        let mut call = call.bearer_auth(request.token.expose());
        if let Some(text) = request.body {
            call = call.header(CONTENT_TYPE, "application/json").body(text);
        }
        let reply = send(call, request.client_address, deadline).await?;
        let status = reply.status().as_u16();
        let request_id = reply.headers().get("x-request-id");
        let request_id = request_id.and_then(|id| id.to_str().ok().map(str::to_owned));
        let body = read_start(reply.bytes_stream(), MAX_TRY_RESPONSE_BYTES, deadline).await?;
        Ok(TryResponse {
            status,
            request_id,
            body: String::from_utf8_lossy(&body.bytes).into_owned(),
            note: body.note,
        })
    }
}

fn unavailable() -> Problem {
    Problem::new(Code::Unavailable).detail("the gateway does not answer")
}

/// Sends a request with the address of the browser, and returns the response with its body unread.
async fn send(
    mut request: reqwest::RequestBuilder,
    client_address: Option<IpAddr>,
    deadline: Instant,
) -> Result<reqwest::Response, Problem> {
    if let Some(address) = client_address {
        request = request.header(FORWARDED_FOR, address.to_string());
    }
    let sent = timeout_at(deadline, request.send()).await;
    sent.map_err(|_| unavailable())?.map_err(|_| unavailable())
}

/// Reads a body until its end, `max_bytes` or `deadline`.
async fn read_start<E>(
    stream: impl Stream<Item = Result<Bytes, E>>,
    max_bytes: usize,
    deadline: Instant,
) -> Result<BodyStart, Problem> {
    let mut stream = std::pin::pin!(stream);
    let mut bytes = Vec::new();
    loop {
        let note = match timeout_at(deadline, stream.next()).await {
            Ok(Some(Ok(chunk))) => {
                let room = max_bytes - bytes.len();
                bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if chunk.len() <= room {
                    continue;
                }
                Some("The response is longer; the rest was not read.")
            }
            Ok(Some(Err(_))) => return Err(unavailable()),
            Ok(None) => None,
            Err(_) => Some("The response was not complete in time; the rest was not read."),
        };
        return Ok(BodyStart { bytes, note });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    type Chunk = Result<Bytes, ()>;

    fn chunk(text: &'static [u8]) -> Chunk {
        Ok(Bytes::from_static(text))
    }

    #[tokio::test(start_paused = true)]
    async fn long_and_slow_bodies_are_cut_with_a_note() {
        let deadline = || Instant::now() + TRY_TIMEOUT;
        let whole = stream::iter([chunk(b"abc"), chunk(b"def")]);
        let read = read_start(whole, 6, deadline()).await.expect("read");
        assert_eq!((read.bytes.as_slice(), read.note), (&b"abcdef"[..], None));
        let endless = stream::repeat_with(|| chunk(b"abcd"));
        let read = read_start(endless, 6, deadline()).await.expect("read");
        assert_eq!(read.bytes, b"abcdab");
        assert!(read.note.is_some_and(|note| note.contains("is longer")));
        let slow = stream::iter([chunk(b"abc")]).chain(stream::pending());
        let started = Instant::now();
        let read = read_start(slow, 6, deadline()).await.expect("read");
        assert_eq!(
            (read.bytes.as_slice(), started.elapsed()),
            (&b"abc"[..], TRY_TIMEOUT)
        );
        assert!(read.note.is_some_and(|note| note.contains("in time")));
        let broken = stream::iter([chunk(b"abc"), Err(())]);
        assert!(read_start(broken, 6, deadline()).await.is_err());
    }
}
