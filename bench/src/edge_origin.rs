//! The origin of the edge loads: small and large responses, and uploads whose bytes are compared.

use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::peers::ORIGIN_RESPONSE;

/// Path of uploads and of the large response.
pub(crate) const DOCUMENT_PATH: &str = "/documents/41";

/// Size of the large response, and the largest upload.
pub(crate) const DOCUMENT_BYTES: usize = 1 << 20;

/// The large response. An upload is correct if it is a beginning of it.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    // Numbers of a linear congruential generator: incompressible, and without a period that could
    // hide a chunk in the wrong place.
    let mut state = 41_u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(DOCUMENT_BYTES).collect()
});

/// Returns the first `length` bytes of the document.
pub(crate) fn document(length: usize) -> Bytes {
    DOCUMENT.slice(..length)
}

/// Runs until the process is killed, on one thread.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn run(listen: SocketAddr) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let connection =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond));
            tokio::spawn(connection);
        }
    })
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let is_document = request.uri().path() == DOCUMENT_PATH;
    if request.method() == Method::POST {
        let received = request.into_body().collect().await?.to_bytes();
        return Ok(response(received_status(&received), json()));
    }
    Ok(if is_document {
        response(StatusCode::OK, document(DOCUMENT_BYTES))
    } else {
        response(StatusCode::OK, json())
    })
}

/// Returns the status for an upload: 422 if a byte is wrong.
fn received_status(received: &[u8]) -> StatusCode {
    if !received.is_empty() && DOCUMENT.starts_with(received) {
        StatusCode::OK
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    }
}

fn json() -> Bytes {
    Bytes::from_static(ORIGIN_RESPONSE.as_bytes())
}

fn response(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_with_a_wrong_byte_is_rejected() {
        let right = document(4 << 10);
        assert_eq!(received_status(&right), StatusCode::OK);
        let mut wrong = right.to_vec();
        wrong[4_000] ^= 1;
        assert_eq!(received_status(&wrong), StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(
            received_status(&[right.as_ref(), b"x"].concat()),
            StatusCode::UNPROCESSABLE_ENTITY,
            "a byte too many"
        );
    }

    #[test]
    fn chunks_in_the_wrong_order_are_detected() {
        let document = document(DOCUMENT_BYTES);
        let chunks: Vec<&[u8]> = document.chunks(4 << 10).collect();
        let mut others = std::collections::HashSet::new();
        assert!(chunks.iter().all(|chunk| others.insert(*chunk)));
    }
}
