//! Many tunnels through one gateway at once, each with its own bytes. `POSTERN_TEST_TUNNELS` (default 300)
//! sets their number; a process with 20,000 files has room for 9,900.

use std::net::SocketAddr;
use std::time::Duration;

use postern_core::config::Env;
use postern_harness::process::Program;
use postern_harness::{Pools, ports};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Timeout of each exchange, after which the test fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// Starts an origin that accepts each upgrade and sends back what it reads.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_head(&mut stream).await;
                stream.write_all(SWITCHED).await.expect("the gateway reads");
                let (mut from, mut to) = stream.split();
                // A close of the gateway ends it.
                let _ended = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

/// Reads a head, byte by byte, so that no byte of the tunnel is taken.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a whole head"));
    }
    String::from_utf8(head).expect("a head in ASCII")
}

/// Opens a tunnel.
async fn open(gateway: SocketAddr, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway).await.expect("accepted");
    let request = format!(
        "GET /socket HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream
}

/// Sends a text through a tunnel and expects it back.
async fn exchange(stream: &mut TcpStream, text: &str) {
    let exchanging = async {
        stream.write_all(text.as_bytes()).await.expect("sent");
        let mut read = vec![0; text.len()];
        stream.read_exact(&mut read).await.expect("an answer");
        assert_eq!(String::from_utf8_lossy(&read), text);
    };
    let exchanged = tokio::time::timeout(STEP_TIMEOUT, exchanging).await;
    exchanged.unwrap_or_else(|_| panic!("{text} does not come back"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_keep_their_own_bytes() {
    let tunnels = Env::of_process()
        .get("POSTERN_TEST_TUNNELS")
        .map_or(300, |tunnels| tunnels.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let (pools, ports) = (Pools::start().await, ports::free(2));
    let [plain, admin] = [0, 1].map(|next| SocketAddr::from(([127, 0, 0, 1], ports + next)));
    let text = format!(
        "[[listen]]\naddress = \"{plain}\"\n[admin]\naddress = \"{admin}\"\n[access_log]\nto = \"off\"\n\
         [limits]\nconnections_per_address = 20000\n\
         [upstream.echo]\naddresses = [\"{}\"]\nin_flight = 20000\n\
         [[route]]\npath = \"/socket\"\nmethods = [\"GET\"]\nupstream = \"echo\"\nwebsocket = true\npolicy = {{ users = \"any\" }}\n",
        echo().await
    );
    let program = Program::of_workspace("postern-proxy", folder.path())
        .config("proxy.toml", &text)
        .arg("run")
        .envs(pools.variables());
    let mut gateway = program.start();
    gateway.until_ready().await;
    let before = gateway.peak_memory_kib();
    let (_, token) = pools.user(&[]).await;
    let mut open_tunnels = Vec::new();
    for number in 0..tunnels {
        let mut stream = open(plain, &token).await;
        exchange(&mut stream, &format!("first of {number}")).await;
        open_tunnels.push(stream);
    }
    for (number, stream) in open_tunnels.iter_mut().enumerate().rev() {
        exchange(stream, &format!("second of {number}")).await;
    }
    let each = gateway.peak_memory_kib().saturating_sub(before) / tunnels;
    postern_harness::note(&format!(
        "gateway: {tunnels} tunnels at once, {each} KiB each"
    ));
    drop(open_tunnels);
    assert_eq!(gateway.stop("TERM").await.status, Some(0));
}
