//! The real program through kills and stops: accepted data is kept.

use std::time::{Duration, Instant};

use postern_harness::process::{Program, Running};
use postern_harness::public_api::{credentials, resume, text, upload, welcome};
use postern_harness::{Client, Person, PublicApi, ports};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// A data folder, and a port that is the same over restarts, because tokens contain the address of
/// their pool.
struct DataFolder {
    folder: TempDir,
    port: String,
}

impl DataFolder {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            port: ports::free(13).to_string(),
        }
    }

    fn postern(&self) -> Program {
        let program = Program::of_workspace("postern", self.folder.path());
        program.args(["--data-dir", "var"])
    }

    async fn start(&self) -> (Running, PublicApi) {
        let began = Instant::now();
        let mut running = self.postern().args(["--port", &self.port]).start();
        let _ = running.wait_for_line("ready").await;
        let took = began.elapsed().as_millis();
        postern_harness::note(&format!("standalone: start to ready {took} ms"));
        let surface = PublicApi::of_folder(&self.folder.path().join("var"));
        surface.until_keys().await;
        (running, surface)
    }
}

/// Service tokens are issued, for known accounts only, and a second process is refused.
async fn use_the_command_line(data: &DataFolder, surface: &PublicApi) {
    let token = |account: &str| data.postern().args(["token", "--service", account]);
    for account in ["auth", "notify", "actor", "document"] {
        let ended = token(account).run().await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        let service = surface.client().with_token(ended.stdout.trim());
        let me = service.fetch("/auth/me", 200).await;
        assert_eq!(me.string("/serviceId"), account);
    }
    let unknown = token("nobody").run().await;
    let said = unknown.expect(64, 1)[0].to_owned();
    assert!(said.contains("document"), "the known accounts: {said}");
    let second = data.postern().args(["--port", "0"]).run().await;
    assert!(second.expect(69, 1)[0].contains("another postern"));
}

/// A result that was acknowledged to the client before the kill.
enum Acknowledged {
    Registered { email: String },
    Stored { location: String, sha256: String },
}

async fn register_until_failure(client: Client, acknowledged: UnboundedSender<Acknowledged>) {
    for number in 0..1000 {
        let email = format!("kill-{number}@example.com");
        let body = credentials(&email);
        let answer = client.post("/auth/register").json(&body).try_send().await;
        if answer.is_none_or(|answer| answer.status != 201) {
            return;
        }
        let _ = acknowledged.send(Acknowledged::Registered { email });
    }
}

async fn upload_until_failure(client: Client, acknowledged: UnboundedSender<Acknowledged>) {
    for _ in 0..1000 {
        let (content, sha256) = resume(300_000);
        let answer = upload(&client, "c-1", &content).try_send().await;
        let Some(answer) = answer.filter(|answer| answer.status == 201) else {
            return;
        };
        let location = answer.header("location");
        let _ = acknowledged.send(Acknowledged::Stored { location, sha256 });
    }
}

/// Registers and uploads until the program is killed. Returns what was acknowledged.
async fn kill_under_load(running: Running, surface: &PublicApi, ada: &Person) -> Vec<Acknowledged> {
    let (sender, mut receiver) = unbounded_channel();
    let mut clients = JoinSet::new();
    let client = surface.client().clone();
    clients.spawn(register_until_failure(client, sender.clone()));
    clients.spawn(upload_until_failure(ada.client.clone(), sender));
    let (mut acknowledged, mut registered) = (Vec::new(), 0);
    while registered < 4 || acknowledged.len() < 12 {
        let next = receiver.recv().await;
        let next = next.expect("both clients send until the kill");
        registered += usize::from(matches!(next, Acknowledged::Registered { .. }));
        acknowledged.push(next);
    }
    running.kill().await;
    while let Some(next) = receiver.recv().await {
        acknowledged.push(next);
    }
    clients.join_all().await;
    acknowledged
}

async fn assert_kept(surface: &PublicApi, ada: &Person, acknowledged: Vec<Acknowledged>) {
    for one in acknowledged {
        match one {
            Acknowledged::Registered { email } => {
                let login = credentials(&email);
                let tokens = surface.client().posted("/auth/login", &login, 200).await;
                let person = surface.person(&email, tokens.json()).await;
                let profile = person.client.read(&format!("/actors/{}", person.id)).await;
                assert_eq!(text(&profile, "email"), email);
            }
            Acknowledged::Stored { location, sha256 } => {
                assert_eq!(text(&ada.client.read(&location).await, "sha256"), sha256);
            }
        }
    }
}

#[tokio::test]
async fn kill_loses_nothing_that_was_acknowledged() {
    let data = DataFolder::new();
    let (running, surface) = data.start().await;
    use_the_command_line(&data, &surface).await;
    let ada = surface.register().await;
    let message = welcome(&ada.id);
    let created = ada.client.posted("/notifications", &message, 201).await;
    let location = created.header("location");
    let mail = surface.mailbox().to(&ada.email).await;
    ada.client.settled(&location).await;
    let acknowledged = kill_under_load(running, &surface, &ada).await;
    let (running, surface) = data.start().await;
    assert_kept(&surface, &ada, acknowledged).await;
    // A token issued before is valid, because the signing keys are stored.
    let token = text(&ada.tokens, "accessToken");
    let old = surface.client().with_token(token);
    assert_eq!(text(&old.read("/auth/me").await, "userId"), ada.id);
    assert_eq!(text(&old.read(&location).await, "status"), "SENT");
    let kept = surface.mailbox().list(&ada.email, 0).await;
    assert_eq!(kept[0]["id"], mail["id"]);
    // An open connection does not delay a stop.
    let idle = tokio::net::TcpStream::connect(old.address()).await;
    let began = Instant::now();
    let ended = running.stop("INT").await;
    let took = began.elapsed();
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(took < Duration::from_secs(2), "the stop took {took:?}");
    drop(idle.expect("the gateway accepts"));
    let token = data.postern().args(["token", "--service", "auth"]);
    let stopped = token.run().await;
    assert!(stopped.expect(69, 1)[0].contains("no response"));
}
