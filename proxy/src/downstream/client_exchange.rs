//! The client of one request as the hooks see it, whoever carries the request.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_core::Result;
use pingora_proxy::Session;

use crate::downstream::client_connection::ClientConnection;
use crate::downstream::deadline::RequestDeadline;
use crate::downstream::http2_stream::IsTls;

/// What is asked of a client, and said to it.
pub(crate) trait ClientExchange: Send + Sync {
    fn request(&self) -> &RequestHeader;
    fn peer_address(&self) -> Option<IpAddr>;
    /// The connection under an HTTP/1 request; HTTP/2 streams have none of their own.
    fn connection(&self) -> Option<&ClientConnection>;
    /// Whether the connection is encrypted.
    fn is_tls(&self) -> bool;
    /// The time of the request: its connection's over HTTP/1, its stream's own over HTTP/2.
    fn deadline(&self) -> Option<&RequestDeadline>;
    /// The head that was written last.
    fn response_status(&self) -> Option<StatusCode>;
    /// Whether the connection has become a tunnel.
    fn is_tunnel(&self) -> bool;
    /// Whether the body of the request, as far as it was read, can be sent once more.
    fn can_replay_body(&self) -> bool;
    /// Bytes of the bodies of request and answer that have gone by.
    fn body_bytes(&self) -> (u64, u64);
    /// The connection is not to be kept after this answer.
    fn disable_keep_alive(&mut self);
    fn write_head(
        &mut self,
        head: ResponseHeader,
        end_of_stream: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    fn write_body(
        &mut self,
        data: Option<Bytes>,
        end_of_stream: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Ends the answer with these fields, where the protocol has trailers.
    fn write_trailers(&mut self, trailers: HeaderMap) -> impl Future<Output = Result<()>> + Send;
}

impl ClientExchange for Session {
    fn request(&self) -> &RequestHeader {
        self.req_header()
    }

    fn peer_address(&self) -> Option<IpAddr> {
        self.client_addr()
            .and_then(|address| address.as_inet())
            .map(SocketAddr::ip)
    }

    fn connection(&self) -> Option<&ClientConnection> {
        self.stream()
            .and_then(|stream| (**stream).as_any().downcast_ref::<ClientConnection>())
    }

    fn is_tls(&self) -> bool {
        match self.connection() {
            Some(connection) => connection.is_tls(),
            None => self
                .req_header()
                .extensions
                .get::<IsTls>()
                .is_some_and(|is_tls| is_tls.0),
        }
    }

    fn deadline(&self) -> Option<&RequestDeadline> {
        match self.connection() {
            Some(connection) => Some(connection.deadline()),
            None => self
                .req_header()
                .extensions
                .get::<Arc<RequestDeadline>>()
                .map(|deadline| &**deadline),
        }
    }

    fn response_status(&self) -> Option<StatusCode> {
        self.response_written().map(|response| response.status)
    }

    fn is_tunnel(&self) -> bool {
        self.was_upgraded()
    }

    fn can_replay_body(&self) -> bool {
        !self.as_ref().retry_buffer_truncated()
    }

    fn body_bytes(&self) -> (u64, u64) {
        (self.body_bytes_read() as u64, self.body_bytes_sent() as u64)
    }

    fn disable_keep_alive(&mut self) {
        self.set_keepalive(None);
    }

    async fn write_head(&mut self, head: ResponseHeader, end_of_stream: bool) -> Result<()> {
        // Pingora's own way leaves the end of a stream to an empty frame that follows, and
        // Trailers-Only is one frame.
        if end_of_stream && let Some(stream) = self.as_mut().as_custom_mut() {
            return stream.write_response_header(Box::new(head), true).await;
        }
        self.write_response_header(Box::new(head), end_of_stream)
            .await
    }

    async fn write_body(&mut self, data: Option<Bytes>, end_of_stream: bool) -> Result<()> {
        self.write_response_body(data, end_of_stream).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.as_mut().write_response_trailers(trailers).await
    }
}
