//! What both kinds of sessions have in common.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use pingora_core::Result;

use crate::downstream::deadline::RequestDeadline;
use crate::downstream::http1_session::ConnectionSlot;
use crate::upstream::BoundConnection;

/// What a server knows of a connection, for its own hooks. The engine passes it on.
pub type Attributes = Arc<dyn Any + Send + Sync>;

/// A request extension of the sessions, whose connection the hooks of Pingora cannot reach.
#[derive(Clone, Debug)]
pub struct ClientHandle {
    /// The deadline of the request: that of the connection for HTTP/1, that of the stream for HTTP/2.
    pub deadline: Arc<RequestDeadline>,
    /// Whether the connection uses TLS.
    pub is_tls: bool,
    /// What the server knows of the connection.
    pub attributes: Option<Attributes>,
    /// HTTP/1 only: the upstream connection that belongs to the client connection.
    pub bound_upstream: Option<Arc<BoundConnection>>,
    /// HTTP/1 only: where the session leaves its connection after an upgrade.
    pub connection: Option<ConnectionSlot>,
}

/// A reader of custom messages, which HTTP does not have.
pub(crate) type CustomMessages =
    Box<dyn futures_util::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

/// Implements the methods of Pingora's session trait that both sessions implement alike. Most have no
/// meaning for the gateway: its own [deadlines](crate::downstream::deadline) replace the timeouts,
/// and HTTP has no custom messages.
macro_rules! common_session_methods {
    () => {
        fn enable_retry_buffering(&mut self) {
            self.retry_buffer.get_or_insert_default();
        }

        fn retry_buffer_truncated(&self) -> bool {
            let buffer = self.retry_buffer.as_ref();
            buffer.is_some_and(|buffer| buffer.is_truncated)
        }

        fn get_retry_buffer(&self) -> Option<Bytes> {
            self.retry_buffer.as_ref()?.contents()
        }

        fn request_summary(&self) -> String {
            self.req_header().method.to_string()
        }

        fn pseudo_raw_h1_request_header(&self) -> Bytes {
            Bytes::new()
        }

        fn digest(&self) -> Option<&pingora_core::protocols::Digest> {
            None
        }

        fn digest_mut(&mut self) -> Option<&mut pingora_core::protocols::Digest> {
            None
        }

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
        ) -> Option<$crate::downstream::client_handle::CustomMessages> {
            None
        }

        fn restore_custom_message_reader(
            &mut self,
            _reader: $crate::downstream::client_handle::CustomMessages,
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
pub(crate) use common_session_methods;
