//! The pages of `docs/manual`: their commands are executed, and the names in them exist.

mod names;
mod stubs;

use postern_harness::Guide;
use postern_harness::guide::Surroundings;
use postern_harness::paths::peer;
use postern_harness::peer::Peer;
use postern_store::cache::testing::redis;
use postern_store::database::testing::postgres;

use self::stubs::{SmtpServer, fcm, twilio};

/// The sections whose commands are executed: page and heading. A test compares this list with the
/// pages.
const EXECUTED: [(&str, &str); 10] = [
    ("manual/front-ends.md", "Allow the origin"),
    ("manual/gateway.md", "TLS"),
    ("manual/notifications.md", "E-mail"),
    ("manual/notifications.md", "Push"),
    ("manual/notifications.md", "SMS"),
    ("manual/notifications.md", "Templates"),
    ("manual/sign-in.md", "Amazon Cognito"),
    ("manual/sign-in.md", "OpenID providers"),
    ("manual/upgrade-and-backup.md", "Backup and restore"),
    ("manual/upgrade-and-backup.md", "Upgrade"),
];

/// Returns all pages of the manual.
fn pages() -> Vec<Guide> {
    let files = std::fs::read_dir(Guide::folder().join("manual")).expect("the manual");
    let names = files.flatten().map(|file| file.file_name());
    names
        .map(|name| Guide::read(&format!("manual/{}", name.to_string_lossy())))
        .collect()
}

/// Follows the section with this heading, with replacements for what its text names.
async fn follow(heading: &str, replacements: Vec<(&'static str, String)>) {
    let (page, _) = EXECUTED
        .into_iter()
        .find(|(_, executed)| *executed == heading)
        .expect("it is in the list");
    let surroundings = Surroundings {
        replacements,
        programs: vec![peer("aws/python/bin")],
        before: "",
    };
    Guide::read(page)
        .section(heading)
        .follow(&surroundings)
        .await;
}

/// On a busy machine the local pool may take longer for a password hash than the check waits for a
/// service token.
#[tokio::test]
async fn cognito_guide_works_at_the_local_pool() {
    let check = "$ postern-auth --config my/auth.toml check";
    let repeated = "$ until postern-auth --config my/auth.toml check > my/check.txt 2>&1; do :; done; \
                    cat my/check.txt";
    follow("Amazon Cognito", vec![(check, repeated.to_owned())]).await;
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
    Guide::read("../README.md").follow(&surroundings).await;
}

/// moto does not implement `PreventUserExistenceErrors`, which the check finds out, and its tokens
/// name Amazon's issuer instead of its own address.
#[tokio::test]
async fn cognito_guide_works_at_moto() {
    let (_moto, url) = Peer::moto().await;
    let pool = format!(
        "export AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER={url} AWS_ACCESS_KEY_ID=testing \
         AWS_SECRET_ACCESS_KEY=testing AWS_DEFAULT_REGION=us-west-2"
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
        (last, format!("{last}\n1 of 18 checks failed")),
        (
            "caller     user …\ndecision   allow",
            "caller     the token is refused\ndecision   401 issuer_not_accepted".to_owned(),
        ),
    ];
    follow("Amazon Cognito", replacements).await;
}

#[tokio::test]
async fn templates_guide_works() {
    follow("Templates", Vec::new()).await;
}

#[tokio::test]
async fn openid_guide_works() {
    follow("OpenID providers", Vec::new()).await;
}

#[tokio::test]
async fn email_guide_works() {
    let mut server = SmtpServer::start().await;
    let settings = format!("port = {}\nca_file = \"{}\"", server.port, server.authority);
    let replacements = vec![
        ("smtp.example.com", "localhost".to_owned()),
        ("port = 587", settings),
    ];
    follow("E-mail", replacements).await;
    let mail = server.next_mail().await;
    assert_eq!(mail["user"], "postern", "{mail}");
    assert_eq!(mail["tls"], true, "{mail}");
}

#[tokio::test]
async fn sms_guide_works() {
    let api = twilio().await;
    let base = format!("kind = \"twilio\"\nbase = \"{}\"", api.url());
    follow("SMS", vec![("kind = \"twilio\"", base)]).await;
    let forms = api.seen().into_iter();
    let forms: Vec<String> = forms
        .map(|seen| String::from_utf8_lossy(&seen.body).into_owned())
        .collect();
    let callback = "StatusCallback=https%3A%2F%2Fgateway.example.com%2Fwebhooks%2Ftwilio%3Fid%3D";
    assert_eq!(forms.len(), 1, "{forms:?}");
    assert!(forms[0].contains(callback), "{forms:?}");
}

#[tokio::test]
async fn push_guide_works() {
    let api = fcm().await;
    let base = format!("kind = \"fcm\"\nbase = \"{}\"", api.url());
    let token_uri = format!("{}/token", api.url());
    let replacements = vec![
        ("kind = \"fcm\"", base),
        ("https://oauth2.googleapis.com/token", token_uri),
    ];
    follow("Push", replacements).await;
}

#[tokio::test]
async fn tls_of_the_gateway_manual_works() {
    follow("TLS", Vec::new()).await;
}

#[tokio::test]
async fn front_end_guide_works() {
    follow("Allow the origin", Vec::new()).await;
}

#[tokio::test]
async fn upgrade_guide_works() {
    follow("Upgrade", Vec::new()).await;
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
    follow("Backup and restore", replacements).await;
}

/// Every configuration block is a file that a later command of its section loads.
#[test]
fn configuration_blocks_are_loaded() {
    let mut count = 0;
    for (page, heading) in EXECUTED {
        let guide = Guide::read(page).section(heading);
        for (at, block) in guide.blocks.iter().enumerate() {
            if block.language != "toml" || block.action.is_empty() {
                continue;
            }
            count += 1;
            let (folder, _) = block.action.rsplit_once('/').expect("a path");
            let file = format!("--config {}", block.action);
            let overrides = format!("--overrides {folder}");
            let later = &guide.blocks[at..];
            let is_loaded = later.iter().any(|block| {
                block.action == "run"
                    && (block.text.contains(&file) || block.text.contains(&overrides))
            });
            assert!(
                is_loaded,
                "{page}:{}: no command loads the block",
                block.line
            );
        }
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn every_section_with_commands_is_executed() {
    let mut found: Vec<(String, String)> = Vec::new();
    for page in pages() {
        let sections = page.blocks.iter().filter(|block| !block.action.is_empty());
        let sections = sections.map(|block| block.section.clone());
        found.extend(
            sections
                .filter(|section| !section.is_empty())
                .map(|section| (page.name.clone(), section)),
        );
    }
    found.sort();
    found.dedup();
    let known = EXECUTED.map(|(page, heading)| (page.to_owned(), heading.to_owned()));
    assert_eq!(found, known);
}
