//! The session trait of Pingora.

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::custom::server::Session;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::downstream::client_handle::common_session_methods;
use crate::downstream::http2_stream::{ClientStream, Http2Exchange};

#[async_trait]
impl Session for ClientStream {
    fn req_header(&self) -> &RequestHeader {
        &self.exchange.request
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.exchange.request
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        self.read().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        while self.read().await?.is_some() {}
        Ok(())
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.is_body_done() {
            return Err(self.wait_for_abort().await);
        }
        self.read().await
    }

    async fn write_response_header(
        &mut self,
        response: Box<ResponseHeader>,
        end: bool,
    ) -> Result<()> {
        self.write_control(end, |exchange| exchange.write_head(response, end))
    }

    async fn write_response_header_ref(
        &mut self,
        response: &ResponseHeader,
        end: bool,
    ) -> Result<()> {
        self.write_response_header(Box::new(response.clone()), end)
            .await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        if self.deadline.is_response_complete() {
            return Ok(());
        }
        self.write(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        // Trailers would be queued behind unread data, without a limit on the time.
        if self.slow_client.is_waiting_for_reader() {
            return Err(
                Error::explain(ErrorType::WriteTimedout, "trailers for a slow reader").into_down(),
            );
        }
        self.write_control(true, |exchange| exchange.write_trailers(trailers))
    }

    /// Is not called: the gateway forwards every request itself.
    async fn response_duplex_vec(&mut self, _tasks: Vec<HttpTask>) -> Result<bool> {
        Err(Error::new_in(ErrorType::InternalError))
    }

    async fn finish(&mut self) -> Result<()> {
        self.write_control(true, Http2Exchange::finish)?;
        if !self.is_body_read {
            self.exchange.drain().await;
        }
        Ok(())
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.exchange.reset();
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.exchange.response.as_deref()
    }

    fn is_body_done(&mut self) -> bool {
        self.pending_data.is_empty() && (self.is_body_read || self.exchange.is_body_done())
    }

    fn is_body_empty(&mut self) -> bool {
        self.exchange.received == 0 && self.exchange.is_body_done()
    }

    fn body_bytes_sent(&self) -> usize {
        self.exchange.sent
    }

    fn body_bytes_read(&self) -> usize {
        self.exchange.received
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.exchange.client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.exchange.server_addr()
    }

    common_session_methods!();
}
