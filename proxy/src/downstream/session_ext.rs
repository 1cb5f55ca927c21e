//! What the gateway asks of a Pingora session, for both protocols.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use pingora::http::ResponseHeader;
use pingora::{Error, Result};
use pingora_proxy::Session;
use postern_http::downstream::{Attributes, ClientConnection, ClientHandle, RequestDeadline};
use postern_http::upstream::BoundConnection;

use crate::certificates::TlsClient;

/// What the listener of a connection and its TLS handshake have determined.
#[derive(Debug)]
pub(crate) struct ConnectionAttributes {
    /// The port to which the listener redirects by HTTPS, if it does.
    https_redirect: Option<u16>,
    /// The client of a server name with client authentication.
    tls_client: Option<Arc<TlsClient>>,
}

impl ConnectionAttributes {
    /// Creates the attributes of a connection; `None` if there are none.
    pub(crate) fn if_any(
        https_redirect: Option<u16>,
        tls_client: Option<Arc<TlsClient>>,
    ) -> Option<Attributes> {
        (https_redirect.is_some() || tls_client.is_some()).then(|| {
            Arc::new(Self {
                https_redirect,
                tls_client,
            }) as _
        })
    }

    fn of(session: &Session) -> Option<&Self> {
        handle(session)?.attributes.as_ref()?.downcast_ref()
    }
}

/// Returns the client of a connection whose server name has client authentication.
pub(crate) fn tls_client(connection: &ClientConnection) -> Option<Arc<TlsClient>> {
    let attributes = connection.attributes()?.downcast_ref();
    attributes.and_then(|it: &ConnectionAttributes| it.tls_client.clone())
}

/// The gateway's operations on a session.
pub(crate) trait SessionExt {
    fn peer_address(&self) -> Option<IpAddr>;
    /// Takes the connection of a client to which 101 was sent.
    fn take_upgraded(&self) -> Option<Box<ClientConnection>>;
    fn is_tls(&self) -> bool;
    /// Returns the redirect to HTTPS of the listener, if it has one.
    fn https_redirect(&self) -> Option<u16>;
    fn tls_client(&self) -> Option<&TlsClient>;
    /// Returns the place of an upstream connection that belongs to the client connection.
    fn bound_upstream(&self) -> Option<&BoundConnection>;
    /// Returns the deadline of the request: that of the connection for HTTP/1, that of the stream
    /// for HTTP/2.
    fn deadline(&self) -> Option<&RequestDeadline>;
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
        handle(self)?.connection.as_ref()?.lock().take()
    }

    fn is_tls(&self) -> bool {
        handle(self).is_some_and(|handle| handle.is_tls)
    }

    fn https_redirect(&self) -> Option<u16> {
        ConnectionAttributes::of(self)?.https_redirect
    }

    fn tls_client(&self) -> Option<&TlsClient> {
        ConnectionAttributes::of(self)?.tls_client.as_deref()
    }

    fn bound_upstream(&self) -> Option<&BoundConnection> {
        handle(self)?.bound_upstream.as_deref()
    }

    fn deadline(&self) -> Option<&RequestDeadline> {
        Some(&*handle(self)?.deadline)
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
        // separate empty frame.
        if let Some(session) = self.as_mut().as_custom_mut() {
            return session.write_response_header(head, end_of_stream).await;
        }
        self.write_response_header(head, end_of_stream).await
    }
}

fn handle(session: &Session) -> Option<&ClientHandle> {
    session.req_header().extensions.get::<ClientHandle>()
}
