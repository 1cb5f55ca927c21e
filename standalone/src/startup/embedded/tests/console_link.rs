//! One-time links of the console.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::*;
use crate::console_link;

/// Answers every request on this address, as a program does that took the console's port. Returns what
/// it receives.
fn take_port(listener: TcpListener, answer: &'static str) -> JoinHandle<String> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).expect("a request");
        stream.write_all(answer.as_bytes()).expect("answered");
        String::from_utf8_lossy(&request[..length]).into_owned()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn console_link_gives_no_lasting_secret_to_another_program() {
    let folder = tempfile::tempdir().expect("folder");
    let var = folder.path().join("var");
    let secrets = |name: &str| {
        let file = std::fs::read_to_string(var.join("standalone.env")).expect("written");
        let line = file.lines().find_map(|line| line.split_once(name));
        line.map(|(_, value)| value.trim_matches(['=', '\'']).to_owned())
            .expect("a variable")
    };
    let running = start(options(&folder)).await.expect("started");
    let url = running.variable("POSTERN_CONSOLE_URL").expect("a console");
    let address = url.trim_start_matches("http://").to_owned();
    let admin = secrets("POSTERN_ADMIN_TOKEN");
    let first = secrets("POSTERN_CONSOLE_LINK_SECRET");
    assert_ne!(admin, first);
    running.stop().await;
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = other.local_addr().expect("an address");
    let redirect =
        format!("HTTP/1.1 307 x\r\nLocation: http://{target}/\r\nContent-Length: 0\r\n\r\n");
    let printed = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"secret\": \"\\u001b[2Jx\"}";
    for answer in [&*redirect.leak(), printed] {
        let listener = TcpListener::bind(&address).expect("the port");
        let received = take_port(listener, answer);
        let refused = console_link(&var).await.expect_err("no console");
        assert_eq!(refused.status(), 69);
        let received = received.join().expect("a request");
        assert!(received.contains(&first), "{received}");
        assert!(!received.contains(&admin), "{received}");
    }
    other.set_nonblocking(true).expect("set");
    assert!(other.accept().is_err(), "no redirect is followed");
    let running = start(options(&folder)).await.expect("started again");
    assert_ne!(secrets("POSTERN_CONSOLE_LINK_SECRET"), first);
    assert_eq!(secrets("POSTERN_ADMIN_TOKEN"), admin);
    running.stop().await;
}
