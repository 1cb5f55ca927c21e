//! Social sign-in and WebSockets in a real browser.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postern_harness::process::Program;
use postern_harness::{Browser, Pools, Standalone, ports};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn user_signs_in() {
    let Some(browser) = Browser::start("user_signs_in").await else {
        return;
    };
    let postern = Standalone::start().await;
    let sign_in = format!("{}auth/social/login", postern.surface().client().base());
    browser.open(&sign_in).await;
    browser.click("button[value=grace]").await;
    // Shown by the page's script after it has read the fragment.
    let hint = browser.text_of("#hint:not([hidden])").await;
    assert!(hint.contains("once"), "{hint}");
    assert_eq!(browser.text_of("h1").await, "Signed in");
    let address = browser.address().await;
    assert!(
        address.ends_with("/signed-in"),
        "the fragment remains in the URL: {address}"
    );
    let token = browser.text_of("#token").await;
    let token = token.as_str();
    let command = browser.text_of("#command").await;
    assert!(
        command.starts_with("curl ") && command.contains(token),
        "{command}"
    );
    // No service has set a cookie.
    assert_eq!(browser.run("return document.cookie").await, "");
    assert_eq!(browser.run("return location.hash").await, "");

    let user = postern.surface().exchange(token).await.expect(200).json();
    assert_eq!(user["user"]["email"], "grace.social@example.com");
    let again = postern.surface().exchange(token).await;
    again.problem(401, "invalid_temporary_token");
    // Somebody else declines, and is told so.
    browser.open(&sign_in).await;
    browser.click("button[value=nobody]").await;
    let outcome = browser.text_of("#outcome").await;
    assert!(
        outcome.starts_with("You declined ") && outcome.ends_with("(access_denied)"),
        "{outcome}"
    );
    assert_eq!(browser.text_of("h1").await, "Not signed in");
    assert_eq!(browser.run("return document.title").await, "Not signed in");
    browser.close().await;
    postern.stop().await;
}

/// Serves an empty page and WebSockets. Selects the subprotocol `chat` if it is offered, and sends the offered ones as a
/// message (RFC 6455 sections 4.2.2 and 5.2).
async fn serve_websockets(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve_websocket(stream));
    }
}

async fn serve_websocket(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a request"));
    }
    let head = String::from_utf8(head).expect("text");
    let field = |name: &str| {
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        let found = fields.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    };
    if field("upgrade").is_empty() {
        let page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n";
        return stream.write_all(page).await.expect("sent");
    }
    let key = format!(
        "{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11",
        field("sec-websocket-key")
    );
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()));
    let offered = field("sec-websocket-protocol");
    let selected = match offered.split(", ").any(|it| it == "chat") {
        true => "Sec-WebSocket-Protocol: chat\r\n",
        false => "",
    };
    let mut answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{selected}\r\n"
    )
    .into_bytes();
    answer.extend([0x81, u8::try_from(offered.len()).expect("a short text")]);
    answer.extend(offered.as_bytes());
    stream.write_all(&answer).await.expect("sent");
    let _closed = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn websocket_token_is_a_subprotocol() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start("websocket_token_is_a_subprotocol").await else {
        return;
    };
    let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = upstream.local_addr().expect("bound");
    let serving = tokio::spawn(serve_websockets(upstream));
    let (pools, port) = (Pools::start().await, ports::free(1));
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:{port}\"\n[upstream.chat]\naddresses = [\"{address}\"]\n\
         [[route]]\npath = \"/socket\"\nmethods = [\"GET\"]\nupstream = \"chat\"\npolicy = {{ users = \"any\" }}\n\
         websocket = true\nwebsocket_token = true\n"
    );
    let program = Program::of_workspace("postern-proxy", folder.path());
    let program = program.envs(pools.variables());
    let mut running = program.config("proxy.toml", &text).start();
    running.until_ready().await;
    let (_, token) = pools.user(&[]).await;
    let token = token.as_str();
    // Browsers let only the page of an address on this machine connect to another one.
    browser.open(&format!("http://{address}/")).await;
    for (offered, selected) in [
        (&["bearer", token][..], "bearer|"),
        (&["chat", "bearer", token][..], "chat|chat"),
        (&["bearer", token, "other"][..], "bearer|other"),
        (&["chat"][..], "error"),
        (&["bearer", "chat"][..], "error"),
    ] {
        let offered = serde_json::json!(offered);
        let script = format!(
            "const socket = new WebSocket('ws://127.0.0.1:{port}/socket', {offered});
             return new Promise((done) => {{
               socket.onmessage = (event) => done(socket.protocol + '|' + event.data);
               socket.onerror = () => done('error');
             }});"
        );
        assert_eq!(browser.run(&script).await, selected, "{offered}");
    }
    assert!(!running.log().contains(token), "the token was logged");
    browser.close().await;
    serving.abort();
}
