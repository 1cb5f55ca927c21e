use std::time::Duration;

use super::harness::{Gateway, PATIENCE, ROUTES};
use super::origin::{Manner, Origin};

#[tokio::test]
async fn a_head_that_does_not_arrive_is_answered_and_closed() {
    let gateway = Gateway::with(Manner::Answer, "head_timeout = \"150ms\"", "").await;
    let mut silent = gateway.connect().await;
    assert!(silent.is_closed().await, "a first request that never begins");
    let mut slow = gateway.connect().await;
    slow.write("GET /open HTTP/1.1\r\nHo").await;
    assert_eq!(slow.answer().await.expect("an answer").code(), "request_timeout");
    assert!(slow.is_closed().await);
}

#[tokio::test]
async fn a_second_request_has_the_same_deadline() {
    let gateway =
        Gateway::with(Manner::Answer, "head_timeout = \"150ms\"\nidle_timeout = \"300ms\"", "").await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(client.answer().await.expect("an answer").status, 200);
    client.write("GET /open HTTP/1.1\r\nHo").await;
    assert_eq!(client.answer().await.expect("an answer").code(), "request_timeout");
    let mut idle = gateway.connect().await;
    idle.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(idle.answer().await.expect("an answer").status, 200);
    assert!(idle.is_closed().await, "an idle connection");
}

#[tokio::test]
async fn a_body_that_stalls_is_refused() {
    let gateway = Gateway::with(Manner::Answer, "stall_timeout = \"150ms\"", "").await;
    let mut client = gateway.connect().await;
    client.write("POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc").await;
    let answer = client.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.code().as_str()), (400, "request_timeout"));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_request_has_a_deadline_in_all() {
    let gateway = Gateway::with(Manner::Hang, "deadline = \"150ms\"", "").await;
    let answer = gateway.get("/open", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "upstream_timeout"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let gateway = Gateway::with(Manner::Flood, "stall_timeout = \"200ms\"", "").await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let gone = async {
        while !gateway.ask("/metrics").await.contains("code=\"client_closed\"")
            && !gateway.ask("/metrics").await.contains("code=\"request_timeout\"")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the connection is closed");
}

#[tokio::test]
async fn events_are_passed_on_as_they_come() {
    let gateway = Gateway::start(Manner::Events).await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let head = client.until("\r\n\r\n").await;
    assert!(head.to_ascii_lowercase().contains("transfer-encoding: chunked"), "{head}");
    assert_eq!(client.until("\n\r\n").await, "8\r\nfirst..\n\r\n", "before the origin sends the second one");
    let mut other = gateway.connect().await;
    other.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(client.until("0\r\n\r\n").await, "8\r\nsecond.\n\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_client_that_reads_until_its_deadline_is_no_failure_of_the_upstream() {
    let origin = Origin::start(Manner::Flood).await;
    let upstream = format!("addresses = [\"{}\"]\n[upstream.origin.outlier]\nfailures = 1", origin.address);
    let gateway = Gateway::before(origin, &upstream, "deadline = \"200ms\"", ROUTES).await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    let over = async {
        while !gateway.ask("/metrics").await.contains("code=\"request_timeout\",route=\"open\"} 1") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, over).await.expect("the client is told to have been too slow");
    let upstreams = gateway.ask("/upstreams").await;
    assert!(upstreams.contains("\"ejected\":false"), "{upstreams}");
}

/// The body is shorter than what is gathered before it is sent on, so that the client sees none of it on the way.
#[tokio::test]
async fn an_upstream_that_drips_is_not_silent() {
    let drip = Manner::Drip(Duration::from_millis(100));
    let gateway = Gateway::with(drip, "", "read_timeout = \"400ms\"").await;
    let answer = gateway.get("/open", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ".........."));
}
