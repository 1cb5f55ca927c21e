use std::sync::atomic::Ordering;

use crate::downstream::client_connection::Wire;
use crate::message::framing::Framing;

/// A client that was answered while it was still sending gets a moment to read the answer: closing
/// at once would reset the connection under it.
impl Drop for Wire {
    fn drop(&mut self) {
        let unread = !matches!(self.framing, Framing::Done | Framing::Tunnel);
        let (Some(transport), permit) = (self.transport.take(), self.permit.take()) else {
            return;
        };
        if let (true, Some(permit)) = (self.unheard.load(Ordering::Relaxed), &permit) {
            permit.unheard.inc();
        }
        if self.reset.load(Ordering::Relaxed) {
            return transport.reset();
        }
        if unread && self.patience.sent > 0 && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                transport.linger().await;
                drop(permit);
            });
        }
    }
}
