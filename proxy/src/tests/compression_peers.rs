//! Compression by nginx, with the same requests and responses, and independent decoders.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::compression_client::{Received, ask, gateway_at, text};
use super::harness::STEP_TIMEOUT;
use super::scripted_origin::start;

/// The settings of the gateway that are those of [`nginx_config`].
const COMPRESSION: &str =
    "{ algorithms = [\"gzip\"], types = [\"text/html\", \"application/json\"], min_bytes = 1000 }";

fn nginx_config(folder: &Path, origin: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n\
         events {{}}\n\
         http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n\
         fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
         gzip on; gzip_vary on; gzip_proxied any; gzip_http_version 1.0;\n\
         gzip_types application/json; gzip_min_length 1000;\n\
         server {{ listen unix:{folder}/socket; location / {{ proxy_pass http://{origin}; }} }} }}\n"
    )
}

async fn start_nginx(folder: &Path, origin: SocketAddr) -> Child {
    let file = folder.join("nginx.conf");
    std::fs::write(&file, nginx_config(folder, origin)).expect("writes");
    let child = Command::new("/usr/sbin/nginx")
        .arg("-c")
        .arg(&file)
        .args(["-e", "stderr"])
        .kill_on_drop(true)
        .spawn()
        .expect("nginx is installed (tests/services.sh)");
    let socket = folder.join("socket");
    let ready = async {
        while UnixStream::connect(&socket).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, ready)
        .await
        .expect("nginx in time");
    child
}

async fn ask_nginx(folder: &Path, request: &str) -> Received {
    let mut stream = UnixStream::connect(folder.join("socket"))
        .await
        .expect("connects");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(STEP_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    read.expect("the end in time").expect("reads");
    Received::parse(&bytes)
}

/// Starts an origin that answers with the field lines and the length in the request's `X-Answer`,
/// separated by `|`.
async fn start_origin() -> SocketAddr {
    start(|mut connection| async move {
        while let Some(request) = connection.take_head().await {
            let answer = request.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("x-answer")
                    .then(|| value.to_owned())
            });
            let answer = answer.expect("an answer");
            let mut parts: Vec<&str> = answer.split('|').collect();
            let length: usize = parts
                .pop()
                .and_then(|text| text.parse().ok())
                .expect("a length");
            let head = format!(
                "HTTP/1.1 {}\r\nContent-Length: {length}\r\n\r\n",
                parts.join("\r\n")
            );
            let body = match request.starts_with("HEAD") {
                true => String::new(),
                false => text(length),
            };
            connection.send(head + &body).await;
        }
    })
    .await
}

/// What is compared: coding, `Vary`, `ETag`, and whether the length and ranges are announced.
type Summary<'a> = ([Option<&'a str>; 3], [bool; 2]);

fn summary(got: &Received) -> Summary<'_> {
    (
        ["content-encoding", "vary", "etag"].map(|name| got.field(name)),
        ["content-length", "accept-ranges"].map(|name| got.field(name).is_some()),
    )
}

/// Requests whose responses are equal: method, version, field lines, answer of the origin.
const SAME: [(&str, &str, &str, &str); 13] = [
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: text/html|ETag: \"a\"|Accept-Ranges: bytes|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip, deflate, br",
        "200 OK|Content-Type: application/json|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip;q=0.1",
        "200 OK|Content-Type: text/html; charset=utf-8|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip;q=0",
        "200 OK|Content-Type: text/html|ETag: \"a\"|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: deflate",
        "200 OK|Content-Type: text/html|5000",
    ),
    (
        "GET",
        "1.1",
        "X-Other: 1",
        "200 OK|Content-Type: text/html|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: text/html|999",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: image/png|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: text/html|Content-Encoding: br|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip",
        "404 Not Found|Content-Type: text/html|5000",
    ),
    (
        "GET",
        "1.1",
        "Accept-Encoding: gzip",
        "206 Partial Content|Content-Type: text/html|Content-Range: bytes 0-4999/9000|5000",
    ),
    (
        "POST",
        "1.1",
        "Accept-Encoding: gzip\r\nContent-Length: 0",
        "200 OK|Content-Type: text/html|ETag: W/\"a\"|5000",
    ),
    (
        "GET",
        "1.0",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: text/html|5000",
    ),
];

/// A request, and the codings of nginx and of the gateway.
type Difference = (
    &'static str,
    &'static str,
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
);

/// Requests whose responses differ.
const DIFFERENT: [Difference; 7] = [
    // RFC 9110 section 12.5.3: `*` matches every coding.
    (
        "GET",
        "Accept-Encoding: *",
        "200 OK|Content-Type: text/html|5000",
        None,
        Some("gzip"),
    ),
    (
        "GET",
        "Accept-Encoding: gzip;q=0.5, identity",
        "200 OK|Content-Type: text/html|5000",
        Some("gzip"),
        None,
    ),
    // RFC 9111 section 5.2.2.6.
    (
        "GET",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: text/html|Cache-Control: no-transform|5000",
        Some("gzip"),
        None,
    ),
    // BREACH.
    (
        "GET",
        "Accept-Encoding: gzip\r\nAuthorization: Basic eA==",
        "200 OK|Content-Type: text/html|5000",
        Some("gzip"),
        None,
    ),
    (
        "GET",
        "Accept-Encoding: gzip\r\nCookie: a=b",
        "200 OK|Content-Type: text/html|5000",
        Some("gzip"),
        None,
    ),
    // A digest of the content (RFC 9530) would become wrong.
    (
        "GET",
        "Accept-Encoding: gzip",
        "200 OK|Content-Type: text/html|Content-Digest: sha-256=:AA==:|5000",
        Some("gzip"),
        None,
    ),
    // nginx compresses responses with 200, 403 and 404 only.
    (
        "GET",
        "Accept-Encoding: gzip",
        "500 Internal Server Error|Content-Type: text/html|5000",
        None,
        Some("gzip"),
    ),
];

#[tokio::test]
async fn responses_are_compressed_as_by_nginx() {
    let origin = start_origin().await;
    let folder = tempfile::tempdir().expect("a folder");
    let _nginx = start_nginx(folder.path(), origin).await;
    let gateway = gateway_at(origin, COMPRESSION, "").await;
    for (method, version, fields, answer) in SAME {
        let request = format!(
            "{method} /open HTTP/{version}\r\nHost: gate\r\nConnection: close\r\n{fields}\r\nX-Answer: {answer}\r\n\r\n"
        );
        let (ours, theirs) = tokio::join!(
            ask(gateway.address, &request),
            ask_nginx(folder.path(), &request)
        );
        assert_eq!(summary(&ours), summary(&theirs), "{fields}; {answer}");
        assert!(ours.is_whole && theirs.is_whole);
        assert!(ours.field("content-encoding") == Some("br") || ours.decoded() == theirs.decoded());
    }
    for (method, fields, answer, nginx, gate) in DIFFERENT {
        let request = format!(
            "{method} /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n{fields}\r\nX-Answer: {answer}\r\n\r\n"
        );
        let (ours, theirs) = tokio::join!(
            ask(gateway.address, &request),
            ask_nginx(folder.path(), &request)
        );
        let codings = (
            theirs.field("content-encoding"),
            ours.field("content-encoding"),
        );
        assert_eq!(codings, (nginx, gate), "{fields}; {answer}");
        assert_eq!(ours.decoded(), theirs.decoded());
    }
}

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
    let origin = start_origin().await;
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
                "GET /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nAccept-Encoding: {coding}\r\n\
                 X-Answer: 200 OK|Content-Type: text/plain|{length}\r\n\r\n"
            );
            let got = ask(gateway.address, &request).await;
            assert_eq!(got.field("content-encoding"), Some(coding));
            assert!(got.is_whole);
            let decoded = pipe(program, arguments, &got.content).await;
            assert!(decoded == text(length).as_bytes(), "{program} {length}");
        }
    }
    let url = format!("http://{}/open", gateway.address);
    let answer = "X-Answer: 200 OK|Content-Type: text/plain|50000";
    let arguments = ["-sf", "--noproxy", "*", "--compressed", "-H", answer, &url];
    assert!(pipe("curl", &arguments, b"").await == text(50_000).as_bytes());
}
