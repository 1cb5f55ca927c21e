//! The official gRPC client and server with the gateway between them (`tests/peers/grpc`, installed
//! by its `install` script).

use std::process::Stdio;

use postern_core::testing::skipped;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::*;

fn routes() -> String {
    let short = "policy = \"public\"\ndeadline = \"500ms\"";
    [
        route(
            "calls",
            "/postern.Test/*",
            "policy = \"public\"\nbody_bytes = \"16MiB\"",
        ),
        route(
            "subject",
            "/postern.Test/Subject",
            "policy = { users = \"any\" }",
        ),
        route("short", "/postern.Test/Wait", short),
        route("short-stream", "/postern.Test/CountAndWait", short),
    ]
    .concat()
}

/// A gRPC server behind a gateway.
struct GrpcTestbed {
    gateway: TestGateway,
    _server: Child,
}

fn peer(test: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/grpc");
    if folder.join("../../.peers/grpc/installed").exists() {
        return Some(folder.join("run"));
    }
    skipped(test, "run tests/peers/grpc/install first");
    None
}

/// Starts the server. Returns its process and address.
async fn serve(run: &Path) -> (Child, SocketAddr) {
    let mut command = Command::new(run);
    let command = command
        .arg("server")
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the peer process runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = tokio::time::timeout(6 * STEP_TIMEOUT, lines.next_line())
        .await
        .expect("in time");
    let line = line.expect("reads").expect("the peer reports its address");
    let port = line
        .strip_prefix("listening ")
        .expect("a port")
        .parse()
        .expect("a number");
    (child, SocketAddr::from(([127, 0, 0, 1], port)))
}

impl GrpcTestbed {
    async fn start(test: &str, limits: &str) -> Option<Self> {
        let (server, address) = serve(&peer(test)?).await;
        let upstream = format!("addresses = [\"{address}\"]\nhttp2 = true");
        let gateway = TestGateway::h2c(OriginBehavior::Answer, &upstream, limits, &routes()).await;
        Some(Self {
            gateway,
            _server: server,
        })
    }

    /// Makes calls. Returns their results.
    async fn make(&self, calls: Value) -> Vec<Value> {
        let run = peer("").expect("installed");
        let mut command = Command::new(run);
        command.args([
            "client",
            &self.gateway.address.to_string(),
            &calls.to_string(),
        ]);
        let output =
            tokio::time::timeout(6 * STEP_TIMEOUT, command.kill_on_drop(true).output()).await;
        let output = output.expect("in time").expect("the peer process runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }
}

fn statuses(outcomes: &[Value]) -> Vec<&str> {
    outcomes
        .iter()
        .map(|outcome| outcome["status"].as_str().expect("a status"))
        .collect()
}

#[tokio::test]
async fn unary_and_all_streaming_calls_pass() {
    let Some(calls) = GrpcTestbed::start("unary_and_all_streaming_calls_pass", "").await else {
        return;
    };
    let token = format!("Bearer {}", calls.gateway.user());
    let outcomes = calls
        .make(json!([
            {"method": "Echo", "kind": "unary", "messages": ["hello"]},
            {"method": "Echo", "kind": "unary", "messages": [{"repeat": 1, "size": 2_000_000}]},
            {"method": "Count", "kind": "server", "messages": ["500 10000"]},
            {"method": "Count", "kind": "server", "messages": ["0 1"]},
            {"method": "Total", "kind": "client", "messages": [{"repeat": 1000, "size": 10}]},
            {"method": "Total", "kind": "client", "messages": [{"repeat": 100, "size": 50_000}]},
            {"method": "EchoAll", "kind": "bidi", "messages": ["a", "b", {"repeat": 200, "size": 5000}]},
            {"method": "EchoAll", "kind": "bidi", "messages": []},
            {"method": "Subject", "kind": "unary", "messages": [""], "metadata": {"authorization": token}},
        ]))
        .await;
    assert_eq!(statuses(&outcomes), ["OK"; 9], "{outcomes:#?}");
    assert_eq!(outcomes[0]["replies"], json!(["hello"]));
    assert_eq!(
        outcomes[0]["trailers"],
        json!({"x-trailer": "after", "x-bin-bin": "b'\\x00\\xff'"})
    );
    let sizes: Vec<u64> = outcomes
        .iter()
        .map(|outcome| outcome["size"].as_u64().expect("a size"))
        .collect();
    assert_eq!(sizes[1..4], [2_000_000, 5_000_000, 0]);
    assert_eq!(
        (&outcomes[4]["replies"], &outcomes[5]["replies"]),
        (&json!(["10000"]), &json!(["5000000"]))
    );
    assert_eq!(
        (&outcomes[6]["number"], sizes[6], sizes[7]),
        (&json!(202), 1_000_002, 0)
    );
    assert_eq!(outcomes[8]["replies"], json!(["ada"]));
    let events = calls.gateway.finish().await;
    assert_eq!(events.len(), 9);
    assert!(
        events
            .iter()
            .all(|event| event["status"] == 200 && event["code"] == "ok"),
        "{events:#?}"
    );
}

#[tokio::test]
async fn server_status_reaches_the_client() {
    let Some(calls) = GrpcTestbed::start("status_of_the_server_reaches_the_client", "").await
    else {
        return;
    };
    let outcomes = calls
        .make(json!([
            {"method": "Fail", "kind": "unary", "messages": [""]},
            {"method": "Enough", "kind": "client", "messages": [{"repeat": 50, "size": 1000}], "pause": 0.01},
            {"method": "NotThere", "kind": "unary", "messages": [""]},
        ]))
        .await;
    assert_eq!(
        statuses(&outcomes),
        ["FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"]
    );
    assert_eq!(outcomes[0]["message"], "not nów, 100 %");
    assert_eq!(outcomes[1]["message"], "enough");
    let events = calls.gateway.finish().await;
    assert!(
        events
            .iter()
            .all(|event| event["status"] == 200 && event["code"] == "ok"),
        "{events:#?}"
    );
}

#[tokio::test]
async fn deadline_of_the_route_ends_a_call() {
    let Some(calls) = GrpcTestbed::start("deadline_of_the_route_ends_a_call", "").await else {
        return;
    };
    let outcomes = calls
        .make(json!([
            {"method": "Wait", "kind": "unary", "messages": [""]},
            {"method": "WasCancelled", "kind": "unary", "messages": [""]},
            {"method": "CountAndWait", "kind": "server", "messages": ["3 10"]},
            {"method": "WasCancelled", "kind": "unary", "messages": [""]},
        ]))
        .await;
    assert_eq!(
        statuses(&outcomes),
        ["DEADLINE_EXCEEDED", "OK", "DEADLINE_EXCEEDED", "OK"],
        "{outcomes:#?}"
    );
    assert_eq!(
        (&outcomes[1]["replies"], &outcomes[3]["replies"]),
        (&json!(["yes"]), &json!(["yes"]))
    );
    assert_eq!(outcomes[2]["number"], 3, "messages before the error");
}

#[tokio::test]
async fn long_responses_do_not_block_a_stream() {
    let test = "answers_longer_than_their_messages_do_not_stop_a_stream";
    let Some(calls) = GrpcTestbed::start(test, "").await else {
        return;
    };
    let messages = json!([{"repeat": 20_000, "size": 20}]);
    let outcomes = calls
        .make(json!([{"method": "Expand", "kind": "bidi", "messages": messages}]))
        .await;
    assert_eq!(statuses(&outcomes), ["OK"], "{outcomes:#?}");
    assert_members(
        &outcomes[0],
        &json!({ "number": 20_000, "size": 20_000_000 }),
    );
}

#[tokio::test]
async fn client_stream_may_pause() {
    let limits = "stall_timeout = \"300ms\"\n";
    let Some(calls) = GrpcTestbed::start("client_that_streams_may_pause", limits).await else {
        return;
    };
    let outcomes = calls
        .make(json!([{"method": "EchoAll", "kind": "bidi", "messages": ["a", "b"], "pause": 1.0}]))
        .await;
    assert_eq!(statuses(&outcomes), ["OK"], "{outcomes:#?}");
    assert_eq!(outcomes[0]["replies"], json!(["a", "b"]));
}
