//! The session trait of Pingora.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::custom::server::Session;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::io::AsyncWriteExt;

use crate::downstream::client_handle::common_session_methods;
use crate::downstream::http1_session::Http1Session;

#[async_trait]
impl Session for Http1Session {
    fn req_header(&self) -> &RequestHeader {
        &self.request
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.request
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        self.read().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        while self.read().await?.is_some() {}
        Ok(())
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.is_body_read() {
            return Err(self.wait_for_abort().await);
        }
        self.read().await
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, end: bool) -> Result<()> {
        self.write_head(head, end).await
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        self.write_head(Box::new(head.clone()), end).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.write_data(data, end).await
    }

    /// Ends the response without trailers, which RFC 9110 section 6.5.1 allows to be dropped.
    async fn write_trailers(&mut self, _trailers: HeaderMap) -> Result<()> {
        self.write_end().await
    }

    /// Is not called: the gateway forwards every request itself.
    async fn response_duplex_vec(&mut self, _tasks: Vec<HttpTask>) -> Result<bool> {
        Err(Error::new_in(ErrorType::InternalError))
    }

    async fn finish(&mut self) -> Result<()> {
        self.end().await
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.mark_truncated();
        if let Some(mut connection) = self.connection.take() {
            let _gone = AsyncWriteExt::shutdown(&mut *connection).await;
        }
    }

    fn was_upgraded(&self) -> bool {
        let response = self.response.as_ref();
        response.is_some_and(|response| response.status == StatusCode::SWITCHING_PROTOCOLS)
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.response.as_deref()
    }

    fn is_body_done(&mut self) -> bool {
        self.is_body_read()
    }

    fn is_body_empty(&mut self) -> bool {
        !self.has_body
    }

    fn body_bytes_sent(&self) -> usize {
        self.sent
    }

    fn body_bytes_read(&self) -> usize {
        self.received
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.connection.as_ref()?.socket_digest().peer_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.connection.as_ref()?.socket_digest().local_addr()
    }

    common_session_methods!();
}
