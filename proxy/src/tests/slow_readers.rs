//! Responses to slow readers: their memory is bounded, and other clients are served.

use http::Response;

use super::scripted_origin::gateway;
use super::*;

/// Starts an HTTP/2 origin that answers `/open` with 10 MiB, and other requests with a short body.
async fn origin() -> SocketAddr {
    start_http2(|request, mut answer| async move {
        if request.uri().path() != "/open" {
            return answer_http2(answer, &[b"xxxxx"]);
        }
        if let Ok(mut body) = answer.send_response(Response::new(()), false) {
            let _gone = body.send_data(vec![b'x'; 10 << 20].into(), true);
        }
    })
    .await
}

#[tokio::test]
async fn slow_reader_does_not_block_its_upstream_connection() {
    let gateway = gateway(&[origin().await], "http2 = true", "").await;
    let token = format!("Bearer {}", gateway.user());
    let mut client = http2_client(&gateway, 0).await;
    let held = open_body(&mut client, "/open").await;
    // The upstream has sent all that flow control allows when the gauge reports a slow reader.
    wait_until(async || {
        let metrics = gateway.admin_get("/metrics").await;
        !metrics.contains("postern_response_buffer_bytes 0\n")
    })
    .await;
    let mut other = http2_client(&gateway, 1 << 20).await;
    for _ in 0..10 {
        let answer = get(&mut other, "/any/1", &[("authorization", token.as_str())]).await;
        assert_eq!((answer.status, &*answer.body), (200, &b"xxxxx"[..]));
    }
    drop(held);
}
