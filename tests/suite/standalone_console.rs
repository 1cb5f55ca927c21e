//! The console inside the standalone program: one-time links, in the program and in a browser.

use postern_harness::process::Program;
use postern_harness::{Answer, Browser, Client, PublicApi, Standalone, sensitive, wait};
use serde_json::{Value, json};

/// The token of the page, from its storage.
const TOKEN: &str = "return sessionStorage.getItem('postern-token')";

/// Returns the address of the console and the secret of a link.
fn parts(link: &str) -> (&str, &str) {
    let (console, secret) = link.trim().split_once("/#once=").expect("a link");
    sensitive::record("console link", secret);
    (console, secret)
}

async fn exchange(console: &Client, secret: &str) -> Answer {
    let body = json!({ "secret": secret });
    let answer = console.post_json("/session/exchange", &body).await;
    if let Some(token) = answer.json()["token"].as_str() {
        sensitive::record("console session", token);
    }
    answer
}

#[tokio::test]
async fn program_prints_a_link_and_logs_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = || Program::of_workspace("postern", folder.path()).args(["--data-dir", "var"]);
    let ended = program().arg("console-link").run().await;
    assert!(ended.expect(69, 1)[0].contains("start postern"));
    let start = program().args(["--port", "0", "--log", "debug"]);
    let mut running = start.start();
    let lines = running.wait_for_line("#once=").await;
    let printed = lines.last().and_then(|line| line.split_whitespace().last());
    let printed = printed.expect("a link").to_owned();
    let (console, first) = parts(&printed);
    let ended = program().arg("console-link").run().await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let (_, second) = parts(&ended.stdout);
    let console = Client::new(console);
    let replaced = exchange(&console, first).await;
    replaced.problem(401, "invalid_temporary_token");
    let session = exchange(&console, second).await.expect(200);
    let _used = exchange(&console, second).await.expect(401);
    let (token, path) = (session.string("/token"), "/fragments/upstreams");
    let console = console.with_token(&token);
    let page = console.fetch(path, 200).await.text();
    assert!(page.contains("identity-pool"), "{page}");
    // DNS rebinding.
    let hostile = console.get(path).header("host", "evil.example");
    let _refused = hostile.send().await.expect(400);
    let log = running.log();
    assert!(log.contains("console session started"), "{log}");
    let access = std::fs::read_to_string(folder.path().join("var/access.log"));
    for (name, text) in [("log", log), ("access log", access.unwrap_or_default())] {
        for secret in [first, second, &token] {
            assert!(!text.contains(secret), "{name}: {text}");
        }
    }
    let ended = running.stop("TERM").await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
}

/// Waits until the page shows a session, and records its token.
pub(crate) async fn wait_for_session(browser: &Browser) {
    browser.find("header.top:not([hidden])").await;
    let token = browser.run(TOKEN).await;
    sensitive::record("console session", token.as_str().expect("a token"));
}

async fn link_opens_the_console_once(postern: &Standalone, browser: &Browser) {
    let console = format!("http://{}", postern.addresses().console);
    browser.open(&console).await;
    let page = browser.text_of(".sign-in").await;
    assert!(page.contains("postern console-link"), "{page}");
    // A link in the same tab changes only the fragment.
    let link = postern.console_link().await;
    browser.open(&link).await;
    wait_for_session(browser).await;
    let who = browser.text_of("#who").await;
    assert_eq!(who, "operator · standalone");
    assert_eq!(browser.address().await, format!("{console}/"));
    // Signed out, the used link shows why it is refused, and a new one works.
    browser.click("#sign-out").await;
    browser.find(".sign-in").await;
    browser.open(&link).await;
    let reason = "#sign-in-reason:not(:empty)";
    let reason = browser.text_of(reason).await;
    assert!(reason.contains("not valid any more"), "{reason}");
    browser.assert_accessible(async || {}).await;
    browser.open(&postern.console_link().await).await;
    wait_for_session(browser).await;
}

async fn provider_is_paused_and_resumed(postern: &Standalone, browser: &Browser) {
    let console = format!("http://{}", postern.addresses().console);
    browser.open(&format!("{console}/providers")).await;
    let pause = "form[data-action='provider.pause']:has(input[value=smtp])";
    let reason = format!("{pause} input[name=reason]");
    browser.type_into(&reason, "wrong sender").await;
    browser.click(&format!("{pause} button")).await;
    let question = browser.text_of("dialog[open] #confirm-text").await;
    let expected = "Pause smtp for all replicas?";
    assert!(question.contains(expected), "{question}");
    browser.click("dialog[open] button[value=yes]").await;
    let resume = "form[data-action='provider.resume']:has(input[value=smtp])";
    browser.find(resume).await;
    browser.assert_accessible(async || {}).await;
    let text = browser.text_of("main").await;
    assert!(text.contains("Paused by standalone"), "{text}");
    assert!(text.contains("wrong sender"), "{text}");
    browser.click(&format!("{resume} button")).await;
    browser.click("dialog[open] button[value=yes]").await;
    browser.find(pause).await;
}

/// Makes the page wait with a fragment that it has received, until `release` is called. The body is
/// marked when the page has read it.
const HOLD: &str = "const real = window.fetch;
    window.fetch = async (path, options) => {
      const response = await real(path, options);
      if (!path.startsWith('/fragments/providers')) return response;
      const html = await response.text();
      await new Promise((resolve) => { window.release = resolve; document.body.dataset.held = ''; });
      response.text = async () => { document.body.dataset.read = ''; return html; };
      return response;
    };
    sessionStorage.setItem('postern-configuration-draft', '# not saved');";

async fn sign_out_leaves_nothing(browser: &Browser) {
    browser.run(HOLD).await;
    browser.click("nav a[href='/providers']").await;
    browser.find("body[data-held]").await;
    browser.click("#sign-out").await;
    browser.find(".sign-in").await;
    browser.run("window.release()").await;
    browser.find("body[data-read]").await;
    // The next frame is drawn after the page has used what it has read.
    let drawn = "return new Promise((resolve) => requestAnimationFrame(() => resolve(document.querySelector('main').innerText)))";
    let text = browser.run(drawn).await;
    let text = text.as_str().expect("a text");
    assert!(text.contains("Sign in to Postern"), "{text}");
    assert!(!text.contains("smtp"), "{text}");
    let left = "return [sessionStorage.length, localStorage.length, document.cookie.length, \
        document.getElementById('who').textContent.length]";
    assert_eq!(browser.run(left).await, json!([0, 0, 0, 0]));
}

async fn hidden_characters_are_revealed(postern: &Standalone, browser: &Browser) {
    let console = format!("http://{}", postern.addresses().console);
    let variables = "%7B%22name%22:%22%E2%80%AEgnp.exe%22%7D";
    let preview = format!("{console}/templates/welcome?channel=email&variables={variables}");
    browser.open(&preview).await;
    let text = browser.text_of("main [lang=en] pre").await;
    assert!(text.contains("Hello [U+202E]gnp.exe"), "{text}");
    assert!(!text.contains('\u{202e}'), "{text}");
    // What the script of the page shows.
    let refuse = "const problem = JSON.stringify({ detail: '\u{202e}nimda' });
        window.fetch = async () => new Response(problem, { status: 503 });
        document.querySelector('nav.side a').click();";
    browser.run(refuse).await;
    let text = browser.text_of("main h1:first-child + p:last-child").await;
    assert!(text.contains("[U+202E]nimda"), "{text}");
    assert!(!text.contains('\u{202e}'), "{text}");
}

async fn guess_counts_for_the_person_there(postern: &Standalone) {
    let addresses = postern.addresses();
    let email = "guessed-at-the-console@example.com";
    let body = json!({ "email": email, "password": "Wrong-Horse-9" });
    let console = Client::new(&format!("http://{}", addresses.console));
    let request = console.post("/session/sign-in").json(&body);
    let request = request.header("x-forwarded-for", "203.0.113.77");
    let _refused = request.send().await.expect(401);
    let admin = Client::new(&format!("http://{}", addresses.auth_admin));
    let admin = admin.with_token(postern.surface().env("POSTERN_ADMIN_TOKEN"));
    let path = format!("/admin/sign-ins?email={email}");
    let stored = wait::answer(async || {
        let event = admin.read(&path).await["signIns"].get(0).cloned();
        event.ok_or_else(|| "no event".to_owned())
    });
    let stored = stored.await;
    assert_eq!(stored["network"], "203.0.113.0/24", "{stored}");
}

#[tokio::test]
async fn console_of_standalone_works_in_a_browser() {
    let postern = Standalone::start().await;
    guess_counts_for_the_person_there(&postern).await;
    if let Some(browser) = Browser::start("console_of_standalone_works_in_a_browser").await {
        link_opens_the_console_once(&postern, &browser).await;
        provider_is_paused_and_resumed(&postern, &browser).await;
        hidden_characters_are_revealed(&postern, &browser).await;
        // A new page, whose `fetch` is the browser's.
        let console = format!("http://{}/", postern.addresses().console);
        browser.open(&console).await;
        wait_for_session(&browser).await;
        sign_out_leaves_nothing(&browser).await;
        browser.close().await;
    }
    postern.stop().await;
}

/// A route that the built-in file lacks. The authentication upstream answers 404.
const ROUTE: &str = "\n[[route]]\nname = \"extra\"\npath = \"/extra\"\nmethods = [\"GET\"]\nupstream = \"auth\"\npolicy = \"public\"\n";

/// Adds [`ROUTE`] in the editor, agrees that it widens access, and saves.
async fn save_a_route(browser: &Browser) {
    let text = Value::from(ROUTE);
    let script = format!(
        "const area = document.querySelector('#configuration-text'); area.focus();
         area.setSelectionRange(area.value.length, area.value.length);
         document.execCommand('insertText', false, {text});"
    );
    // The editor's script numbers the lines, and then listens.
    browser.find(".line-numbers span").await;
    browser.run(&script).await;
    for selector in [
        "#allow-widened",
        "#configuration button[type=submit]",
        "dialog[open] button[value=yes]",
    ] {
        browser.click(selector).await;
    }
    let outcome = browser.text_of("#result.shown").await;
    assert!(outcome.contains("saved and in force"), "{outcome}");
}

#[tokio::test]
async fn edited_gateway_file_survives_other_ports() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start("edited_gateway_file_survives_other_ports").await else {
        return;
    };
    let start = || {
        let program = Program::of_workspace("postern", folder.path());
        program.args(["--data-dir", "var", "--port", "0"])
    };
    let extra = async || {
        let surface = PublicApi::of_folder(&folder.path().join("var"));
        surface.until_keys().await;
        let answer = surface.client().get("/extra").send().await;
        answer.status.as_u16()
    };
    let file = folder.path().join("var/proxy.toml");
    let file = file.display().to_string();
    let mut running = start().start();
    let lines = running.wait_for_line("edit it, or in the console").await;
    assert!(lines.last().expect("a line").contains(&file), "{lines:?}");
    assert_eq!(extra().await, 401);
    let link = lines.iter().find(|line| line.contains("#once="));
    let link = link.and_then(|line| line.split_whitespace().last());
    let link = link.expect("a link");
    let (console, _) = parts(link);
    browser.open(link).await;
    wait_for_session(&browser).await;
    browser.open(&format!("{console}/configuration")).await;
    save_a_route(&browser).await;
    assert_eq!(extra().await, 404);
    browser.open(&format!("{console}/history/1")).await;
    let difference = browser.text_of(".difference").await;
    assert!(difference.contains("- path = \"/extra\""), "{difference}");
    browser.close().await;
    assert_eq!(running.stop("TERM").await.status, Some(0));

    let mut running = start().start();
    running.wait_for_line("edit it, or in the console").await;
    assert_eq!(extra().await, 404, "kept, with the ports of this start");
    assert_eq!(running.stop("TERM").await.status, Some(0));
    let text = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(&file, text + "[[listen]]\naddress = \"0.0.0.0:0\"\n").expect("written");
    let ended = start().run().await;
    let said = ended.expect(64, 1)[0].to_owned();
    for part in ["proxy.toml:", "--listen"] {
        assert!(said.contains(part), "{said}");
    }
    // Without the file, the built-in one is written again, as it is when nobody has edited it.
    std::fs::remove_file(&file).expect("removed");
    for _ in 0..2 {
        let mut running = start().start();
        running.wait_for_line("edit it, or in the console").await;
        assert_eq!(extra().await, 401);
        assert_eq!(running.stop("TERM").await.status, Some(0));
        let text = std::fs::read_to_string(&file).expect("the file");
        let built_in = std::fs::read_to_string(format!("{file}.built-in"));
        assert_eq!(text, built_in.expect("the built-in text"));
    }
}
