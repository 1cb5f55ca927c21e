//! The bytes of both sides after an upgrade.

use std::future::pending;
use std::io;

use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;
use postern_http::downstream::{AbortReason, RequestDeadline};
use postern_http::upstream::UpstreamConnection;
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::time::{sleep, sleep_until};

use crate::downstream::session_ext::SessionExt;
use crate::forwarding::response::token_expiry;
use crate::state::request_context::AdmittedRequest;

/// Copies bytes in both directions until the upstream closes the connection, a side fails, or the
/// token of the client expires; soon after the client has closed it. Nothing is read for a side that
/// accepts nothing.
///
/// # Errors
/// A limit of the client was exceeded.
pub(super) async fn run(
    upstream: &mut UpstreamConnection,
    session: &Session,
    admitted: &AdmittedRequest<'_>,
) -> Result<()> {
    let Some(mut client) = session.take_upgraded() else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    client.open_tunnel();
    upstream.set_write_stall_timeout(admitted.pool.config.write_timeout);
    let received = upstream.take_received();
    let (mut from_client, mut to_client) = split(&mut *client);
    let (mut from_upstream, mut to_upstream) = split(upstream.stream());
    let download = async {
        to_client.write_all(&received).await?;
        to_client.flush().await?;
        copy(&mut from_upstream, &mut to_client).await?;
        to_client.shutdown().await
    };
    let upload = async {
        copy(&mut from_client, &mut to_upstream).await?;
        to_upstream.shutdown().await?;
        // The upstream learns of the end, and need not answer it.
        sleep(admitted.config.limits.http.tunnel_timeout).await;
        io::Result::Ok(())
    };
    let expiry = async {
        match token_expiry(admitted) {
            Some(at) => sleep_until(at.into()).await,
            None => pending().await,
        }
    };
    tokio::select! {
        _ended_or_failed = download => {}
        _failed_or_overdue = upload => {}
        () = expiry => {
            if let Some(deadline) = session.deadline() {
                deadline.set_abort_reason(AbortReason::TokenExpired);
            }
        }
    }
    match session.deadline().and_then(RequestDeadline::abort_reason) {
        Some(_) => Err(Error::new_down(ErrorType::ReadError)),
        None => Ok(()),
    }
}
