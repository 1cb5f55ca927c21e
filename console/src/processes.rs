//! The replicas of the processes, and calls of their admin listeners.
//!
//! Addresses come from the configuration only: a request of a browser selects among them, and adds
//! no other (server-side request forgery). Names are resolved again with every sample.
//!
//! Input: [`ProcessGroup`]s. Output: [`Reply`]s. Depends on `config` and `json_limit`.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use http::Method;
use parking_lot::RwLock;
use postern_core::Secret;
use postern_core::dependency::root_cause;
use postern_core::exit::Exit;
use postern_service::admin_api::OPERATOR;
use serde_json::Value;
use url::{Host, Url};

use crate::config::{ProcessGroup, ProcessKind};
use crate::json_limit::is_within_limit;

/// Maximum time of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of a response.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Maximum number of replicas that a name may stand for.
const MAX_ADDRESSES: usize = 64;

/// A replica.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) kind: ProcessKind,
    /// `host:port`, unique among the replicas of a kind.
    pub(crate) name: String,
    url: Url,
    /// The URL in the configuration, whose host may stand for several replicas.
    configured: Url,
    token: Secret,
}

/// All replicas, and the client that calls them.
#[derive(Debug)]
pub(crate) struct ProcessDirectory {
    /// Follows no redirect. It also signs people in.
    pub(crate) client: reqwest::Client,
    groups: Vec<ProcessGroup>,
    replicas: RwLock<Vec<Process>>,
}

/// A replica with its answer, or why there is none.
pub(crate) type Answered = (Process, Result<Value, String>);

/// A call of an admin listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
    /// The person who makes a change.
    pub(crate) operator: Option<&'a str>,
    /// The maximum time, if it is another than [`CALL_TIMEOUT`].
    pub(crate) timeout: Option<Duration>,
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// A replica that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable {
    pub(crate) reason: String,
    /// Whether the replica may have received the call.
    pub(crate) may_be_done: bool,
}

// === impl Call ===

impl Call<'_> {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            ..Self::default()
        }
    }

    /// Sets the maximum time.
    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub(crate) fn post(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: Method::POST,
            body: Some(body),
            ..Self::get(path)
        }
    }
}

// === impl Reply ===

impl Reply {
    /// Reads a response whose body has at most `max_bytes`.
    ///
    /// # Errors
    /// If it is larger, has too many JSON values, or the connection is lost.
    pub(crate) async fn read(
        response: reqwest::Response,
        max_bytes: usize,
    ) -> Result<Self, Unreachable> {
        let status = response.status().as_u16();
        let mut stream = response.bytes_stream();
        let mut body = Vec::new();
        while let Some(chunk) = stream.next().await {
            body.extend_from_slice(&chunk.map_err(|error| Unreachable::of(&error))?);
            if body.len() > max_bytes {
                let reason = format!("the response is larger than {} KiB", max_bytes >> 10);
                return Err(Unreachable::new(reason, true));
            }
        }
        if !is_within_limit(&body) {
            let reason = "the response has too many JSON values";
            return Err(Unreachable::new(reason.to_owned(), true));
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        Ok(Self { status, text })
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the body; `null` if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Returns the problem of an error response in one line.
    pub(crate) fn problem(&self) -> String {
        let body = self.json();
        let code = body["code"].as_str().unwrap_or_default();
        let mut text = format!("{} {code}", self.status);
        for part in [&body["title"], &body["detail"]] {
            if let Some(part) = part.as_str().filter(|part| !part.is_empty()) {
                text = format!("{text}: {part}");
            }
        }
        for error in body["errors"].as_array().into_iter().flatten() {
            let either = |names: [&str; 2]| names.iter().find_map(|name| error[*name].as_str());
            let key = either(["pointer", "key"]).unwrap_or_default();
            let detail = either(["detail", "message"]).unwrap_or_default();
            text = format!("{text}; {key} {detail}");
        }
        text
    }
}

// === impl Unreachable ===

impl Unreachable {
    fn new(reason: String, may_be_done: bool) -> Self {
        Self {
            reason,
            may_be_done,
        }
    }

    pub(crate) fn of(error: &reqwest::Error) -> Self {
        Self::new(root_cause(error), !error.is_connect())
    }
}

// === impl ProcessDirectory ===

impl ProcessDirectory {
    /// Creates the client. Redirects and proxies of the environment are not followed.
    ///
    /// # Errors
    /// Status 69 if TLS cannot be set up.
    pub(crate) fn new(groups: Vec<ProcessGroup>) -> Result<Self, Exit> {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| Exit::unavailable(format!("cannot create a client: {error}")))?;
        let named = groups.iter().flat_map(|group| {
            let process = move |url: &Url| Process::at(group, url, url.clone());
            group.urls.iter().map(process)
        });
        let replicas = RwLock::new(named.collect());
        Ok(Self {
            client,
            groups,
            replicas,
        })
    }

    /// Resolves names. The replicas of a name that cannot be resolved stay as they were.
    pub(crate) async fn resolve(&self) {
        let mut replicas: Vec<Process> = Vec::new();
        for group in &self.groups {
            for url in &group.urls {
                let mut found = self.of(group.kind);
                found.retain(|process| process.configured == *url);
                if let Some(urls) = resolve(url).await {
                    let at = |found| Process::at(group, url, found);
                    found = urls.into_iter().map(at).collect();
                }
                for process in found {
                    let id = (process.kind, &process.name);
                    if replicas.iter().all(|known| (known.kind, &known.name) != id) {
                        replicas.push(process);
                    }
                }
            }
        }
        *self.replicas.write() = replicas;
    }

    /// Returns all replicas, in the order of the configuration.
    pub(crate) fn all(&self) -> Vec<Process> {
        self.replicas.read().clone()
    }

    /// Returns the replicas of a kind.
    pub(crate) fn of(&self, kind: ProcessKind) -> Vec<Process> {
        let mut replicas = self.all();
        replicas.retain(|process| process.kind == kind);
        replicas
    }

    /// Calls a replica.
    ///
    /// # Errors
    /// If it does not answer in time, or with more than 8 MiB.
    pub(crate) async fn call(
        &self,
        process: &Process,
        call: &Call<'_>,
    ) -> Result<Reply, Unreachable> {
        let timeout = call.timeout.unwrap_or(CALL_TIMEOUT);
        let work = async {
            let response = self.send(process, call).await?;
            Reply::read(response, MAX_RESPONSE_BYTES).await
        };
        let late = || format!("no answer within {} s", timeout.as_secs());
        tokio::time::timeout(timeout, work)
            .await
            .unwrap_or_else(|_| Err(Unreachable::new(late(), true)))
    }

    /// Sends a call and returns the response with its body unread, for streams.
    ///
    /// # Errors
    /// If the replica cannot be reached, or the path has a segment that would select another route.
    pub(crate) async fn send(
        &self,
        process: &Process,
        call: &Call<'_>,
    ) -> Result<reqwest::Response, Unreachable> {
        if !is_plain(&call.path) {
            let reason = "an identifier must not be empty, `.` or `..`";
            return Err(Unreachable::new(reason.to_owned(), false));
        }
        let base = process.url.as_str().trim_end_matches('/');
        let url = format!("{base}{}", call.path);
        let mut request = self.client.request(call.method.clone(), url);
        if call.path.starts_with("/admin/") {
            request = request.bearer_auth(process.token.expose());
        }
        if let Some(operator) = call.operator {
            request = request.header(OPERATOR, visible_ascii(operator));
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let sent = request.send().await;
        sent.map_err(|error| Unreachable::of(&error))
    }

    /// Calls the replicas of a kind one after the other until one answers.
    ///
    /// # Errors
    /// If none does, with the reason of the last.
    pub(crate) async fn call_any(
        &self,
        kind: ProcessKind,
        call: &Call<'_>,
    ) -> Result<Reply, Unreachable> {
        let none = format!("no [[process]] of the kind {} is configured", kind.as_str());
        let mut failed = Unreachable::new(none, false);
        for process in self.of(kind) {
            match self.call(&process, call).await {
                Ok(reply) => return Ok(reply),
                Err(error) => {
                    let reason = format!("{}: {}", process.name, error.reason);
                    failed = Unreachable::new(reason, true);
                }
            }
        }
        Err(failed)
    }

    /// Returns the JSON of a path at each replica of a kind, or why there is none.
    pub(crate) async fn ask_all(&self, kind: ProcessKind, path: &str) -> Vec<Answered> {
        let calls = self.of(kind).into_iter().map(|process| async move {
            let result = match self.call(&process, &Call::get(path)).await {
                Ok(reply) if reply.is_success() => Ok(reply.json()),
                Ok(reply) => Err(reply.problem()),
                Err(error) => Err(error.reason),
            };
            (process, result)
        });
        join_all(calls).await
    }
}

// === impl Process ===

impl Process {
    fn at(group: &ProcessGroup, configured: &Url, url: Url) -> Self {
        let port = url.port_or_known_default().unwrap_or(80);
        let name = format!("{}:{port}", url.host_str().unwrap_or_default());
        Self {
            kind: group.kind,
            name,
            url,
            configured: configured.clone(),
            token: group.token.clone(),
        }
    }
}

/// Returns the URL of each address of an `http` host name; `None` if it cannot be resolved. The
/// certificate of an `https` URL is for its name, which therefore stays.
async fn resolve(url: &Url) -> Option<Vec<Url>> {
    let (Some(Host::Domain(name)), "http") = (url.host(), url.scheme()) else {
        return Some(vec![url.clone()]);
    };
    let port = url.port_or_known_default().unwrap_or(80);
    let addresses = tokio::net::lookup_host((name, port)).await.ok()?;
    let mut addresses: Vec<SocketAddr> = addresses.take(MAX_ADDRESSES).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let at = |address: SocketAddr| Url::parse(&format!("http://{address}")).ok();
    let urls: Vec<Url> = addresses.into_iter().filter_map(at).collect();
    (!urls.is_empty()).then_some(urls)
}

/// Returns whether no segment of a path is empty, `.` or `..`, also encoded: URL parsers remove the
/// latter two with the segment before (URL Standard, "path state"), so that an identifier would
/// select another route.
fn is_plain(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut segments = path.split('/').skip(1);
    segments.all(|segment| {
        let decoded = segment.replace("%2e", ".").replace("%2E", ".");
        !matches!(decoded.as_str(), "" | "." | "..")
    })
}

/// Replaces what a header field cannot carry.
fn visible_ascii(name: &str) -> String {
    let visible = |character: char| match character {
        ' '..='~' => character,
        _ => '?',
    };
    name.chars().take(256).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn replicas_of_a_name_stay_while_it_is_not_resolved() {
        let url = |text: &str| Url::parse(text).expect("a URL");
        // A label has 63 characters at most (RFC 1035 section 2.3.4).
        let name = url(&format!("http://{}:8509", "a".repeat(64)));
        let group = ProcessGroup {
            kind: ProcessKind::Gateway,
            urls: vec![name.clone(), url("http://192.0.2.9:8509")],
            token: String::new().into(),
        };
        let directory = ProcessDirectory::new(vec![group.clone()]).expect("a client");
        let names = || {
            let all = directory.all().into_iter();
            all.map(|process| process.name).collect::<Vec<_>>()
        };
        let found = ["http://192.0.2.1:8509", "http://192.0.2.2:8509"];
        let mut replicas: Vec<_> = found
            .map(|found| Process::at(&group, &name, url(found)))
            .into();
        replicas.push(Process::at(&group, &group.urls[1], group.urls[1].clone()));
        *directory.replicas.write() = replicas;
        let before = names();
        assert_eq!(before.len(), 3);
        directory.resolve().await;
        assert_eq!(names(), before);
    }

    #[test]
    fn segments_that_select_another_route_are_found() {
        for path in [
            "/metrics",
            "/admin/a/..a/.b/c..",
            "/admin/x?y=../z//",
            "/admin/a%2F..%2Fb",
        ] {
            assert!(is_plain(path), "{path}");
        }
        for segment in ["", ".", "..", "%2e", "%2E%2e", ".%2E"] {
            for path in [
                format!("/admin/{segment}/retry"),
                format!("/admin/{segment}?q=1"),
            ] {
                assert!(!is_plain(&path), "{path}");
            }
        }
    }
}
