//! HTTP/1.0 clients, which support neither chunked framing nor interim responses.

use super::*;

/// Returns all bytes that a client receives, and the end of its connection.
async fn ask(answer: &'static str, method: &str, fields: &str) -> (String, std::io::Result<usize>) {
    let routes = ROUTES.replace("\"POST\"", "\"HEAD\", \"POST\"");
    let gateway = TestGateway::routed(OriginBehavior::Text(answer), "", "", &routes).await;
    let mut stream = gateway.connect().await.stream;
    let request = format!("{method} /open HTTP/1.0\r\nHost: gate\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(STEP_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let text = String::from_utf8(bytes).expect("text");
    (text, read.expect("the end in time"))
}

#[tokio::test]
async fn http10_client_gets_no_chunks() {
    let keep = "Connection: keep-alive\r\n";
    for [method, answer, body] in rows(
        r"
        GET | 200 OK\r\nTE\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n | hello
        GET | 200 OK\r\nTE\r\n\r\n0\r\n\r\n |
        GET | 404 Not Found\r\nTE\r\n\r\n1\r\n!\r\n0\r\n\r\n | !
        GET | 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello | hello
        HEAD | 200 OK\r\nTE\r\n\r\n |
        GET | 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTE\r\n\r\n1\r\nx\r\n0\r\n\r\n | x
        ",
    ) {
        let answer = answer.replace("TE\r", "Transfer-Encoding: chunked\r");
        let answer: &'static str = format!("HTTP/1.1 {answer}").leak();
        let fields = if answer.contains("chunked") { keep } else { "" };
        let (got, end) = ask(answer, &method, fields).await;
        let (head, rest) = got.split_once("\r\n\r\n").expect("a head");
        let holds = !head.to_ascii_lowercase().contains("transfer-encoding");
        assert!(holds, "{answer:?}: {got}");
        assert_eq!(rest, body, "{answer:?}: {got}");
        assert!(end.is_ok(), "{answer:?}: closed without reset: {end:?}");
    }
}

#[tokio::test]
async fn http10_client_detects_truncation() {
    // The origin violates the framing in the middle of the body.
    let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n";
    let (got, end) = ask(cut, "GET", "").await;
    assert!(end.is_err() || got.contains("upstream_failed"), "{got}");
}
