//! The guides of `docs/guides`: their commands are executed, and the names in them exist.

mod names;
mod stubs;

use std::path::{Path, PathBuf};

use postern_store::cache::testing::redis;
use postern_store::database::testing::postgres;
use postern_tests::Guide;
use postern_tests::guide::Surroundings;

use self::stubs::{FcmApi, Moto, SmtpServer, TwilioApi};

/// The guides whose commands are executed. A test compares this list with the folder.
const EXECUTED: [&str; 10] = [
    "backup",
    "cognito",
    "email",
    "front-end",
    "openid",
    "push",
    "sms",
    "templates",
    "tls",
    "upgrade",
];
/// The guides without steps.
const READ: [&str; 4] = ["README", "faq", "limits", "troubleshooting"];

/// Returns the folder of a peer that `tests/run` has installed.
fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(".peers")
        .join(name)
}

/// Follows a guide with replacements for what its text names.
async fn follow(name: &str, replacements: Vec<(&'static str, String)>) {
    let surroundings = Surroundings {
        replacements,
        programs: vec![peer("aws/python/bin")],
        before: "",
    };
    Guide::read(name).follow(&surroundings).await;
}

/// On a busy machine the local pool may take longer for a password hash than the check waits for a
/// service token.
#[tokio::test]
async fn cognito_guide_works_at_the_local_pool() {
    let check = "$ postern-auth --config my/auth.toml check";
    let repeated = "$ until postern-auth --config my/auth.toml check > my/check.txt 2>&1; do :; done; \
                    cat my/check.txt";
    follow("cognito", vec![(check, repeated.to_owned())]).await;
}

/// The tour of the README, at the program that its first command builds and starts.
#[tokio::test]
async fn tour_of_the_readme_works() {
    let surroundings = Surroundings {
        replacements: vec![("target/release/", String::new())],
        programs: Vec::new(),
        before: "postern --port 8500 > postern.log &\n\
                 until grep -qs ready postern.log; do sleep 0.1; done",
    };
    Guide::tour().follow(&surroundings).await;
}

/// moto does not implement `PreventUserExistenceErrors`, which the check finds out, and its tokens
/// name Amazon's issuer instead of its own address.
#[tokio::test]
async fn cognito_guide_works_at_moto() {
    let moto = Moto::start().await;
    let pool = format!(
        "export AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER={} AWS_ACCESS_KEY_ID=testing \
         AWS_SECRET_ACCESS_KEY=testing AWS_DEFAULT_REGION=us-west-2",
        moto.url
    );
    let last = "ok      service client: flows and attributes are correct";
    let reveals = "FAULT   sign-in: the pool reveals which users exist: set \
                   PreventUserExistenceErrors of the app client to ENABLED";
    let replacements = vec![
        ("POSTERN_AWS=local; . practice/standalone.env", pool),
        (
            "ok      sign-in: the app client can sign users in",
            reveals.to_owned(),
        ),
        (last, format!("{last}\n1 of 19 checks failed")),
        (
            "caller     user …\ndecision   allow",
            "caller     the token is refused\ndecision   401 issuer_not_accepted".to_owned(),
        ),
    ];
    follow("cognito", replacements).await;
}

#[tokio::test]
async fn templates_guide_works() {
    follow("templates", Vec::new()).await;
}

#[tokio::test]
async fn openid_guide_works() {
    follow("openid", Vec::new()).await;
}

#[tokio::test]
async fn email_guide_works() {
    let server = SmtpServer::start().await;
    let settings = format!("port = {}\nca_file = \"{}\"", server.port, server.authority);
    let replacements = vec![
        ("smtp.example.com", "localhost".to_owned()),
        ("port = 587", settings),
    ];
    follow("email", replacements).await;
    let mail = server.next_mail().await;
    assert_eq!(mail["user"], "postern", "{mail}");
    assert_eq!(mail["tls"], true, "{mail}");
}

#[tokio::test]
async fn sms_guide_works() {
    let api = TwilioApi::start().await;
    let base = format!("kind = \"twilio\"\nbase = \"{}\"", api.base);
    follow("sms", vec![("kind = \"twilio\"", base)]).await;
    let forms = api.messages();
    let callback = "StatusCallback=https%3A%2F%2Fgateway.example.com%2Fwebhooks%2Ftwilio%3Fid%3D";
    assert_eq!(forms.len(), 1, "{forms:?}");
    assert!(forms[0].contains(callback), "{forms:?}");
}

#[tokio::test]
async fn push_guide_works() {
    let api = FcmApi::start().await;
    let base = format!("kind = \"fcm\"\nbase = \"{}\"", api.base);
    let token_uri = format!("{}/token", api.base);
    let replacements = vec![
        ("kind = \"fcm\"", base),
        ("https://oauth2.googleapis.com/token", token_uri),
    ];
    follow("push", replacements).await;
}

#[tokio::test]
async fn tls_guide_works() {
    follow("tls", Vec::new()).await;
}

#[tokio::test]
async fn front_end_guide_works() {
    follow("front-end", Vec::new()).await;
}

#[tokio::test]
async fn upgrade_guide_works() {
    follow("upgrade", Vec::new()).await;
}

#[tokio::test]
async fn backup_guide_works() {
    let (old, new) = (postgres().await, postgres().await);
    let cache = redis().await;
    let replacements = vec![
        ("postgres://postern@old-db/postern", old.url.clone()),
        ("postgres://postern@new-db/postern", new.url.clone()),
        ("redis://127.0.0.1:6379", cache.url.clone()),
    ];
    follow("backup", replacements).await;
}

/// Every configuration block is a file that a later command of its guide loads.
#[test]
fn configuration_blocks_are_loaded() {
    let mut count = 0;
    for name in EXECUTED.into_iter().chain(READ) {
        let guide = Guide::read(name);
        for (at, block) in guide.blocks.iter().enumerate() {
            if block.language != "toml" {
                continue;
            }
            count += 1;
            let (folder, _) = block
                .action
                .rsplit_once('/')
                .unwrap_or_else(|| panic!("{name}:{}: the block has no path", block.line));
            let file = format!("--config {}", block.action);
            let overrides = format!("--overrides {folder}");
            let later = &guide.blocks[at..];
            let is_loaded = later.iter().any(|block| {
                block.action == "run"
                    && (block.text.contains(&file) || block.text.contains(&overrides))
            });
            assert!(
                is_loaded,
                "{name}:{}: no command loads the block",
                block.line
            );
        }
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn every_guide_is_executed_or_has_no_steps() {
    let mut known: Vec<String> = EXECUTED
        .into_iter()
        .chain(READ)
        .map(str::to_owned)
        .collect();
    known.sort();
    let files = std::fs::read_dir(Guide::folder()).expect("the folder exists");
    let mut found: Vec<String> = files
        .flatten()
        .filter_map(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            name.strip_suffix(".md").map(str::to_owned)
        })
        .collect();
    found.sort();
    assert_eq!(found, known);
    for name in EXECUTED {
        let guide = Guide::read(name);
        let runs = guide.blocks.iter().any(|block| block.action == "run");
        assert!(runs, "{name} has no executed block");
        let mut rest = guide.text.as_str();
        for heading in SECTIONS {
            let found = rest.split_once(&format!("\n## {heading}\n"));
            let (_, after) = found.unwrap_or_else(|| panic!("{name}: no section {heading:?}"));
            rest = after;
        }
    }
}

/// The sections of a guide with steps, in their order.
const SECTIONS: [&str; 5] = [
    "What you get",
    "What you need",
    "Steps",
    "If it does not work",
    "See also",
];
