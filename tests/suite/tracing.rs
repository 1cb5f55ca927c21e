//! Traces of all processes, as a collector receives them: rotel, installed by `tests/peers/otlp`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use postern_harness::Changes;
use postern_harness::process::{Program, Running};
use postern_harness::public_api::{PASSWORD, welcome};
use postern_harness::{Installation, Person, PublicApi, ports, skipped};

/// A password that no user has.
const WRONG_PASSWORD: &str = "Wrong-password-7!";

/// A span that the collector has written.
#[derive(Clone, Debug, Default)]
struct Span {
    service: String,
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: String,
    /// Unix times in nanoseconds.
    start: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
    /// Trace id and span id of each link.
    links: Vec<(String, String)>,
}

/// The spans of a test.
#[derive(Debug)]
struct Spans(Vec<Span>);

// === impl Spans ===

impl Spans {
    /// Parses the detailed debug log of the collector.
    fn parse(text: &str) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        let (mut service, mut section, mut link_trace) = (String::new(), "", String::new());
        for line in text.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("-> service.name: Str(") {
                service = name.trim_end_matches(')').to_owned();
            } else if line.starts_with("Span #") {
                spans.push(Span {
                    service: service.clone(),
                    ..Span::default()
                });
                section = "span";
            } else if line.starts_with("ResourceSpans #") || line.starts_with("ScopeSpans #") {
                section = "";
            } else if line == "Attributes:" {
                section = "attributes";
            } else if line == "Links:" {
                section = "links";
            }
            let Some(span) = spans.last_mut() else {
                continue;
            };
            let pair = line.trim_start_matches("-> ").split_once(": ");
            match (section, pair) {
                ("span", Some((name, value))) => match name.trim() {
                    "Trace ID" => span.trace = value.to_owned(),
                    "Parent ID" => span.parent = value.to_owned(),
                    "ID" => span.id = value.to_owned(),
                    "Name" => span.name = value.to_owned(),
                    "Kind" => span.kind = value.to_owned(),
                    "Start time" => span.start = value.parse().expect("a time"),
                    "End time" => span.end = value.parse().expect("a time"),
                    _ => {}
                },
                ("attributes", Some((name, value))) => {
                    span.attributes.insert(name.to_owned(), value.to_owned());
                }
                ("links", Some(("Trace ID", value))) => link_trace = value.to_owned(),
                ("links", Some(("ID", value))) => {
                    span.links.push((link_trace.clone(), value.to_owned()));
                }
                _ => {}
            }
        }
        Self(spans)
    }

    /// Returns the only span of a service with this name.
    fn only(&self, service: &str, name: &str) -> &Span {
        let mut found = self
            .0
            .iter()
            .filter(|span| span.service == service && span.name == name);
        match (found.next(), found.next()) {
            (Some(span), None) => span,
            _ => panic!("not one {name} of {service}: {:#?}", self.0),
        }
    }

    /// Returns the parent of a span.
    fn parent(&self, of: &Span) -> &Span {
        let parent = self.0.iter().find(|span| span.id == of.parent);
        let parent = parent.unwrap_or_else(|| panic!("no parent of {of:?} in {:#?}", self.0));
        assert_eq!(parent.trace, of.trace, "{of:?}");
        parent
    }

    /// Asserts the services, names and kinds of a span and its ancestors, up to the root.
    fn assert_ancestors(&self, span: &Span, expected: &[(&str, &str, &str)]) {
        let mut chain = vec![span];
        while let Some(last) = chain.last()
            && !last.parent.is_empty()
        {
            chain.push(self.parent(last));
        }
        let found: Vec<_> = chain
            .iter()
            .map(|span| (&*span.service, &*span.name, &*span.kind))
            .collect();
        assert_eq!(found, expected, "{chain:#?}");
    }
}

/// Returns the collector, if it is installed.
fn collector() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".peers/otlp");
    folder
        .join("installed")
        .exists()
        .then(|| folder.join("rotel"))
}

/// Starts the collector, which writes the spans that it receives to standard output.
async fn start_collector(program: PathBuf, folder: &Path, [grpc, http]: [u16; 2]) -> Running {
    let [grpc, http] = [grpc, http].map(|port| format!("127.0.0.1:{port}"));
    let collector = Program::at(program, folder)
        .args([
            "start",
            "--pid-file",
            "collector.pid",
            "--log-file",
            "collector.log",
        ])
        .args(["--otlp-grpc-endpoint", &grpc, "--otlp-http-endpoint", &http])
        .args(["--exporter", "blackhole", "--debug-log", "traces"])
        .args(["--debug-log-verbosity", "detailed"]);
    let mut collector = collector.start();
    collector.wait_for_line("Starting Rotel").await;
    collector
}

/// Asserts the spans of calls to the identity pool, and the class of a failed call.
fn assert_dependency_spans(spans: &Spans, registration: &Span) {
    let sign_up = spans.only("postern-auth", "Cognito Identity Provider.SignUp");
    assert_eq!(sign_up.parent, registration.id, "{:#?}", spans.0);
    assert_eq!(sign_up.kind, "SPAN_KIND_CLIENT");
    for (name, value) in [
        ("rpc.system", "Str(aws-api)"),
        ("rpc.service", "Str(Cognito Identity Provider)"),
        ("rpc.method", "Str(SignUp)"),
        ("server.address", "Str(127.0.0.1)"),
    ] {
        assert_eq!(sign_up.attributes[name], value, "{sign_up:#?}");
    }
    assert!(
        !sign_up.attributes.contains_key("error.type"),
        "{sign_up:#?}"
    );
    let login = spans.only("postern-auth", "POST /auth/login");
    let rejected = spans.0.iter().find(|span| {
        span.parent == login.id && span.name == "Cognito Identity Provider.InitiateAuth"
    });
    assert_eq!(
        rejected.expect("a call of the sign-in").attributes["error.type"],
        "Str(NotAuthorizedException)"
    );
}

/// Sends a wrong password.
async fn fail_to_sign_in(surface: &PublicApi, ada: &Person) {
    surface
        .client()
        .post("/auth/login")
        .json(&serde_json::json!({ "email": ada.email, "password": WRONG_PASSWORD }))
        .send()
        .await
        .problem(401, "invalid_credentials");
}

/// Registers a user, who sends a notification to herself, and waits for the mail.
async fn register_and_notify(surface: &PublicApi) -> (Person, String) {
    let ada = surface.register().await;
    let created = ada
        .client
        .post("/notifications")
        .json(&welcome(&ada.id))
        .send()
        .await
        .expect(201);
    surface.mailbox().to(&ada.email).await;
    (ada, created.string("/notificationId"))
}

/// Asserts the spans of a notification from the request to the mail server.
fn assert_delivery(spans: &Spans, notification: &str) {
    let gateway = "postern-proxy";
    let accepted = spans.only("postern-notify", "POST /notifications");
    let delivery = spans.only("postern-notify", "process email");
    let smtp = spans.only("postern-notify", "SMTP send");
    spans.assert_ancestors(
        smtp,
        &[
            ("postern-notify", "SMTP send", "SPAN_KIND_CLIENT"),
            ("postern-notify", "process email", "SPAN_KIND_CONSUMER"),
            ("postern-notify", "POST /notifications", "SPAN_KIND_SERVER"),
            (gateway, "POST", "SPAN_KIND_CLIENT"),
            (gateway, "POST /notifications", "SPAN_KIND_SERVER"),
        ],
    );
    assert_eq!(
        delivery.links,
        [(accepted.trace.clone(), accepted.id.clone())]
    );
    assert_eq!(
        delivery.attributes["messaging.message.id"],
        format!("Str({notification})")
    );
    assert_eq!(
        delivery.attributes["postern.request_id"], accepted.attributes["postern.request_id"],
        "the delivery has the request id of the acceptance"
    );
}

#[tokio::test]
async fn one_trace_spans_all_services() {
    let test = "one_trace_spans_all_services";
    let Some(program) = collector() else {
        return skipped(test, "run tests/peers/otlp/install first");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let grpc = ports::free(2);
    let port = grpc + 1;
    let collector = start_collector(program, folder.path(), [grpc, port]).await;
    let tables = format!("[tracing]\nendpoint = \"http://127.0.0.1:{port}\"\nsample_ratio = 1.0\n");
    let split = Installation::start_with(Changes {
        tables,
        ..Changes::default()
    })
    .await;
    let (ada, notification) = register_and_notify(split.surface()).await;
    fail_to_sign_in(split.surface(), &ada).await;
    // Spans that are queued are exported before the processes end.
    split.stop().await;
    let text = collector.stop("TERM").await.stdout;
    for secret in [PASSWORD, WRONG_PASSWORD, &ada.email, "Bearer", "eyJ"] {
        assert!(!text.contains(secret), "{secret} was exported");
    }
    let spans = Spans::parse(&text);
    assert_delivery(&spans, &notification);
    let registration = spans.only("postern-auth", "POST /auth/register");
    assert_eq!(
        registration.attributes["http.response.status_code"],
        "Int(201)"
    );
    spans.assert_ancestors(
        registration,
        &[
            ("postern-auth", "POST /auth/register", "SPAN_KIND_SERVER"),
            ("postern-proxy", "POST", "SPAN_KIND_CLIENT"),
            ("postern-proxy", "POST /auth/register", "SPAN_KIND_SERVER"),
        ],
    );
    assert_dependency_spans(&spans, registration);
    let calls = spans.0.iter().filter(|span| {
        span.parent == registration.id && span.kind == "SPAN_KIND_CLIENT" && span.name == "POST"
    });
    assert!(calls.count() >= 1, "{:#?}", spans.0);
}
