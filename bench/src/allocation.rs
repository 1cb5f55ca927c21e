//! Allocations per request, of the empty Pingora pass-through and of the gateway with all features.
//!
//! Both servers run in this process, on threads whose allocations are counted. Client and origin
//! run on other threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use pingora::apps::ServerApp;
use postern_common::Clock;
use postern_common::config::{Env, parse};
use postern_proxy::{App, Config, Listeners};
use tokio::runtime::{Builder, Runtime};

use crate::passthrough;
use crate::setup::GatewaySetup;
use crate::token::TokenSigner;

/// An allocator that counts the allocations of the server threads.
pub struct CountingAllocator;

static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if SERVES.try_with(Cell::get).unwrap_or(false) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(
    unsafe_code,
    reason = "the allocator trait is unsafe; every call is forwarded unchanged to the system's allocator"
)]
// SAFETY: the added counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Mean allocations per request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationCounts {
    /// Of the empty pass-through.
    pub passthrough: f64,
    /// Of the gateway with all features and a cached token.
    pub gateway: f64,
}

/// Requests before counting, which create connections, caches and buffers.
const WARM_UP_REQUESTS: u32 = 300;

/// Number of counted requests.
const COUNTED_REQUESTS: u32 = 1_000;

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"name\":\"Ada\"}\n";

/// Counts the allocations of both servers. [`CountingAllocator`] must be the global allocator.
///
/// # Errors
/// No loopback socket is available, the folder cannot be written, or a response is wrong.
pub fn measure(folder: &Path) -> io::Result<AllocationCounts> {
    let signer = TokenSigner::generate()?;
    let origin = origin(signer.jwks.clone())?;
    let issuer = format!("http://{origin}/pool");
    let token = signer.token(&issuer, 1)?;
    Ok(AllocationCounts {
        passthrough: requests(passthrough(origin)?, &token)?,
        gateway: requests(gateway(folder, origin, &issuer)?, &token)?,
    })
}

/// A server that stops when dropped.
struct RunningServer {
    address: SocketAddr,
    _runtime: Runtime,
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_start(|| SERVES.set(true))
        .build()
}

fn bind(runtime: &Runtime) -> io::Result<tokio::net::TcpListener> {
    runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
}

fn passthrough(origin: SocketAddr) -> io::Result<RunningServer> {
    let runtime = runtime()?;
    let listener = bind(&runtime)?;
    let address = listener.local_addr()?;
    let proxy = passthrough::proxy(origin);
    runtime.spawn(async move {
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        while let Ok((stream, _)) = listener.accept().await {
            let _best_effort = stream.set_nodelay(true);
            let stream = pingora::protocols::l4::stream::Stream::from(stream);
            let mut kept = proxy.process_new(Box::new(stream), &stopping).await;
            while let Some(stream) = kept {
                kept = proxy.process_new(stream, &stopping).await;
            }
        }
    });
    Ok(RunningServer {
        address,
        _runtime: runtime,
    })
}

fn gateway(folder: &Path, origin: SocketAddr, issuer: &str) -> io::Result<RunningServer> {
    let runtime = runtime()?;
    let (public, admin) = (bind(&runtime)?, bind(&runtime)?);
    let address = public.local_addr()?;
    let setup = GatewaySetup {
        workers: 1,
        routes: 100,
        tokens: "",
        address,
        tls: None,
        admin: admin.local_addr()?,
        admin_token_env: None,
        upstream: origin,
        issuer,
        access_log: &folder.join("access.log"),
    };
    let config = parse("proxy.toml", &setup.toml(), |root| {
        Config::read(root, &Env::default())
    });
    let refused = |exit: postern_common::exit::Exit| io::Error::other(exit.message().to_owned());
    let app = App::build(config.map_err(refused)?, Clock::system()).map_err(refused)?;
    let listeners = Listeners {
        public: vec![public],
        admin: Some(admin),
    };
    runtime.spawn(Box::pin(app.run(listeners, CancellationToken::new())));
    Ok(RunningServer {
        address,
        _runtime: runtime,
    })
}

/// Sends requests on one connection and counts allocations after the warm-up.
fn requests(server: RunningServer, token: &str) -> io::Result<f64> {
    let request = format!(
        "GET /actors/42 HTTP/1.1\r\nHost: gateway.example\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(server.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)?;
    let mut ask = || -> io::Result<()> {
        stream.write_all(request.as_bytes())?;
        let mut space = [0; 4096];
        let mut read = 0;
        while !space[..read].ends_with(b"{\"name\":\"Ada\"}\n") {
            match stream.read(&mut space[read..])? {
                0 => return Err(io::Error::other("the response is wrong")),
                bytes => read += bytes,
            }
        }
        Ok(())
    };
    for _ in 0..WARM_UP_REQUESTS {
        ask()?;
    }
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..COUNTED_REQUESTS {
        ask()?;
    }
    let counted = COUNT.load(Ordering::Relaxed) - before;
    drop(server);
    Ok(f64::from(u32::try_from(counted).unwrap_or(u32::MAX)) / f64::from(COUNTED_REQUESTS))
}

/// Starts an origin with a fixed response, which also publishes the keys.
fn origin(jwks: String) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let jwks = jwks.clone();
            thread::spawn(move || serve(stream, &jwks));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream, jwks: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    let mut space = [0; 4096];
    loop {
        match stream.read(&mut space)? {
            0 => return Ok(()),
            bytes => head.extend_from_slice(&space[..bytes]),
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        if head.starts_with(b"GET /pool") {
            let length = jwks.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{jwks}"
            )?;
        } else {
            stream.write_all(ANSWER)?;
        }
        head.clear();
    }
}
