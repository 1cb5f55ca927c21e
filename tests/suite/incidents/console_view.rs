//! The console over the processes of the incidents, read as a support person reads it: its pages,
//! and the details of the requests in its live tail.

use std::sync::Arc;

use parking_lot::Mutex;
use postern_harness::ports;
use postern_harness::process::{Program, Running};
use postern_harness::wait::{answer, until};
use serde_json::Value;
use tempfile::TempDir;

/// Variable with the secret of the admin routes.
pub(super) const ADMIN_TOKEN_ENV: &str = "INCIDENTS_ADMIN_TOKEN";
/// The secret.
pub(super) const ADMIN_TOKEN: &str = "the secret of the admin routes of the incidents";
/// The service that reads the pages.
pub(super) const READER: &str = "document";
/// The page of which the content is the live tail.
const TAIL: &str = "/requests";

/// The console, a reader of its pages, and the requests of its live tail.
#[derive(Debug)]
pub(super) struct ConsoleView {
    program: Running,
    /// A client that does not take members named `code` for secrets, as that of the harness does.
    client: reqwest::Client,
    base: String,
    token: String,
    /// Requests since the console was started, as JSON.
    requests: Arc<Mutex<Vec<Value>>>,
    _folder: TempDir,
}

impl ConsoleView {
    /// Starts the console over processes with these admin ports. `token` is one of [`READER`].
    pub(super) async fn start(jobs: &[(&'static str, u16)], token: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = ports::free(1);
        let mut text = format!(
            "[[listen]]\naddress = \"127.0.0.1:{port}\"\n[log]\nformat = \"json\"\n\
             [roles.viewer]\nservices = [\"{READER}\"]\n[roles.operator]\ngroups = [\"admin\"]\n"
        );
        for (job, port) in jobs {
            let kind = match *job {
                "postern-auth" => "auth",
                "postern-notify" => "notify",
                _ => "gateway",
            };
            text.push_str(&format!(
                "[[process]]\nkind = \"{kind}\"\nurls = [\"http://127.0.0.1:{port}\"]\ntoken_env = \"{ADMIN_TOKEN_ENV}\"\n"
            ));
        }
        let program = Program::of_workspace("postern-console", folder.path());
        let program = program.config("console.toml", &text);
        let mut program = program.env(ADMIN_TOKEN_ENV, ADMIN_TOKEN).start();
        let (client, base) = (reqwest::Client::new(), format!("http://127.0.0.1:{port}"));
        until("the console answers", async || {
            program.expect_alive();
            client.get(format!("{base}/livez")).send().await.is_ok()
        })
        .await;
        let requests = Arc::<Mutex<Vec<Value>>>::default();
        let stream = client
            .get(format!("{base}/live/requests"))
            .bearer_auth(token);
        let stream = stream.send().await.expect("the console answers");
        assert_eq!(stream.status(), 200, "the live tail opens");
        tokio::spawn(follow(stream, Arc::clone(&requests)));
        Self {
            program,
            client,
            base,
            token: token.to_owned(),
            requests,
            _folder: folder,
        }
    }

    /// Forgets the requests so far.
    pub(super) fn forget_requests(&self) {
        self.requests.lock().clear();
    }

    /// Waits until a page contains all texts. A page that is refused contains none of them.
    pub(super) async fn expect(&self, incident: &str, page: &str, texts: &[String]) {
        answer(async || {
            let contents = self.contents(page).await;
            let has_all = |text: &String| texts.iter().all(|expected| text.contains(expected));
            let shown = contents.iter().any(has_all).then_some(());
            shown.ok_or_else(|| {
                let (last, log) = (contents.last(), self.program.log());
                format!("{incident}: {page} of the console lacks {texts:?}:\n{last:?}\n{log}")
            })
        })
        .await;
    }

    /// Returns the text of a page; for the live tail, the details of each request.
    async fn contents(&self, page: &str) -> Vec<String> {
        if page != TAIL {
            let url = format!("{}/fragments{}", self.base, fragment(page));
            return vec![self.text(self.client.get(url)).await];
        }
        let requests = self.requests.lock().clone();
        let mut contents = Vec::new();
        for request in &requests {
            let details = self.client.post(format!("{}/request-details", self.base));
            contents.push(self.text(details.json(request)).await);
        }
        contents
    }

    /// Returns the text that a browser would show.
    async fn text(&self, request: reqwest::RequestBuilder) -> String {
        let answer = request.bearer_auth(&self.token).send().await;
        let answer = answer.expect("the console answers");
        visible(&answer.text().await.expect("text"))
    }
}

fn fragment(page: &str) -> &str {
    match page {
        "/" => "/overview",
        page => page,
    }
}

/// Reads the stream of the live tail until it ends.
async fn follow(mut stream: reqwest::Response, requests: Arc<Mutex<Vec<Value>>>) {
    let mut pending = String::new();
    while let Ok(Some(chunk)) = stream.chunk().await {
        pending.push_str(&String::from_utf8_lossy(&chunk));
        while let Some((event, rest)) = pending.split_once("\n\n") {
            if let Some(data) = event.strip_prefix("event: request\ndata: ") {
                requests
                    .lock()
                    .extend(serde_json::from_str::<Value>(data).ok());
            }
            pending = rest.to_owned();
        }
    }
}

/// Returns the text of HTML, with the characters that its references stand for.
fn visible(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        let (_, after) = part.split_once('>').unwrap_or(("", part));
        text.push_str(after);
        text.push(' ');
    }
    let text = text.replace("&quot;", "\"").replace("&lt;", "<");
    text.replace("&gt;", ">").replace("&amp;", "&")
}
