//! The client side of one exchange, for both forwarding paths and both protocols.

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

/// The operations on the client of a request.
pub(crate) trait ClientExchange: Send + Sync {
    fn request(&self) -> &RequestHeader;
    fn peer_address(&self) -> Option<IpAddr>;
    /// Returns the connection of an HTTP/1 request; `None` for HTTP/2 streams.
    fn connection(&self) -> Option<&ClientConnection>;
    /// Returns whether the connection uses TLS.
    fn is_tls(&self) -> bool;
    /// Returns the deadline of the request: that of the connection for HTTP/1, that of the stream
    /// for HTTP/2.
    fn deadline(&self) -> Option<&RequestDeadline>;
    /// Returns the status of the last response head that was written.
    fn response_status(&self) -> Option<StatusCode>;
    /// Returns whether the connection has become a tunnel.
    fn is_tunnel(&self) -> bool;
    /// Returns whether the request body, as far as it was read, can be sent again.
    fn can_replay_body(&self) -> bool;
    /// Returns the transferred bytes of the request body and of the response body.
    fn body_bytes(&self) -> (u64, u64);
    /// Makes the connection close after this response.
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
    /// Ends the response with trailers, if the protocol supports them.
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
        // Pingora would send the end of the stream in a separate empty frame. A gRPC Trailers-Only
        // response must be a single frame.
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
