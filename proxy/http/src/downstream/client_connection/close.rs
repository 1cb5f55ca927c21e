//! Closing of a client connection, lingering if necessary.

use std::sync::atomic::Ordering;

use crate::downstream::client_connection::ClientConnection;
use crate::message::framing::BodyFraming;

/// Closes the connection. If a response was sent before the whole request was received, the
/// connection lingers: closing it at once would reset it and discard the response.
impl Drop for ClientConnection {
    fn drop(&mut self) {
        let unread = !matches!(self.framing, BodyFraming::Done | BodyFraming::Tunnel);
        let (Some(transport), permit) = (self.transport.take(), self.permit.take()) else {
            return;
        };
        if self.reset_on_close.load(Ordering::Relaxed) {
            return transport.reset();
        }
        if unread
            && self.slow_client.bytes_sent > 0
            && tokio::runtime::Handle::try_current().is_ok()
        {
            tokio::spawn(async move {
                transport.linger().await;
                drop(permit);
            });
        }
    }
}
