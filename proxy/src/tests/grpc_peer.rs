//! The official gRPC client and server with the gateway between them (`tests/peers/grpc`, installed
//! by its `install` script).

use std::process::Stdio;

use postern_core::testing::skipped;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::*;

/// Starts the server. Returns its process and address.
async fn serve(run: &Path) -> (Child, SocketAddr) {
    let mut command = Command::new(run);
    command
        .arg("server")
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the peer process runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = tokio::time::timeout(6 * STEP_TIMEOUT, lines.next_line()).await;
    let line = line.expect("in time").expect("reads");
    let line = line.expect("a line");
    let port = line.strip_prefix("listening ").expect("a port");
    let port = port.parse().expect("a number");
    (child, SocketAddr::from(([127, 0, 0, 1], port)))
}

async fn make(run: &Path, gateway: SocketAddr, calls: Value) -> Vec<Value> {
    let mut command = Command::new(run);
    command.args(["client", &gateway.to_string(), &calls.to_string()]);
    let output = tokio::time::timeout(6 * STEP_TIMEOUT, command.kill_on_drop(true).output()).await;
    let output = output.expect("in time").expect("the peer process runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let results = text.lines().map(serde_json::from_str);
    results.map(|result| result.expect("JSON")).collect()
}

#[tokio::test]
async fn calls_of_every_kind_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/grpc");
    if !folder.join("../../.peers/grpc/installed").exists() {
        let test = "calls_of_every_kind_pass";
        return skipped(test, "run tests/peers/grpc/install first");
    }
    let run = folder.join("run");
    let (_server, address) = serve(&run).await;
    let upstream = format!("addresses = [\"{address}\"]\nhttp2 = true");
    let routes = route_table(
        r#"calls | /postern.Test/* | "POST" | policy = "public"\nbody_bytes = "16MiB"
        subject | /postern.Test/Subject | "POST" | policy = { users = "any" }"#,
    );
    let gateway = TestGateway::h2c(OriginBehavior::Answer, &upstream, "", &routes).await;
    let token = format!("Bearer {}", gateway.user());
    let calls = json!([
        {"method": "Echo", "kind": "unary", "messages": ["hello"]},
        {"method": "Count", "kind": "server", "messages": ["500 10000"]},
        {"method": "Total", "kind": "client", "messages": [{"repeat": 100, "size": 50_000}]},
        {"method": "EchoAll", "kind": "bidi", "messages": ["a", "b", {"repeat": 200, "size": 5000}]},
        {"method": "Fail", "kind": "unary", "messages": [""]},
        {"method": "Enough", "kind": "client", "messages": [{"repeat": 50, "size": 1000}], "pause": 0.01},
        {"method": "Subject", "kind": "unary", "messages": [""], "metadata": {"authorization": token}},
    ]);
    let outcomes = make(&run, gateway.address, calls).await;
    let statuses: Vec<&Value> = outcomes.iter().map(|outcome| &outcome["status"]).collect();
    let (ok, failed, enough) = ("OK", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED");
    let expected = [ok, ok, ok, ok, failed, enough, ok];
    assert_eq!(statuses, expected, "{outcomes:#?}");
    let expected = [
        json!({"replies": ["hello"], "trailers": {"x-trailer": "after", "x-bin-bin": "b'\\x00\\xff'"}}),
        json!({"size": 5_000_000}),
        json!({"replies": ["5000000"]}),
        json!({"number": 202, "size": 1_000_002}),
        json!({"message": "not nów, 100 %"}),
        json!({"message": "enough"}),
        json!({"replies": ["ada"]}),
    ];
    for (outcome, expected) in outcomes.iter().zip(&expected) {
        assert_members(outcome, expected);
    }
    let events = gateway.finish().await;
    assert_eq!(events.len(), 7);
    for event in events {
        assert_members(&event, &json!({"status": 200, "code": "ok"}));
    }
}
