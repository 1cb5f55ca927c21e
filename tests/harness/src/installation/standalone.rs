//! A standalone installation in this process, on ephemeral ports, with a temporary folder.

use std::path::{Path, PathBuf};

use postern::Options;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_dev::mail::MailEnvelope;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::pools::new_user;
use crate::process::Program;
use crate::public_api::{Person, PublicApi};
use crate::sensitive;

/// A running standalone installation. Tests must stop it, which fails if a component ended early.
#[derive(Debug)]
pub struct Standalone {
    running: postern::Running,
    surface: PublicApi,
    clock: Clock,
    folder: TempDir,
}

impl Standalone {
    /// Starts it with the system clock.
    pub async fn start() -> Self {
        Self::with(Clock::system(), None).await
    }

    /// Starts it with a manual clock, which begins at the current second.
    pub async fn start_with_manual_clock() -> Self {
        let now = Clock::system().now().unix_seconds();
        Self::with(Clock::manual(Timestamp::from_unix_seconds(now)), None).await
    }

    /// Starts it with the files of a folder instead of built-in settings.
    pub async fn start_with_overrides(folder: &Path) -> Self {
        Box::pin(Self::with(Clock::system(), Some(folder.to_owned()))).await
    }

    async fn with(clock: Clock, overrides: Option<PathBuf>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options {
            overrides,
            ..Options::ephemeral(folder.path(), clock.clone())
        };
        let running = Box::pin(postern::start(options)).await;
        let running = running.expect("standalone starts");
        let surface = PublicApi::of_folder(folder.path());
        surface.until_keys().await;
        Self {
            running,
            surface,
            clock,
            folder,
        }
    }

    /// Returns its public interface.
    pub fn surface(&self) -> &PublicApi {
        &self.surface
    }

    /// Returns its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns its data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the addresses of its components.
    pub fn addresses(&self) -> &postern_dev::Addresses {
        let addresses = self.running.addresses();
        addresses.expect("development components have addresses")
    }

    /// Returns a command of the program `postern` over its data folder.
    pub fn command(&self, arguments: &[&str]) -> Program {
        let folder = self.folder().display().to_string();
        let program = Program::of_workspace("postern", self.folder());
        let program = program.args(["--data-dir", &folder]);
        program.args(arguments.iter().copied())
    }

    /// Returns a new one-time link to its console.
    pub async fn console_link(&self) -> String {
        let link = postern::console_link(self.folder()).await.expect("a link");
        let secret = link.expose().rsplit('=').next().unwrap_or_default();
        sensitive::record("console link", secret);
        link.expose().to_owned()
    }

    /// Stores a mail in its mail catcher, as if it had arrived by SMTP. Returns its id.
    pub async fn store_mail(&self, recipient: &str, message: &str) -> String {
        let mailbox = self.running.mailbox();
        let mailbox = mailbox.expect("development components have a mailbox");
        let envelope = MailEnvelope {
            sender: "a@b.test".to_owned(),
            recipients: vec![recipient.to_owned()],
        };
        let stored = mailbox.store(envelope, message.as_bytes().to_vec());
        stored.await.expect("the mail is stored")
    }

    /// Returns a new token of a service account.
    pub async fn service_token(&self, account: &str) -> String {
        let password = self.password_of(account);
        self.surface.service_token(account, &password).await
    }

    /// Returns a client with the token of a service account.
    pub async fn service(&self, account: &str) -> Client {
        let token = self.service_token(account).await;
        self.surface().client().with_token(&token)
    }

    /// Creates a user of whom the actor service says that the address is verified.
    pub async fn verified_person(&self) -> Person {
        let (id, token) = new_user(&self.surface, &[]).await;
        let service = self.surface.client();
        let service = service.with_token(&self.service_token("auth").await);
        let (email, profile) = (format!("{id}@example.com"), json!({"emailVerified": true}));
        let known = json!({"actorId": id, "email": email, "profile": profile});
        let stored = service.post_json("/actors/register", &known).await;
        let _ = stored.expect(201);
        let client = self.surface.client().with_token(&token);
        let tokens = json!({ "accessToken": token });
        Person {
            email,
            id,
            tokens,
            client,
        }
    }

    /// Returns the access token of a new user in this group.
    pub async fn token_of_group(&self, group: &str) -> String {
        new_user(&self.surface, &[group]).await.1
    }

    /// Returns the password of a service account, from the pool's file.
    pub fn password_of(&self, account: &str) -> String {
        let file = std::fs::read_to_string(self.folder().join("identity-pool.json"));
        let file: Value = file.expect("a file").parse().expect("the pool writes JSON");
        let password = file["accounts"][account].as_str();
        password
            .unwrap_or_else(|| panic!("no account {account}"))
            .to_owned()
    }

    /// Stops it.
    pub async fn stop(self) {
        self.running.stop().await;
        let database = self.folder.path().join("auth.db");
        sensitive::keep_audit(&format!("sqlite://{}", database.display())).await;
    }
}
