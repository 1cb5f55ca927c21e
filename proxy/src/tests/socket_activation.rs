use std::net::TcpListener;

use super::*;
use crate::InheritedSockets;

/// Returns a configuration that listens on these addresses, the last of them for the admin
/// listener.
fn config(addresses: [&str; 3]) -> Config {
    let [first, second, admin] = addresses;
    let text = format!(
        "[[listen]]\naddress = \"{first}\"\n[[listen]]\naddress = \"{second}\"\n[admin]\naddress = \"{admin}\"\n"
    );
    read_config(&text).expect("a valid configuration")
}

fn bound() -> (TcpListener, String) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = socket.local_addr().expect("bound").to_string();
    (socket, address)
}

#[tokio::test]
async fn inherited_socket_serves_its_address() {
    let ((admin, operators), (second, clients)) = (bound(), bound());
    let config = config(["127.0.0.1:0", &clients, &operators]);
    let sockets = InheritedSockets(vec![admin, second]);
    let listeners = sockets.bind_listeners(&config).await.expect("listeners");
    let listeners = listeners.public.into_iter().chain(listeners.admin);
    let addresses = listeners.map(|listener| listener.local_addr().expect("bound").to_string());
    let addresses: Vec<String> = addresses.collect();
    assert_eq!(addresses[1..], [clients, operators], "in any order");
    let holds = addresses[0].starts_with("127.0.0.1:");
    assert!(holds, "the other listener is bound: {addresses:?}");
}

#[tokio::test]
async fn unknown_inherited_socket_is_rejected_before_bind() {
    let ((known, clients), (stranger, nobody), (other, neither)) = (bound(), bound(), bound());
    // The address is in use, which must not be the reported mistake.
    let (_taken, taken) = bound();
    let config = config([&clients, &taken, "127.0.0.1:0"]);
    let sockets = InheritedSockets(vec![known, stranger, other]);
    let refused = sockets.bind_listeners(&config).await.expect_err("refused");
    let message = refused.message();
    let holds = message.contains(&nobody) && message.contains(&neither);
    assert!(holds, "{message}");
    let holds = refused.status() == 64 && !message.contains(&clients);
    assert!(holds, "{message}");
}
