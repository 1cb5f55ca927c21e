//! Independent decoders of compressed responses.

use std::process::Stdio;

use tokio::process::Command;

use super::compression_client::{ask, gateway_at, text};
use super::scripted_origin::start;
use super::*;

/// Runs a program with this input and returns its output.
async fn pipe(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} is installed (tests/services.sh): {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let (written, output) = tokio::join!(
        async {
            let written = stdin.write_all(input).await;
            drop(stdin);
            written
        },
        child.wait_with_output()
    );
    written.expect("writes");
    let output = output.expect("ends");
    assert!(output.status.success(), "{program}: {:?}", output.status);
    output.stdout
}

#[tokio::test]
async fn independent_decoders_read_every_coding() {
    let origin = start(|mut connection| async move {
        while let Some(request) = connection.take_head().await {
            let length = request
                .split(['?', ' '])
                .nth(2)
                .and_then(|it| it.parse().ok());
            let body = text(length.expect("a length"));
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length:";
            connection
                .send(format!("{head} {}\r\n\r\n{body}", body.len()))
                .await;
        }
    })
    .await;
    let gateway = gateway_at(origin, "true", "").await;
    let python = "import sys, zlib; d = zlib.decompressobj(31); b = d.decompress(sys.stdin.buffer.read()); \
                  assert d.eof and not d.unused_data; sys.stdout.buffer.write(b)";
    for (coding, program, arguments) in [
        ("gzip", "gzip", &["-dc"][..]),
        ("gzip", "python3", &["-c", python]),
        ("br", "brotli", &["-dc"]),
        ("zstd", "zstd", &["-dcq"]),
    ] {
        for length in [1_024, 100_000, 3_000_000] {
            let request = format!(
                "GET /open?{length} HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nAccept-Encoding: {coding}\r\n\r\n"
            );
            let got = ask(gateway.address, &request).await;
            assert_eq!(got.field("content-encoding"), Some(coding));
            assert!(got.is_whole);
            let decoded = pipe(program, arguments, &got.content).await;
            assert!(decoded == text(length).as_bytes(), "{program} {length}");
        }
    }
    let url = format!("http://{}/open?50000", gateway.address);
    let arguments = ["-sf", "--noproxy", "*", "--compressed", &url];
    assert!(pipe("curl", &arguments, b"").await == text(50_000).as_bytes());
}
