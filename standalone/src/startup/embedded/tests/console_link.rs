//! One-time links of the console.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::*;
use crate::console_link;

/// Returns the part of a link after `#once=`.
fn secret_of(link: &postern_core::Secret) -> String {
    let (_, secret) = link.expose().split_once("/#once=").expect("a link");
    secret.to_owned()
}

async fn console(running: &Running, path: &str, body: &Value) -> (u16, Value) {
    let url = running.variable("POSTERN_CONSOLE_URL").expect("a console");
    let request = reqwest::Client::new().post(format!("{url}{path}"));
    let answer = request.json(body).send().await.expect("answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

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
    let (admin, first) = (
        secrets("POSTERN_ADMIN_TOKEN"),
        secrets("POSTERN_CONSOLE_LINK_SECRET"),
    );
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
    assert_ne!(
        secrets("POSTERN_CONSOLE_LINK_SECRET"),
        first,
        "of this start"
    );
    assert_eq!(secrets("POSTERN_ADMIN_TOKEN"), admin);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_link_signs_in_once_and_shows_the_parts() {
    let folder = tempfile::tempdir().expect("folder");
    let var = folder.path().join("var");
    let running = start(options(&folder)).await.expect("started");
    let first = running.console_link().expect("a link").clone();
    let text = greeting(&running, "postern", Duration::ZERO);
    assert!(text.contains(first.expose()), "{text}");
    let file = std::fs::read_to_string(var.join("standalone.env")).expect("written");
    assert!(!file.contains(&secret_of(&first)), "the link is not stored");
    let link = console_link(&var).await.expect("a new link");
    for (secret, expected) in [(&first, 401), (&link, 200), (&link, 401)] {
        let body = json!({ "secret": secret_of(secret) });
        let (status, answer) = console(&running, "/session/exchange", &body).await;
        assert_eq!(status, expected, "{answer}");
    }
    let link = console_link(&var).await.expect("a new link");
    let body = json!({ "secret": secret_of(&link) });
    let (_, answer) = console(&running, "/session/exchange", &body).await;
    let token = answer["token"].as_str().expect("a token");
    let url = running.variable("POSTERN_CONSOLE_URL").expect("a console");
    for (page, expected) in [("upstreams", "identity-pool"), ("providers", "smtp")] {
        let url = format!("{url}/fragments/{page}");
        let request = reqwest::Client::new().get(url).bearer_auth(token);
        let answer = request.send().await.expect("answer").text().await;
        let html = answer.expect("a page");
        assert!(html.contains(expected), "{page}: {html}");
    }
    // The gateway does not know the token.
    assert_eq!(get(&running, "/auth/me", token).await.0, 401);
    running.stop().await;
    let stopped = console_link(&var).await.expect_err("stopped");
    assert_eq!(
        (stopped.status(), stopped.message().lines().count()),
        (69, 1)
    );
}
