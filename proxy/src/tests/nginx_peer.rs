//! Comparison with nginx: redirects, header changes and rewritten references.
//!
//! Both have the same origin and get the same requests. Intended differences are listed in
//! [`DIFFERENCES`] and asserted as well.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use postern_core::testing::skipped;
use tokio::net::TcpStream;

use super::harness::{RawClient, RawResponse, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

const NGINX: &str = "/usr/sbin/nginx";

/// The same settings for both programs. `ORIGIN`, `PORT` and `FOLDER` are replaced.
const NGINX_CONFIG: &str = r#"
daemon off;
master_process off;
pid FOLDER/nginx.pid;
error_log stderr crit;
events {}
http {
  access_log off;
  server_tokens off;
  client_body_temp_path FOLDER/body;
  proxy_temp_path FOLDER/proxy;
  fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi;
  scgi_temp_path FOLDER/scgi;
  server {
    listen 127.0.0.1:PORT default_server;
    return 404;
  }
  server {
    listen 127.0.0.1:PORT;
    server_name gate www.gate;
    absolute_redirect off;
    location ~ ^/old/(?<rest>.*)$ { return 301 https://$host/new/$rest$is_args$args; }
    location = /whole { return 308 https://$host$request_uri; }
    location /local/ { return 307 /other$is_args$args; }
    location = /text { default_type "text/plain; charset=utf-8"; return 200 "fixed"; }
    location = /gone { default_type "text/plain; charset=utf-8"; return 410 "gone"; }
    location /v1/ {
      proxy_pass http://ORIGIN/api/;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection "";
      proxy_set_header X-Method $request_method;
      proxy_set_header X-Where $scheme://$host$request_uri;
      proxy_set_header X-Debug "";
      proxy_hide_header X-Internal;
      proxy_hide_header X-Powered-By;
      proxy_redirect http://ORIGIN/api/ /v1/;
      proxy_redirect http://$http_host/api/ /v1/;
      proxy_redirect /api/ /v1/;
      add_header Cache-Control no-store always;
    }
  }
}
"#;

const ROUTES: &str = r#"
[[route]]
path = "/old/*"
methods = ["GET", "HEAD", "POST"]
hosts = ["gate", "www.gate"]
redirect = { to = "https://{host}/new/{path.*}{query}", status = 301 }
policy = "public"

[[route]]
path = "/whole"
methods = ["GET", "HEAD", "POST"]
hosts = ["gate", "www.gate"]
redirect = { to = "https://{host}{path}{query}" }
policy = "public"

[[route]]
path = "/local/*"
methods = ["GET"]
redirect = { to = "/other{query}", status = 307 }
policy = "public"

[[route]]
path = "/text"
methods = ["GET", "HEAD"]
respond = { body = "fixed" }
policy = "public"

[[route]]
path = "/gone"
methods = ["GET"]
respond = { status = 410, body = "gone" }
policy = "public"

[[route]]
path = "/v1/*"
methods = ["GET"]
upstream = "origin"
policy = "public"
rewrite = { strip = "/v1", add = "/api" }
request_headers = { set = { X-Method = "{method}", X-Where = "{scheme}://{host}{path}{query}" }, remove = ["X-Debug"] }
response_headers = { set = { Cache-Control = "no-store" }, remove = ["X-Internal"] }
"#;

/// A request, and the reason why the answers differ.
const DIFFERENCES: [(&str, &str, &str); 5] = [
    (
        "GET /old//evil HTTP/1.1\r\nHost: gate\r\n",
        "nginx merges slashes; the gateway rejects a target that is not canonical",
        "301 400",
    ),
    (
        "GET /old/a%2fb HTTP/1.1\r\nHost: gate\r\n",
        "nginx decodes an escaped slash; the gateway rejects it",
        "301 400",
    ),
    (
        "GET /old/%C3%A9 HTTP/1.1\r\nHost: gate\r\n",
        "nginx sends decoded bytes in Location; the gateway keeps the escapes",
        "301 301",
    ),
    (
        "GET /old/a%0d%0aX-Evil:1 HTTP/1.1\r\nHost: gate\r\n",
        "the gateway rejects escaped control characters; the pattern of nginx matches no line break",
        "404 400",
    ),
    (
        "GET /old/a HTTP/1.1\r\nHost: evil\r\n",
        "the gateway does not disclose to anonymous clients whether a path exists",
        "404 401",
    ),
];

/// A running nginx, killed when dropped.
struct Nginx {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Nginx {
    async fn start(origin: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port");
        let text = NGINX_CONFIG
            .replace("ORIGIN", &origin.to_string())
            .replace("PORT", &address.port().to_string())
            .replace("FOLDER", &folder.path().display().to_string());
        let config = folder.path().join("nginx.conf");
        std::fs::write(&config, text).expect("writes");
        let process = Command::new(NGINX)
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let nginx = Self {
            process,
            address,
            _folder: folder,
        };
        let listening = async {
            while TcpStream::connect(address).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, listening)
            .await
            .expect("nginx listens in time");
        nginx
    }

    async fn send(&self, request: &str) -> RawResponse {
        let mut client = RawClient {
            stream: TcpStream::connect(self.address).await.expect("connects"),
            buffer: Vec::new(),
        };
        client.write(request).await;
        if request.starts_with("HEAD") {
            return head_response(&mut client).await;
        }
        client.response().await.expect("a response")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Reads a response to HEAD, whose length is that of the absent body.
async fn head_response(client: &mut RawClient) -> RawResponse {
    let head = client.until("\r\n\r\n").await;
    let status = head[9..12].parse().expect("a status");
    RawResponse {
        status,
        head,
        body: String::new(),
    }
}

/// Returns the lines of the request that must be the same at the origin.
fn forwarded(request: &str) -> Vec<String> {
    let own = ["x-method", "x-where", "x-debug", "x-location", "host"];
    let mut lines: Vec<String> = request
        .lines()
        .filter(|line| {
            let name = line
                .split(':')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            line.starts_with("GET ") || own.contains(&name.as_str())
        })
        .map(|line| match line.split_once(": ") {
            Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
            None => line.to_owned(),
        })
        .collect();
    lines.sort();
    lines
}

/// Returns the fields that must be the same in both answers.
fn compared(answer: &RawResponse) -> (u16, Vec<Option<String>>) {
    let names = [
        "location",
        "content-type",
        "cache-control",
        "x-internal",
        "x-powered-by",
    ];
    // Bodies of redirects differ: nginx sends a page.
    let is_redirect = (300..400).contains(&answer.status);
    let fields = names
        .into_iter()
        .filter(|name| !(is_redirect && *name == "content-type"))
        .map(|name| answer.header(name).map(str::to_owned));
    let mut fields: Vec<Option<String>> = fields.collect();
    if !is_redirect {
        fields.push(Some(answer.body.clone()));
    }
    (answer.status, fields)
}

async fn gateway_answer(gateway: &TestGateway, request: &str) -> RawResponse {
    if !request.starts_with("HEAD") {
        return gateway.send(request).await;
    }
    let mut client = gateway.connect().await;
    client.write(request).await;
    head_response(&mut client).await
}

#[tokio::test]
async fn redirects_and_header_changes_are_those_of_nginx() {
    if !Path::new(NGINX).exists() {
        return skipped(
            "redirects_and_header_changes_are_those_of_nginx",
            "no nginx",
        );
    }
    let origin = TestOrigin::start(OriginBehavior::EchoLocation).await;
    let address = origin.address;
    let nginx = Nginx::start(address).await;
    let upstream = format!("addresses = [\"{address}\"]");
    let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
    let located = |location: &str| {
        format!(
            "GET /v1/a?b=c HTTP/1.1\r\nHost: gate\r\nX-Location: {location}\r\nX-Debug: 1\r\nX-Method: forged\r\n"
        )
    };
    let requests = [
        "GET /old/a/b?c=d HTTP/1.1\r\nHost: gate\r\n".to_owned(),
        "GET /old/ HTTP/1.1\r\nHost: www.gate:1\r\n".to_owned(),
        "HEAD /old/a HTTP/1.1\r\nHost: GATE\r\n".to_owned(),
        "POST /old/a HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n".to_owned(),
        "GET /whole?x=%0d%0aX-Evil:1 HTTP/1.1\r\nHost: gate\r\n".to_owned(),
        "GET /whole HTTP/1.0\r\nHost: gate\r\n".to_owned(),
        "GET /local/x?y HTTP/1.1\r\nHost: gate\r\n".to_owned(),
        "GET /text HTTP/1.1\r\nHost: gate\r\n".to_owned(),
        "HEAD /text HTTP/1.1\r\nHost: gate\r\n".to_owned(),
        "GET /gone HTTP/1.1\r\nHost: gate\r\n".to_owned(),
        located("/api/x?y#z"),
        located("/apis/x"),
        located("/other"),
        located("relative"),
        located("https://elsewhere/api/x"),
        located("//elsewhere/api/x"),
        located("http://gate/api/x"),
        located(&format!("http://{address}/api/x")),
    ];
    for request in requests {
        let by_nginx = nginx.send(&format!("{request}\r\n")).await;
        let seen_by_nginx = gateway.origin.seen();
        let answer = gateway_answer(&gateway, &format!("{request}\r\n")).await;
        let case = format!("{request}\n{}\n{}", by_nginx.head, answer.head);
        assert_eq!(compared(&answer), compared(&by_nginx), "{case}");
        let seen = gateway.origin.seen();
        if seen.len() > seen_by_nginx.len() {
            let expected = seen_by_nginx.last().expect("a request of nginx");
            assert_eq!(
                forwarded(&seen[seen.len() - 1]),
                forwarded(expected),
                "{case}"
            );
        }
    }
    for (request, reason, statuses) in DIFFERENCES {
        let by_nginx = nginx.send(&format!("{request}\r\n")).await;
        let answer = gateway.send(&format!("{request}\r\n")).await;
        let found = format!("{} {}", by_nginx.status, answer.status);
        assert_eq!(found, statuses, "{reason}");
        assert_ne!(
            answer.header("location"),
            by_nginx.header("location").or(Some("")),
            "{reason}"
        );
    }
}
