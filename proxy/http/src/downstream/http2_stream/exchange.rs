//! A stream of the HTTP/2 library with its request and response. Pingora's own wrapper drops interim
//! responses and does not wait for the end of a stream without content.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Response};
use pingora_core::protocols::SocketDigest;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::protocols::http::v2;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::downstream::client_connection::{LINGER_TIMEOUT, MAX_LINGER_BYTES};
use crate::downstream::http1_session::MAX_DRAIN_BYTES;

/// Fields that HTTP/2 does not have (RFC 9113 section 8.2.2).
const CONNECTION_FIELDS: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Maximum number of interim responses: they are queued without flow control. Later ones are dropped.
const MAX_INTERIM_RESPONSES: u8 = 16;

/// A request and its response.
pub struct Http2Exchange {
    pub(super) request: RequestHeader,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    interim_responses: u8,
    /// The writer of the body, once the head of the final response was sent.
    writer: Option<SendStream<Bytes>>,
    pub(super) response: Option<Box<ResponseHeader>>,
    /// Whether the end of the response was sent.
    is_ended: bool,
    pub(super) received: usize,
    pub(super) sent: usize,
    socket: Arc<SocketDigest>,
}

impl Http2Exchange {
    /// Creates the exchange of an accepted stream.
    pub fn new(
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        socket: Arc<SocketDigest>,
    ) -> Self {
        let (request, body) = request.into_parts();
        Self {
            request: RequestHeader::from(request),
            body,
            respond,
            interim_responses: 0,
            writer: None,
            response: None,
            is_ended: false,
            received: 0,
            sent: 0,
            socket,
        }
    }

    /// Returns the head of the request.
    pub fn request(&self) -> &RequestHeader {
        &self.request
    }

    /// Returns the address of the client.
    pub fn client_addr(&self) -> Option<&SocketAddr> {
        self.socket.peer_addr()
    }

    pub(super) fn server_addr(&self) -> Option<&SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns whether the client has ended the stream and all of the body was read.
    pub(super) fn is_body_done(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Reads the payload of the next DATA frame; `None` at the end of the body.
    pub(super) async fn read_data(&mut self) -> Result<Option<Bytes>> {
        let data = self.body.data().await.transpose();
        let data = data.or_err(ErrorType::ReadError, "reading a request body")?;
        if let Some(data) = &data {
            self.received += data.len();
            let _ended = self.body.flow_control().release_capacity(data.len());
        }
        Ok(data)
    }

    /// Discards the rest of the body after the response, until the client ends or resets the stream,
    /// within the limits of an HTTP/1.1 connection that lingers. The stream is reset afterwards: some
    /// clients discard a response that a reset follows at once (RFC 9113 section 8.1 does not allow
    /// that). After a success clients send on, so that a long body is ended by a reset at once: curl
    /// 7.88 does not stop after a later one.
    pub async fn drain(&mut self) {
        let length = self.request.headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let is_long = length.is_some_and(|length: u64| length > MAX_DRAIN_BYTES);
        let response = self.response.as_ref();
        if is_long && response.is_some_and(|response| response.status.is_success()) {
            return;
        }
        let reading = async {
            let mut left = MAX_LINGER_BYTES;
            while left > 0
                && let Ok(Some(data)) = self.read_data().await
            {
                left = left.saturating_sub(data.len());
            }
        };
        let _slow = tokio::time::timeout(LINGER_TIMEOUT, reading).await;
    }

    /// Completes when the client resets the stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reason>> {
        let reset = match &mut self.writer {
            Some(writer) => writer.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        reset.map(|reason| reason.or_err(ErrorType::H2Error, "waiting for a client"))
    }

    /// Writes the head of an interim or of the final response. That of a response to HEAD is its end
    /// (RFC 9110 section 9.3.2).
    pub fn write_head(&mut self, mut head: Box<ResponseHeader>, end: bool) -> Result<()> {
        if self.response.is_some() {
            return Ok(());
        }
        for name in &CONNECTION_FIELDS {
            head.remove_header(name);
        }
        if head.status.is_informational() {
            if self.interim_responses == MAX_INTERIM_RESPONSES {
                return Ok(());
            }
            self.interim_responses += 1;
            let interim = Response::from_parts(head.as_owned_parts(), ());
            let sent = self.respond.send_informational(interim);
            return sent.or_err(ErrorType::WriteError, "writing an interim response");
        }
        head.insert_header(DATE, get_cached_date())?;
        let end = end || self.request.method == Method::HEAD;
        let response = Response::from_parts(head.as_owned_parts(), ());
        let writer = self.respond.send_response(response, end);
        self.writer = Some(writer.or_err(ErrorType::WriteError, "writing a response head")?);
        self.response = Some(head);
        self.is_ended = end;
        Ok(())
    }

    /// Writes a part of the body, unless the response has ended.
    pub async fn write_data(&mut self, data: Bytes, end: bool) -> Result<()> {
        if self.is_ended {
            return Ok(());
        }
        let length = data.len();
        v2::write_body(self.writer()?, data, end, None)
            .await
            .map_err(Error::into_down)?;
        self.sent += length;
        self.is_ended = end;
        Ok(())
    }

    /// Writes trailers, which end the response.
    pub(super) fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        if !self.is_ended {
            let sent = self.writer()?.send_trailers(trailers);
            sent.or_err(ErrorType::WriteError, "writing trailers")?;
            self.is_ended = true;
        }
        Ok(())
    }

    /// Ends the response. Without a response, the stream is reset when it is dropped.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let (false, Some(writer)) = (self.is_ended, &mut self.writer) {
            let sent = writer.send_data(Bytes::new(), true);
            sent.or_err(ErrorType::WriteError, "writing the end of a response")?;
            self.is_ended = true;
        }
        Ok(())
    }

    /// Resets the stream, unless the response has ended.
    pub(super) fn reset(&mut self) {
        if !self.is_ended {
            self.respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }

    fn writer(&mut self) -> Result<&mut SendStream<Bytes>> {
        self.writer
            .as_mut()
            .ok_or_else(|| Error::new_down(ErrorType::WriteError))
    }
}
