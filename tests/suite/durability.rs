//! The real program through restarts, kills and stops: accepted data is kept.

use std::time::{Duration, Instant};

use postern_tests::http_body::json;
use postern_tests::program::{Program, Running};
use postern_tests::surface::{PASSWORD, resume, resume_form, welcome};
use postern_tests::{Client, PublicApi, ports};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// Standalone as a process, with a data folder that is kept when the process ends.
struct Standalone {
    running: Running,
    surface: PublicApi,
}

/// A data folder, and a port that is the same over restarts, because tokens contain the address of
/// their pool.
struct Installation {
    folder: TempDir,
    port: u16,
}

// === impl Installation ===

impl Installation {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            port: ports::free(13),
        }
    }

    fn postern(&self) -> Program {
        Program::of_workspace("postern", self.folder.path())
            .arg("--data-dir")
            .arg("var")
    }

    async fn start(&self) -> Standalone {
        let began = Instant::now();
        let mut running = self
            .postern()
            .arg("--port")
            .arg(self.port.to_string())
            .start();
        let _ = running.wait_for_line("ready").await;
        postern_tests::note(&format!(
            "standalone: start to ready {} ms",
            began.elapsed().as_millis()
        ));
        let surface = PublicApi::of_folder(&self.folder.path().join("var"));
        surface.until_keys().await;
        Standalone { running, surface }
    }
}

impl Standalone {}

#[tokio::test]
async fn command_line_issues_service_tokens() {
    let installation = Installation::new();
    let standalone = installation.start().await;
    for account in ["auth", "notify", "actor", "document"] {
        let ended = installation
            .postern()
            .arg("token")
            .arg("--service")
            .arg(account)
            .run()
            .await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        let service = standalone.surface.client().with_token(ended.stdout.trim());
        assert_eq!(
            service.fetch("/auth/me", 200).await.string("/serviceId"),
            account
        );
    }
    let unknown = installation
        .postern()
        .arg("token")
        .arg("--service")
        .arg("nobody")
        .run()
        .await;
    assert!(
        unknown.expect(64, 1)[0].contains("document"),
        "the message lists the known accounts"
    );
    assert_eq!(standalone.running.stop("TERM").await.status, Some(0));
    let stopped = installation
        .postern()
        .arg("token")
        .arg("--service")
        .arg("auth")
        .run()
        .await;
    assert!(stopped.expect(69, 1)[0].contains("no response"));
}

#[tokio::test]
async fn restart_keeps_all_data() {
    let installation = Installation::new();
    let first = installation.start().await;
    let ada = first.surface.register().await;
    let created = ada
        .client
        .posted("/notifications", &welcome(&ada.id), 201)
        .await;
    let mail = first.surface.mailbox().to(&ada.email).await;
    assert_eq!(first.running.stop("TERM").await.status, Some(0));

    let second = installation.start().await;
    let login = json!({"email": ada.email, "password": PASSWORD});
    let tokens = second
        .surface
        .client()
        .posted("/auth/login", &login, 200)
        .await
        .json();
    let again = second.surface.person(&ada.email, tokens).await;
    assert_eq!(again.id, ada.id);
    // A token issued before the restart is valid, because the signing keys are stored.
    let old = second
        .surface
        .client()
        .with_token(ada.tokens["accessToken"].as_str().expect("a token"));
    assert_eq!(old.fetch("/auth/me", 200).await.string("/userId"), ada.id);
    assert_eq!(
        old.fetch(&format!("/actors/{}", ada.id), 200)
            .await
            .string("/email"),
        ada.email
    );
    let record = old.fetch(&created.header("location"), 200).await;
    assert_eq!(record.string("/status"), "SENT");
    assert_eq!(
        second.surface.mailbox().list(&ada.email, 0).await[0]["id"],
        mail["id"]
    );
    assert_eq!(second.running.stop("TERM").await.status, Some(0));
}

/// A result that was acknowledged to the client before the kill.
enum Acknowledged {
    Registered { email: String },
    Stored { location: String, sha256: String },
}

async fn register_until_failure(client: Client, acknowledged: UnboundedSender<Acknowledged>) {
    for number in 0..1000 {
        let email = format!("kill-{number}@example.com");
        let body = json!({"email": email, "password": PASSWORD, "profile": {"firstName": "Ada"}});
        let Some(answer) = client.post("/auth/register").json(&body).try_send().await else {
            return;
        };
        if answer.status != 201
            || acknowledged
                .send(Acknowledged::Registered { email })
                .is_err()
        {
            return;
        }
    }
}

async fn upload_until_failure(client: Client, acknowledged: UnboundedSender<Acknowledged>) {
    for _ in 0..1000 {
        let (content, sha256) = resume(300_000);
        let upload = client
            .post("/resumes")
            .multipart(resume_form("c-1", &content));
        let Some(answer) = upload.try_send().await else {
            return;
        };
        if answer.status != 201
            || acknowledged
                .send(Acknowledged::Stored {
                    location: answer.header("location"),
                    sha256,
                })
                .is_err()
        {
            return;
        }
    }
}

#[tokio::test]
async fn kill_loses_no_registration_or_upload() {
    let installation = Installation::new();
    let standalone = installation.start().await;
    let ada = standalone.surface.register().await;
    let (sender, mut receiver) = unbounded_channel();
    let mut clients = JoinSet::new();
    clients.spawn(register_until_failure(
        standalone.surface.client().clone(),
        sender.clone(),
    ));
    clients.spawn(upload_until_failure(ada.client.clone(), sender));
    let (mut acknowledged, mut registered) = (Vec::new(), 0);
    while registered < 4 || acknowledged.len() < 12 {
        let next = receiver
            .recv()
            .await
            .expect("both clients send requests until the kill");
        registered += usize::from(matches!(next, Acknowledged::Registered { .. }));
        acknowledged.push(next);
    }
    standalone.running.kill().await;
    while let Some(next) = receiver.recv().await {
        acknowledged.push(next);
    }
    clients.join_all().await;
    let standalone = installation.start().await;
    for one in acknowledged {
        match one {
            Acknowledged::Registered { email } => {
                let login = json!({"email": email, "password": PASSWORD});
                let tokens = standalone
                    .surface
                    .client()
                    .posted("/auth/login", &login, 200)
                    .await;
                let person = standalone.surface.person(&email, tokens.json()).await;
                let profile = person
                    .client
                    .fetch(&format!("/actors/{}", person.id), 200)
                    .await;
                assert_eq!(profile.string("/email"), email);
            }
            Acknowledged::Stored { location, sha256 } => {
                assert_eq!(
                    ada.client.fetch(&location, 200).await.string("/sha256"),
                    sha256
                );
            }
        }
    }
    assert_eq!(standalone.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn ctrl_c_stops_within_two_seconds_with_open_connections() {
    let installation = Installation::new();
    let standalone = installation.start().await;
    let ada = standalone.surface.register().await;
    let idle = tokio::net::TcpStream::connect(ada.client.address())
        .await
        .expect("the gateway accepts");
    let began = Instant::now();
    let ended = standalone.running.stop("INT").await;
    let took = began.elapsed();
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(took < Duration::from_secs(2), "the stop took {took:?}");
    drop(idle);
}

#[tokio::test]
async fn data_folder_is_locked_by_one_process() {
    let installation = Installation::new();
    let standalone = installation.start().await;
    let ended = installation.postern().arg("--port").arg("0").run().await;
    assert!(ended.expect(69, 1)[0].contains("another postern"));
    assert_eq!(standalone.running.stop("TERM").await.status, Some(0));
}
