//! The request path and the token path, step by step, without sockets and Pingora. Used by the
//! micro benchmarks and the cost guard.

use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use bytes::BytesMut;
use futures_util::FutureExt as _;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use postern_core::Clock;
use postern_core::token::{Caller, Issuer, IssuerKind, IssuerRules, Verifier, VerifierOptions};
use postern_http::message::framing::BodyFraming as Framing;
use postern_http::message::head::{
    HeadLimits, HeadScanner as Progress, RequestHead as Head, to_request,
};
use postern_http::message::target::RequestTarget as Target;
use postern_proxy::TraceContext as Trace;
use postern_proxy::config::ClientAddressDetail as ClientAddress;
use postern_proxy::config::{CallerRules as Protected, RoutePolicy as Policy, UserRule};
use postern_proxy::config::{MethodSet as Methods, PathPattern, RoutePattern as Pattern};
use postern_proxy::forwarding::identity_headers::IdentityHeaders as Injection;
use postern_proxy::rate_limiter::{Rate, RateLimiter as Limiter};
use postern_proxy::routing::{RouteIndex, RouteMatcher as Router, RouteRequest as Request};
use postern_proxy::telemetry::AccessEvent as Event;
use postern_service::http::bearer;
use uuid::Uuid;

use crate::token::{CLIENT_ID, SigningAlgorithm, TokenSigner};

/// The gateway's default limits.
const LIMITS: HeadLimits = HeadLimits {
    bytes: 32 << 10,
    fields: 100,
    target: 8 << 10,
    ambiguous_paths: false,
};

/// A route table and paths that match.
pub struct BenchRoutes {
    router: Router,
    paths: Vec<String>,
    headers: HeaderMap,
}

impl BenchRoutes {
    /// Creates `size` routes of three segments each.
    pub fn of(size: usize) -> Self {
        let pattern = |number: usize| Pattern {
            hosts: Vec::new(),
            path: PathPattern::parse(&format!("/collection-{number}/{{id}}/part-{number}"))
                .expect("a well-formed template"),
            methods: Methods::of("GET").expect("a method"),
            headers: Vec::new(),
            queries: Vec::new(),
        };
        let router = Router::new((0..size).map(pattern).collect());
        // Spread over the table, and the same number for every size, so that CPU caches behave
        // alike.
        let paths = (0..10)
            .map(|at| at * size / 10)
            .map(|number| format!("/collection-{number}/42/part-{number}"));
        Self {
            router,
            paths: paths.collect(),
            headers: HeaderMap::new(),
        }
    }

    /// Matches one of the paths.
    pub fn find(&self, turn: usize) -> Option<RouteIndex> {
        let path = &self.paths[turn % self.paths.len()];
        self.router.find(&Request {
            host: "gateway.example",
            path,
            query: None,
            method: "GET",
            headers: &self.headers,
        })
    }
}

/// Tokens of one algorithm and their verifier.
pub struct BenchTokens {
    verifier: Arc<Verifier>,
    tokens: Vec<String>,
    next: usize,
}

impl BenchTokens {
    /// Generates keys and tokens, and lets a verifier fetch the keys.
    pub fn of(algorithm: SigningAlgorithm, remembered: bool) -> io::Result<Self> {
        let signer = TokenSigner::generate(algorithm)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let issuer = format!("http://{}", listener.local_addr()?);
        let tokens = (0..16)
            .map(|serial| signer.token(&issuer, serial))
            .collect::<Result<_, _>>()?;
        let trusted = Issuer {
            issuer: issuer.clone(),
            jwks_url: format!("{issuer}/jwks").parse().map_err(io::Error::other)?,
            kind: IssuerKind::User,
            client_ids: vec![CLIENT_ID.to_owned()],
            rules: IssuerRules::default(),
            claims: Vec::new(),
        };
        let cache_bytes = if remembered { 1 << 20 } else { 0 };
        let options = VerifierOptions {
            cache_bytes,
            ..VerifierOptions::default()
        };
        let verifier = Verifier::new(vec![trusted], options);
        let publisher = std::thread::spawn(move || publish(&listener, &signer.jwks()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(verifier.refresh_now());
        publisher
            .join()
            .map_err(|_| io::Error::other("the keys were not requested"))??;
        let mut all = Self {
            verifier,
            tokens,
            next: 0,
        };
        for _ in 0..all.tokens.len() {
            all.verify();
        }
        Ok(all)
    }

    /// Verifies the next token, or looks it up if tokens are cached.
    pub fn verify(&mut self) -> Caller {
        self.next = (self.next + 1) % self.tokens.len();
        let verdict = self.verifier.verify(&self.tokens[self.next]).now_or_never();
        verdict
            .expect("verification completes immediately with known keys")
            .expect("a valid token")
    }
}

/// Serves the keys once.
fn publish(listener: &TcpListener, jwks: &str) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut space = [0; 4096];
    let _head = stream.read(&mut space)?;
    let length = jwks.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{jwks}"
    )
}

/// The processing of one request, from its head to its access event.
pub struct RequestPath {
    head: Vec<u8>,
    headers: HeaderMap,
    routes: BenchRoutes,
    policy: Policy,
    limiter: Limiter,
    rate: Rate,
    keys: RandomState,
    tokens: BenchTokens,
    clock: Clock,
    line: Vec<u8>,
}

impl RequestPath {
    /// Creates a request with a cached token, among 100 routes.
    pub fn new() -> io::Result<Self> {
        let tokens = BenchTokens::of(SigningAlgorithm::Es256, true)?;
        let authorization = format!("Bearer {}", tokens.tokens[0]);
        let head = format!(
            "GET /collection-0/42/part-0?fields=all HTTP/1.1\r\nHost: gateway.example\r\nUser-Agent: bench/1.0\r\n\
             Accept: application/json\r\nAccept-Encoding: gzip\r\nX-Forwarded-For: 203.0.113.7\r\n\
             Authorization: {authorization}\r\n\r\n"
        );
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "gateway.example"),
            ("user-agent", "bench/1.0"),
            ("accept", "application/json"),
            ("accept-encoding", "gzip"),
            ("x-forwarded-for", "203.0.113.7"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(
            AUTHORIZATION,
            HeaderValue::from_str(&authorization).map_err(io::Error::other)?,
        );
        let users = Some(UserRule::default());
        Ok(Self {
            head: head.into_bytes(),
            headers,
            routes: BenchRoutes::of(100),
            policy: Policy::Protected(Protected {
                users,
                ..Protected::default()
            }),
            limiter: Limiter::new(200_000),
            rate: Rate::new(1_000_000, Duration::from_secs(1), None),
            keys: RandomState::with_seeds(1, 2, 3, 4),
            tokens,
            clock: Clock::system(),
            line: Vec::with_capacity(1024),
        })
    }

    /// Executes all steps.
    pub fn request(&mut self, turn: u64) {
        self.head();
        let route = self.route();
        let caller = self.authenticate();
        self.policy
            .decide(&caller, "/")
            .expect("any user is allowed");
        assert!(
            self.limit(turn) && self.limit(turn + 1),
            "the limits are not reached"
        );
        black_box(self.inject(&caller));
        self.event(&caller, route);
    }

    /// Finds the end of the head, checks and parses it, and returns the framing of the body.
    pub fn head(&self) -> Framing {
        let end = Progress::default()
            .find_end(&self.head, &LIMITS)
            .expect("lines end with CRLF");
        let bytes = &self.head[..end.expect("complete")];
        let head = Head::check(bytes, &LIMITS).expect("well formed");
        black_box(to_request(bytes).expect("passed"));
        Framing::begin(head.body)
    }

    /// Parses the target and matches the route.
    pub fn route(&self) -> RouteIndex {
        let target = Target::parse(b"/collection-0/42/part-0?fields=all").expect("canonical");
        let host = self
            .headers
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default();
        let request = Request {
            host,
            path: target.path,
            query: target.query,
            method: "GET",
            headers: &self.headers,
        };
        self.routes.router.find(&request).expect("a route")
    }

    /// Returns the caller of the cached token.
    pub fn authenticate(&self) -> Caller {
        let token = bearer(&self.headers).expect("one token");
        self.tokens
            .verifier
            .verify_cached(token)
            .expect("seen before")
            .expect("a valid token")
    }

    /// Takes a token from a rate limit and returns whether the request is allowed.
    pub fn limit(&self, turn: u64) -> bool {
        let key = self.keys.hash_one((turn % 1024, 1_u64));
        self.limiter.take(self.rate, key, turn * 1_000).is_ok()
    }

    /// Returns the header fields for the upstream.
    pub fn inject(&self, caller: &Caller) -> BytesMut {
        let mut head = BytesMut::with_capacity(2 << 10);
        let said = Injection {
            id: Uuid::from_u128(7),
            trace: Trace {
                id: 1,
                span: 2,
                parent: None,
                flags: 0,
                is_recorded: false,
            },
            client: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            is_tls: false,
            replaced: &[],
            added: &[],
            hides_api_keys: false,
            forwarded_host: None,
            host: None,
            is_removed: postern_http::message::headers::is_reserved,
            caller: Some(caller),
        };
        said.append(&self.headers, &mut head)
            .expect("a visible ASCII identity");
        head
    }

    /// Writes the access log line and returns its length.
    pub fn event(&mut self, caller: &Caller, route: RouteIndex) -> usize {
        let mut id = Uuid::encode_buffer();
        let event = Event {
            request_id: Uuid::from_u128(7).hyphenated().encode_lower(&mut id),
            method: Some("GET"),
            path: Some("/collection-0/42/part-0"),
            route: Some("collection-0-part-0").filter(|_| route == 0),
            status: 200,
            code: "ok",
            kind: Some("user"),
            subject: Some(caller.subject()),
            upstream: Some("origin"),
            upstream_address: Some("127.0.0.1:8501"),
            attempts: 1,
            duration_us: 412,
            upstream_us: Some(287),
            response_bytes: 127,
            protocol: "HTTP/1.1",
            trace_id: Some("0af7651916cd43dd8448eb211c80319c"),
            client: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            ..Event::default()
        };
        self.line.clear();
        event.render(&mut self.line, self.clock.now(), ClientAddress::Network);
        self.line.len()
    }
}
