//! Traces of all processes, as a collector receives them: rotel, installed by `tests/peers/otlp`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use postern_harness::Changes;
use postern_harness::paths::peer;
use postern_harness::process::{Program, Running};
use postern_harness::public_api::{PASSWORD, credentials, welcome};
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
        let is_wanted = |span: &&Span| span.service == service && span.name == name;
        let found: Vec<&Span> = self.0.iter().filter(is_wanted).collect();
        let [span] = found[..] else {
            panic!("not one {name} of {service}: {:#?}", self.0)
        };
        span
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
        let chain = chain.iter();
        let found = chain.map(|span| (&*span.service, &*span.name, &*span.kind));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}

/// Returns the collector, if it is installed.
fn collector() -> Option<PathBuf> {
    let is_installed = peer("otlp/installed").exists();
    is_installed.then(|| peer("otlp/rotel"))
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
    assert_eq!(sign_up.attributes.get("error.type"), None);
    let login = spans.only("postern-auth", "POST /auth/login");
    let name = "Cognito Identity Provider.InitiateAuth";
    let is_call = |span: &&Span| span.parent == login.id && span.name == name;
    let rejected = spans.0.iter().find(is_call).expect("a call");
    let error = &rejected.attributes["error.type"];
    assert_eq!(error, "Str(NotAuthorizedException)");
}

/// Sends a wrong password.
async fn fail_to_sign_in(surface: &PublicApi, ada: &Person) {
    let mut wrong = credentials(&ada.email);
    wrong["password"] = WRONG_PASSWORD.into();
    let code = "invalid_credentials";
    let refused = surface.client().refuses("/auth/login", &wrong, 401, code);
    refused.await;
}

/// Registers a user, who sends a notification to herself, and waits for the mail.
async fn register_and_notify(surface: &PublicApi) -> (Person, String) {
    let ada = surface.register().await;
    let message = welcome(&ada.id);
    let created = ada.client.posted("/notifications", &message, 201).await;
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
    let link = (accepted.trace.clone(), accepted.id.clone());
    assert_eq!(delivery.links, [link]);
    let id = &delivery.attributes["messaging.message.id"];
    assert_eq!(*id, format!("Str({notification})"));
    // The delivery has the request id of the acceptance.
    let requests = [delivery, accepted].map(|span| &span.attributes["postern.request_id"]);
    assert_eq!(requests[0], requests[1]);
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
    let changes = Changes {
        tables,
        ..Changes::default()
    };
    let split = Installation::start_with(changes).await;
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
    let status = &registration.attributes["http.response.status_code"];
    assert_eq!(status, "Int(201)");
    spans.assert_ancestors(
        registration,
        &[
            ("postern-auth", "POST /auth/register", "SPAN_KIND_SERVER"),
            ("postern-proxy", "POST", "SPAN_KIND_CLIENT"),
            ("postern-proxy", "POST /auth/register", "SPAN_KIND_SERVER"),
        ],
    );
    assert_dependency_spans(&spans, registration);
    let mut calls = spans.0.iter().filter(|span| span.parent == registration.id);
    let is_post = |span: &Span| span.kind == "SPAN_KIND_CLIENT" && span.name == "POST";
    assert!(calls.any(is_post), "{:#?}", spans.0);
}
