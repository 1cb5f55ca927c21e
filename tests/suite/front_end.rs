//! Front ends: the TypeScript client, the example, and clients that are generated from `conf/openapi.json`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use postern_core::config::Env;
use postern_harness::browser::{ENTER, TAB};
use postern_harness::json;
use postern_harness::paths::repository;
use postern_harness::pools::new_user_with_email;
use postern_harness::process::{Program, Running};
use postern_harness::public_api::PASSWORD;
use postern_harness::systems::succeed;
use postern_harness::{Browser, Standalone, ports};

use crate::pages::assert_page_is_clean;

/// Lifetime of the local pool's access tokens.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

#[test]
fn generators_and_linters_accept_the_document() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = Command::new(repository().join("tests/peers/openapi/run"));
    let printed = succeed(run.arg(folder.path()));
    let expected = "redocly\ntypescript-fetch\npython\nkotlin\ntsc\nimport\njava\n";
    assert_eq!(printed, expected);
}

#[test]
fn typescript_packages_pass_their_own_checks() {
    let checks = "cd clients/typescript && npm run -s check && npm test -s && cd ../../examples/jobs && npm run -s build";
    let mut sh = Command::new("sh");
    succeed(sh.current_dir(repository()).args(["-c", checks]));
}

/// Runs a command of Vite in a folder of the repository until it accepts connections.
async fn vite(folder: &str, command: &str, logs: &Path, port: u16, gateway: &str) -> Running {
    let folder = repository().join(folder).display().to_string();
    let path = Env::of_process().get("PATH").unwrap_or_default().to_owned();
    let command = format!("cd {folder} && {command} --strictPort --host localhost --port {port}");
    let program = Program::at("/bin/sh".into(), logs).arg("-c").arg(command);
    let path = format!("{folder}/node_modules/.bin:{path}");
    let program = program.env("PATH", path).env("VITE_GATEWAY", gateway);
    let mut running = program.start();
    running.wait_for_line("Local").await;
    running
}

#[tokio::test]
async fn client_survives_tabs_clocks_and_networks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start("client_survives_tabs_clocks_and_networks").await else {
        return;
    };
    let postern = Standalone::start_with_manual_clock().await;
    let (ada, port) = (postern.surface().register().await, ports::free(1));
    let gateway = postern.surface().client().base().as_str();
    let client = "clients/typescript";
    let _vite = vite(client, "exec vite", folder.path(), port, gateway).await;
    let url = format!("http://localhost:{port}/test/page.html?gateway={gateway}");
    let step = async |call: &str| browser.run(&format!("return loaded.{call}")).await;
    let sign_in = format!("signIn('{}', '{PASSWORD}')", ada.email);
    browser.open(&url).await;
    browser.find("[data-loaded]").await;

    assert_eq!(step(&sign_in).await, ada.id);
    assert_eq!(step("openTab()").await, ada.id);
    postern.clock().advance(TOKEN_LIFETIME);
    let poll = format!("pollStatus('{}')", ada.id);
    for (call, is_offline, expected) in [
        ("refreshAtOnce()", false, json!([200, 200, 200, 1, true])),
        (&poll, false, json!(["SENT", 304])),
        (
            "pointers()",
            false,
            json!(["/channel", "/recipient", "/template"]),
        ),
        ("offline()", true, json!(["NetworkError", true])),
        ("signOutElsewhere()", false, json!([null, "SignInRequired"])),
    ] {
        browser.set_offline(is_offline).await;
        assert_eq!(step(call).await, expected, "{call}");
    }

    // Ten minutes fast, then ten minutes slow: the second change is added to the first one.
    for minutes in [10, -20] {
        let script = format!("const now = Date.now; Date.now = () => now() + {minutes} * 60000;");
        browser.run_in_new_pages(&script).await;
        browser.open(&url).await;
        browser.find("[data-loaded]").await;
        assert_eq!(step(&sign_in).await, ada.id);
        assert_eq!(step("requestAgain()").await, json!([200, 0]), "{minutes}");
        postern.clock().advance(TOKEN_LIFETIME);
        assert_eq!(step("requestAgain()").await, json!([200, 1]), "{minutes}");
    }
    browser.close().await;
    postern.stop().await;
}

/// Follows `examples/jobs/test/keyboard.json`: opens pages, asserts that they are clean, and focuses elements, presses
/// keys there, and waits for an element with a text.
#[tokio::test]
async fn example_works_with_the_keyboard_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start("example_works_with_the_keyboard_alone").await else {
        return;
    };
    let (example, port) = ("examples/jobs", ports::free(1));
    let read = |name| std::fs::read_to_string(repository().join(example).join(name)).expect("text");
    let url = format!("http://localhost:{port}/");
    let settings = read("postern/auth.toml").replace("http://localhost:5173/", &url);
    std::fs::write(folder.path().join("auth.toml"), settings).expect("a file");
    let resume = folder.path().join("ada.pdf").display().to_string();
    std::fs::write(&resume, vec![7; 3_000_000]).expect("a file");
    let postern = Box::pin(Standalone::start_with_overrides(folder.path())).await;
    let (surface, served) = (postern.surface(), folder.path().join("dist"));
    let eve = new_user_with_email(surface, "eve@b.test", &["recruiters"]);
    drop(Box::pin(eve).await);
    let served = format!("--outDir {}", served.display());
    let command = format!("vite build {served} && exec vite preview {served}");
    let gateway = surface.client().base().as_str();
    let _vite = vite(example, &command, folder.path(), port, gateway).await;
    let steps: Vec<Vec<String>> = serde_json::from_str(&read("test/keyboard.json")).expect("steps");
    for step in &steps {
        match &*step.iter().map(String::as_str).collect::<Vec<_>>() {
            ["open", path] => browser.open(&format!("{url}{path}")).await,
            ["clean", path] => {
                drop(browser.messages().await);
                assert_page_is_clean(&browser, &format!("{url}{path}")).await;
            }
            ["file", field] => browser.type_into(field, &resume).await,
            ["press", focused, keys, shown, text] => {
                let mut keys = keys.replace("{tab}", TAB).replace("{password}", PASSWORD);
                if keys.contains("{code}") {
                    let code = surface.mailbox().code("ada@b.test").await;
                    keys = keys.replace("{code}", &code);
                }
                browser.find(focused).await;
                let focus = format!("document.querySelector(\"{focused}\").focus()");
                browser.run(&focus).await;
                browser.press(&keys.replace("{enter}", ENTER)).await;
                let found = browser.text_of(shown).await;
                assert!(found.contains(text), "{step:?}: {found}");
            }
            _ => panic!("{step:?}"),
        }
    }
    browser.close().await;
    postern.stop().await;
}
