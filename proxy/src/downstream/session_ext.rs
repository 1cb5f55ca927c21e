//! What the gateway asks of a Pingora session, for both protocols.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use pingora::http::ResponseHeader;
use pingora_core::{Error, Result};
use pingora_proxy::Session;

use crate::certificates::TlsClient;
use crate::config::HttpsRedirect;
use crate::downstream::client_connection::ClientConnection;
use crate::downstream::deadline::RequestDeadline;
use crate::downstream::http1_session::{ConnectionSlot, take_connection};
use crate::upstream::BoundConnection;

/// A request extension of the gateway's own sessions, whose connection hooks cannot reach.
#[derive(Clone, Debug)]
pub(crate) struct ClientHandle {
    pub(crate) deadline: Arc<RequestDeadline>,
    /// Whether the connection uses TLS.
    pub(crate) is_tls: bool,
    /// The redirect to HTTPS of the listener, if it has one.
    pub(crate) https_redirect: Option<Arc<HttpsRedirect>>,
    /// The client of a server name with client authentication.
    pub(crate) tls_client: Option<Arc<TlsClient>>,
    /// HTTP/1 only: the upstream connection that belongs to the client connection.
    pub(crate) bound_upstream: Option<Arc<BoundConnection>>,
    /// HTTP/1 only: where the session leaves its connection after an upgrade.
    pub(crate) connection: Option<ConnectionSlot>,
}

/// A reader of custom messages, which HTTP does not have.
pub(crate) type CustomMessages =
    Box<dyn futures_util::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

/// Implements the methods of Pingora's session trait that have no meaning for the gateway: its own
/// [deadlines](crate::downstream::deadline) replace the timeouts, and HTTP has no custom messages.
macro_rules! no_session_timeouts_or_messages {
    () => {
        fn set_read_timeout(&mut self, _timeout: Option<std::time::Duration>) {}

        fn get_read_timeout(&self) -> Option<std::time::Duration> {
            None
        }

        fn set_write_timeout(&mut self, _timeout: Option<std::time::Duration>) {}

        fn get_write_timeout(&self) -> Option<std::time::Duration> {
            None
        }

        fn set_total_drain_timeout(&mut self, _timeout: Option<std::time::Duration>) {}

        fn get_total_drain_timeout(&self) -> Option<std::time::Duration> {
            None
        }

        fn take_custom_message_reader(
            &mut self,
        ) -> Option<$crate::downstream::session_ext::CustomMessages> {
            None
        }

        fn restore_custom_message_reader(
            &mut self,
            _reader: $crate::downstream::session_ext::CustomMessages,
        ) -> pingora_core::Result<()> {
            Ok(())
        }

        fn take_custom_message_writer(
            &mut self,
        ) -> Option<Box<dyn pingora_core::protocols::http::custom::CustomMessageWrite>> {
            None
        }

        fn restore_custom_message_writer(
            &mut self,
            _writer: Box<dyn pingora_core::protocols::http::custom::CustomMessageWrite>,
        ) -> pingora_core::Result<()> {
            Ok(())
        }
    };
}
pub(crate) use no_session_timeouts_or_messages;

/// The gateway's operations on a session.
pub(crate) trait SessionExt {
    /// Returns the IP address of the peer.
    fn peer_address(&self) -> Option<IpAddr>;
    /// Takes the connection of a client to which 101 was sent.
    fn take_upgraded(&self) -> Option<Box<ClientConnection>>;
    /// Returns whether the connection uses TLS.
    fn is_tls(&self) -> bool;
    /// Returns the redirect to HTTPS of the listener, if it has one.
    fn https_redirect(&self) -> Option<&Arc<HttpsRedirect>>;
    /// Returns the client of a server name with client authentication.
    fn tls_client(&self) -> Option<&TlsClient>;
    /// Returns the place of an upstream connection that belongs to the client connection.
    fn bound_upstream(&self) -> Option<&BoundConnection>;
    /// Returns the deadline of the request: that of the connection for HTTP/1, that of the stream
    /// for HTTP/2.
    fn deadline(&self) -> Option<&RequestDeadline>;
    /// Returns the same deadline, for other tasks.
    fn shared_deadline(&self) -> Option<Arc<RequestDeadline>>;
    /// Returns the status of the last response head that was written.
    fn response_status(&self) -> Option<StatusCode>;
    /// Makes the connection close after this response.
    fn close_after_response(&mut self);
    /// Writes trailers, which end the response.
    fn write_trailers(&mut self, trailers: HeaderMap) -> impl Future<Output = Result<()>> + Send;
    /// Writes a response head. `end_of_stream` if there is no body.
    fn write_head(
        &mut self,
        head: Box<ResponseHeader>,
        end_of_stream: bool,
    ) -> impl Future<Output = Result<()>> + Send;
}

impl SessionExt for Session {
    fn peer_address(&self) -> Option<IpAddr> {
        self.client_addr()
            .and_then(|address| address.as_inet())
            .map(SocketAddr::ip)
    }

    fn take_upgraded(&self) -> Option<Box<ClientConnection>> {
        take_connection(handle(self)?.connection.as_ref()?)
    }

    fn is_tls(&self) -> bool {
        handle(self).is_some_and(|handle| handle.is_tls)
    }

    fn https_redirect(&self) -> Option<&Arc<HttpsRedirect>> {
        handle(self)?.https_redirect.as_ref()
    }

    fn tls_client(&self) -> Option<&TlsClient> {
        handle(self)?.tls_client.as_deref()
    }

    fn bound_upstream(&self) -> Option<&BoundConnection> {
        handle(self)?.bound_upstream.as_deref()
    }

    fn deadline(&self) -> Option<&RequestDeadline> {
        Some(&*handle(self)?.deadline)
    }

    fn shared_deadline(&self) -> Option<Arc<RequestDeadline>> {
        Some(Arc::clone(&handle(self)?.deadline))
    }

    fn response_status(&self) -> Option<StatusCode> {
        self.response_written().map(|response| response.status)
    }

    fn close_after_response(&mut self) {
        if let Some(handle) = handle(self) {
            handle.deadline.close_after_response();
        }
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        match self.as_mut().as_custom_mut() {
            Some(session) => session.write_trailers(trailers).await,
            None => self.write_response_body(None, true).await,
        }
        .map_err(Error::into_down)
    }

    async fn write_head(&mut self, head: Box<ResponseHeader>, end_of_stream: bool) -> Result<()> {
        // Pingora would not tell the session that the response ends, which would then be sent in a
        // separate empty frame. A gRPC Trailers-Only response must be a single frame.
        if let Some(session) = self.as_mut().as_custom_mut() {
            return session.write_response_header(head, end_of_stream).await;
        }
        self.write_response_header(head, end_of_stream).await
    }
}

fn handle(session: &Session) -> Option<&ClientHandle> {
    session.req_header().extensions.get::<ClientHandle>()
}
