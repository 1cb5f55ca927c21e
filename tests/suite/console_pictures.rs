//! The pictures of the console in the documents, `docs/images/console-PAGE-WIDTH-SCHEME.png`: each
//! page at both widths and in both colour schemes.
//!
//! `POSTERN_TEST_WRITE_SCREENSHOTS=1 ./tests/run console_pictures` takes them again, from real
//! processes after some minutes of traffic.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use postern_core::config::Env;
use postern_harness::browser::{SCHEMES, SIZES};
use postern_harness::console::{Console, start_installation};
use postern_harness::paths::{self, repository};
use postern_harness::public_api::{credentials, message, welcome};
use postern_harness::wait::until;
use postern_harness::{Changes, Installation, MailServer, json, skipped};

use crate::console::traffic::{self, Traffic};

/// The pages, of the console but for the last, which is the mail catcher of standalone.
const PAGES: [&str; 10] = [
    "overview",
    "person",
    "requests",
    "configuration",
    "history",
    "notifications",
    "notification",
    "providers",
    "template",
    "mail",
];
/// How long the product is used before the pictures.
const DURATION: Duration = Duration::from_secs(300);
/// A route that only the author of a changed configuration wants, so that the check has
/// something to warn of.
const WIDENED: &str = "\n[[route]]\nname = \"all-actors\"\npath = \"/actors/{actorId}\"\nmethods = [\"DELETE\"]\n\
    upstream = \"actor\"\npolicy = \"public\"\n";

fn path_of(page: &str, width: u32, scheme: &str) -> PathBuf {
    let name = format!("console-{page}-{width}-{scheme}.png");
    repository().join("docs/images").join(name)
}

/// Returns width and height of a PNG picture (RFC 2083, section 4.1.1).
fn size_of(picture: &[u8]) -> [u32; 2] {
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"), "a PNG picture");
    [16, 20].map(|at| {
        let bytes = picture[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(bytes)
    })
}

#[test]
fn console_pictures_are_complete_and_shown() {
    let documents = ["README.md", "docs/manual/console.md"];
    let documents = documents.map(paths::read).concat();
    for page in PAGES {
        for [width, height] in SIZES {
            for scheme in SCHEMES {
                let path = path_of(page, width, scheme);
                let name = path.file_name().expect("a name").to_string_lossy();
                let picture = std::fs::read(&path);
                let picture = picture.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(size_of(&picture), [width, height], "{name}");
                assert!(documents.contains(&*name), "no document shows {name}");
            }
        }
    }
}

#[tokio::test]
async fn console_pictures_are_taken_on_demand() {
    const NAME: &str = "console_pictures_are_taken_on_demand";
    let env = Env::of_process();
    if env.get("POSTERN_TEST_WRITE_SCREENSHOTS").is_none() {
        return skipped(NAME, "POSTERN_TEST_WRITE_SCREENSHOTS is not set");
    }
    let changes = Changes {
        mail_port: Some(MailServer::start().await.port),
        ..Changes::unlimited()
    };
    let split = Box::pin(Installation::start_with(changes)).await;
    let Some(console) = Console::start(NAME, &split).await else {
        return;
    };
    console.sign_in("operator@example.com", "admin").await;
    let traffic = traffic::create(&split).await;
    let end = Instant::now() + DURATION;
    while Instant::now() < end {
        make_requests(&split, &traffic).await;
    }
    take_all(&console, &split, &traffic).await;
    console.stop().await;
    split.stop().await;
}

/// Makes some requests of several kinds, of which some are refused.
async fn make_requests(split: &Installation, traffic: &Traffic) {
    let (person, client) = (&traffic.person, split.surface().client());
    let login = credentials(&person.email);
    let _ = client.post_json("/auth/login", &login).await;
    let message = welcome(&person.id);
    let _ = person.client.post_json("/notifications", &message).await;
    let own = format!("/actors/{}", person.id);
    let others = ["/auth/me", "/actors/someone-else", "/resume"];
    for path in others.into_iter().flat_map(|other| [&*own, other]) {
        for _ in 0..4 {
            let _ = person.client.get(path).send().await;
        }
    }
}

/// Opens each page and takes its pictures.
async fn take_all(console: &Console, split: &Installation, traffic: &Traffic) {
    console.open("/").await;
    console.wait_for_text("Identity pool").await;
    take(console, "overview").await;
    let search = format!("/search?q={}", traffic.rejected);
    console.open(&search).await;
    console.wait_for_text("550").await;
    take(console, "person").await;
    console.open("/requests").await;
    console.wait_for_text("Following 1 of 1 gateway.").await;
    make_requests(split, traffic).await;
    let rows = "return document.querySelectorAll('#tail tr').length >= 20";
    console.wait_for(rows).await;
    take(console, "requests").await;
    console.open("/configuration").await;
    edit(console).await;
    take(console, "configuration").await;
    let rejected = format!("/notifications/{}", traffic.failed);
    console.open(&rejected).await;
    console.wait_for_text("What was sent").await;
    take(console, "notification").await;
    for (path, page) in [
        ("/history", "history"),
        ("/notifications", "notifications"),
        ("/providers", "providers"),
        ("/templates/welcome", "template"),
    ] {
        console.open(path).await;
        take(console, page).await;
    }
    // The mail catcher of an installation whose mail it gets.
    let caught = start_installation().await;
    let token = caught.development().service_token("auth").await;
    let service = caught.surface().client().with_token(&token);
    let body = message("email", &json!({"email": "ada@example.com"}));
    let _ = service.posted("/notifications", &body, 201).await;
    let mail = format!("http://{}/mail", caught.development().addresses().mail);
    let has_mail = "return document.body.innerText.includes('ada@example.com')";
    until("a mail is listed", async || {
        console.browser().open(&mail).await;
        console.browser().run(has_mail).await == true
    })
    .await;
    take(console, "mail").await;
    caught.stop().await;
}

/// Adds a public route to the text of the configuration, and shows the result of the check.
async fn edit(console: &Console) {
    let text = serde_json::Value::from(WIDENED);
    let typed = format!(
        "const area = document.querySelector('#configuration-text'); area.focus(); \
         area.setSelectionRange(area.value.length, area.value.length); \
         return document.execCommand('insertText', false, {text});"
    );
    assert_eq!(console.browser().run(&typed).await, true);
    console.wait_for_text("DELETE /actors/").await;
    // The end of the text, and what is said of it.
    let shown = "const area = document.querySelector('#configuration-text'); area.scrollTop = area.scrollHeight; \
        scrollTo(0, document.querySelector('#check-result').offsetTop - innerHeight * 0.5); return true";
    console.browser().run(shown).await;
}

/// Takes the pictures of the page that is open.
async fn take(console: &Console, page: &str) {
    for [width, height] in SIZES {
        for scheme in SCHEMES {
            console.browser().emulate([width, height], scheme).await;
            console.browser().hide_scroll_bars().await;
            let picture = console.browser().screenshot().await;
            let path = path_of(page, width, scheme);
            std::fs::write(&path, reduced(&picture)).expect("docs/images can be written");
        }
    }
}

/// Returns the picture with a palette, which is a third of the size, if `pngquant` is installed.
fn reduced(picture: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let program = Command::new("pngquant")
        .args(["--speed", "1", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut program) = program else {
        return picture.to_vec();
    };
    let mut input = program.stdin.take().expect("a pipe");
    // pngquant reads everything before it writes.
    input.write_all(picture).expect("pngquant reads");
    drop(input);
    let output = program.wait_with_output().expect("pngquant ends");
    assert!(output.status.success(), "pngquant: {}", output.status);
    output.stdout
}
