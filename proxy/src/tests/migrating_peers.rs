//! The examples of `docs/manual/migrating.md` beside the programs that they replace.

use postern_core::testing::skipped;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::load_balancers::Program;
use super::migrating::examples;
use super::upstream_settings::{self_signed, socket_of};
use super::*;
use crate::{App, Listeners};

/// The languages of the examples: nginx, Traefik, Caddy and Postern.
const PEERS: [&str; 4] = ["nginx", "yaml", "caddyfile", "toml"];

/// A heading, a request with fields, and for each of [`PEERS`] the status and the target at the origin
/// or of a redirect; empty where the example is a part only.
#[rustfmt::skip]
const CASES: [(&str, &str, [&str; 4]); 20] = [
    ("Reverse proxy for a path prefix", "GET /shop/cart?a=b", ["200 /cart?a=b"; 4]),
    ("Reverse proxy for a path prefix", "GET /shop", ["301 http://example.com/shop/", "200 /", "302 /shop/", "200 /"]),
    ("Reverse proxy for a path prefix", "GET /shopping", ["404", "200 /ping", "200", "401"]),
    ("Several servers with health checks", "GET /x", ["200 /x"; 4]),
    ("HTTPS, and a redirect to it", "GET /a", ["308 https://example.com/a", "", "200 /a", ""]),
    ("Moved pages", "GET /old/a/b?c=d", ["301 https://example.com/new/a/b?c=d"; 4]),
    ("Header fields", "GET /a|X-Debug: 1", ["200 /a hsts"; 4]),
    ("Rate limits", "POST /login", ["200 /login", "200 /login", "", "200 /login"]),
    ("Client addresses", "GET /internal/a|X-Forwarded-For: 192.0.2.7", ["200 /internal/a", "", "200 /internal/a", "200 /internal/a"]),
    ("Client addresses", "GET /internal/a|X-Forwarded-For: 198.51.100.1", ["403", "", "403", "403"]),
    ("Sizes and timeouts", "POST /upload", ["200 /upload"; 4]),
    ("A share of the traffic for a new version", "GET /x", ["200 /x", "", "200 /x", "200 /x"]),
    ("A service that decides, and compression", "GET /orders/1", ["200 /orders/1", "200 /orders/1", "200 /orders/1", "401"]),
    ("Django with gunicorn", "GET /accounts/login/", ["200 /accounts/login/", "", "", "200 /accounts/login/"]),
    ("An upstream with a self-signed certificate", "GET /a", ["", "200 /a", "", "200 /a"]),
    ("A site with an API", "GET /api/users", ["", "", "200 /users", "200 /users"]),
    ("A site with an API", "GET /a", ["", "", "200 /a", "200 /a"]),
    ("Supabase behind Kong", "GET /auth/v1/verify?token=1", ["", "", "", "200 /verify?token=1"]),
    ("Supabase behind Kong", "GET /rest/v1/todos|apikey: ANON_KEY|Authorization: Bearer x", ["", "", "", "200 /todos"]),
    ("Supabase behind Kong", "GET /rest/v1/todos|apikey: other", ["", "", "", "401"]),
];

/// The middlewares of the examples of Traefik that have no router.
const MIDDLEWARES: [(&str, &str); 5] = [
    ("Moved pages", "moved"),
    ("Header fields", "fields"),
    ("Rate limits", "login"),
    ("Sizes and timeouts", "upload"),
    ("A service that decides, and compression", "check, compress"),
];

/// Returns the program of Traefik, unless `tests/peers/traefik/install` has not run.
fn program() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("../tests/.peers/traefik/python/bin/traefik");
    program.is_file().then_some(program)
}

struct Peer {
    address: SocketAddr,
    _program: Option<Program>,
    stop: CancellationToken,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn start(heading: &str, language: &str, example: &str, origin: SocketAddr) -> Peer {
    let traefik = program().expect("installed");
    let (traefik, caddy) = (traefik.display(), traefik.with_file_name("caddy"));
    let program = match language {
        "nginx" => {
            let example = example.replace("listen 8080;", "listen 127.0.0.1:{port};");
            let example = example.replace("listen 8443;", "listen unix:{folder}/socket;");
            Program::nginx_http(&example).await
        }
        "yaml" => {
            let name = MIDDLEWARES.iter().find(|(known, _)| *known == heading);
            let router = name.map_or_else(String::new, |(_, names)| {
                format!(
                    "  routers: {{ all: {{ rule: \"PathPrefix(`/`)\", service: origin, middlewares: [{names}] }} }}\n  \
                     services: {{ origin: {{ loadBalancer: {{ servers: [{{ url: \"http://{origin}\" }}] }} }} }}\n"
                )
            });
            let arguments = |command: &mut Command, file: &Path, address: SocketAddr| {
                command.arg(format!("--entryPoints.web.address={address}"));
                command.arg(format!("--providers.file.filename={}", file.display()));
                command.arg("--global.checkNewVersion=false");
            };
            let config = format!("{example}{router}");
            Program::start(&config, arguments, &traefik.to_string()).await
        }
        "caddyfile" => {
            let example = example.replace(":8080 {", "http://:{port} {");
            let example = example.replace("example.com {", "http://example.com:{port} {");
            let options = example.strip_prefix("{\n");
            let rest = options.map_or_else(|| format!("}}\n{example}"), str::to_owned);
            let config = format!("{{\n\tadmin off\n{rest}");
            let arguments = |command: &mut Command, file: &Path, _| {
                command
                    .args(["run", "--adapter", "caddyfile", "--config"])
                    .arg(file);
                command.env("HOME", file.with_file_name(""));
            };
            Program::start(&config, arguments, &caddy.display().to_string()).await
        }
        _ => return start_gateway(example).await,
    };
    Peer {
        address: program.address,
        _program: Some(program),
        stop: CancellationToken::new(),
    }
}

/// Starts an example until it answers. Another test may take the port of the first start before the
/// program does.
async fn start_ready(
    (heading, language, example): (&str, &str, &str),
    origin: &TestOrigin,
    answers: impl AsyncFn(&Peer) -> bool,
) -> (Peer, bool) {
    let mut tries = 0;
    loop {
        tries += 1;
        let peer = start(heading, language, example, origin.address).await;
        let ready = async {
            while !answers(&peer).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let is_ready = tokio::time::timeout(STEP_TIMEOUT, ready).await.is_ok();
        if is_ready || tries == 3 {
            return (peer, is_ready);
        }
    }
}

async fn start_gateway(example: &str) -> Peer {
    let listener = bind().await;
    let address = listener.local_addr().expect("bound");
    let text = format!("[[listen]]\naddress = \"{address}\"\n{example}");
    let config = parse("example.toml", &text, |root| {
        Config::read(root, &Env::default())
    });
    let app = App::build(config.expect("valid"), Clock::system()).expect("builds");
    let (public, stop) = (vec![listener], CancellationToken::new());
    let listeners = Listeners {
        public,
        admin: None,
    };
    tokio::spawn(app.run(listeners, stop.clone()));
    Peer {
        address,
        _program: None,
        stop,
    }
}

/// Sends a request. Returns what the table of cases says about the answer.
async fn ask(peer: &Peer, request: &str, origins: [&TestOrigin; 2]) -> String {
    let before = origins.map(|origin| origin.seen().len());
    let mut parts = request.split('|');
    let line = parts.next().expect("a line");
    let fields: String = parts.map(|field| format!("{field}\r\n")).collect();
    let Ok(stream) = TcpStream::connect(peer.address).await else {
        return String::new();
    };
    let mut client = RawClient::new(stream);
    let head = format!("{line} HTTP/1.1\r\nHost: example.com\r\n{fields}Content-Length: 0\r\n\r\n");
    client.write(&head).await;
    let Some(answer) = client.response().await else {
        return String::new();
    };
    let mut told = answer.status.to_string();
    let seen = origins.into_iter().zip(before);
    for head in seen.flat_map(|(origin, before)| origin.seen().into_iter().skip(before)) {
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        if !["/check", "/health"].contains(&&*target) {
            let debug = head.to_lowercase().contains("x-debug");
            told += &format!(" {target}{}", if debug { " debug" } else { "" });
        }
    }
    if let Some(location) = answer.header("location") {
        told += &format!(" {location}");
    }
    let has_policy = answer.header("strict-transport-security").is_some();
    told + if has_policy { " hsts" } else { "" }
}

#[tokio::test]
async fn examples_do_what_their_peers_do() {
    if program().is_none_or(|it| !it.with_file_name("caddy").is_file()) {
        let test = "examples_do_what_their_peers_do";
        return skipped(test, "Traefik and Caddy are not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let tls = self_signed(folder.path(), "app");
    let secure = TestOrigin::with(OriginBehavior::Answer, Some(tls)).await;
    let origins = [&origin, &secure];
    let socket = socket_of(&origin, folder.path()).display().to_string();
    let adapt = |example: &str| {
        let ports = ["5:3000", "6:3000", "7:9000", "5:9999", "5:4000"];
        let plain = ports.iter().fold(example.to_owned(), |text, port| {
            text.replace(&format!("10.0.0.{port}"), &origin.address.to_string())
        });
        plain
            .replace("10.0.0.5:8443", &secure.address.to_string())
            .replace("10.0.0.0/8", "127.0.0.0/8")
            .replace("/run/gunicorn.sock", &socket)
            .replace("certs", &folder.path().display().to_string())
    };
    let mut tested = 0;
    for (at, language) in PEERS.into_iter().enumerate() {
        for (heading, example) in examples(language) {
            let cases = CASES.iter().filter(|case| case.0 == heading);
            let cases: Vec<_> = cases.filter(|case| !case.2[at].is_empty()).collect();
            let Some(first) = cases.first() else {
                // The others are parts, or have no counterpart.
                assert!(!["nginx", "caddyfile"].contains(&language), "{heading}");
                continue;
            };
            let example = adapt(&example);
            let (peer, is_ready) =
                start_ready((&heading, language, &example), &origin, async |peer| {
                    ask(peer, first.1, origins).await == first.2[at]
                })
                .await;
            for (_, request, expected) in &cases {
                let told = ask(&peer, request, origins).await;
                let case = format!("{heading}: {language} {request} {is_ready}");
                assert_eq!(told, expected[at], "{case}");
                tested += 1;
            }
            if heading == "Rate limits" {
                let mut is_limited = false;
                for _ in 0..60 {
                    is_limited |= ask(&peer, first.1, origins).await.starts_with("429");
                }
                assert!(is_limited, "{language}");
            }
        }
    }
    let all = CASES.iter().flat_map(|case| case.2);
    assert_eq!(tested, all.filter(|expected| !expected.is_empty()).count());
}
