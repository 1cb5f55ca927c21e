//! The gateway as a process: how it starts and ends where its surroundings fail it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

/// Nothing in these tests takes longer, unless it hangs.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the gateway may take to end: no request is in flight.
const END_WITHIN: Duration = Duration::from_secs(8);

/// More events than a pipe holds: 64 KiB.
const REQUESTS: usize = 1_000;

/// The gateway with this configuration, and with pools that no server answers for.
fn gateway(folder: &Path, config: &str) -> Command {
    std::fs::write(folder.join("proxy.toml"), config).expect("writes");
    let mut command = Command::new(env!("CARGO_BIN_EXE_postern-proxy"));
    command
        .env_clear()
        .current_dir(folder)
        .args(["--config", "proxy.toml"])
        .env(
            "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER",
            "http://127.0.0.1:1",
        )
        .env("IDP_ACTOR_POOL_ID", "actors")
        .env("IDP_ACTOR_CLIENT_ID", "web")
        .env("IDP_SERVICE_POOL_ID", "services")
        .env("IDP_SERVICE_CLIENT_ID", "machines")
        .stdin(Stdio::null());
    command
}

/// Returns a free address that no other test of this program gets.
fn free_address() -> SocketAddr {
    static TAKEN: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let mut taken = TAKEN.lock();
        if !taken.contains(&address) {
            taken.push(address);
            return address;
        }
    }
}

/// Waits for the end of a process, and ends it if it does not end by itself.
fn wait(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + within;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("ends");
    child.wait().expect("ended");
    None
}

fn connect(address: SocketAddr) -> TcpStream {
    let until = Instant::now() + STEP_TIMEOUT;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends requests of which each is logged; the last one ends the connection.
fn fill_log(address: SocketAddr) {
    let mut stream = connect(address);
    stream
        .set_read_timeout(Some(STEP_TIMEOUT))
        .expect("a timeout");
    let request = "GET /nowhere HTTP/1.1\r\nHost: gate\r\n\r\n";
    let mut answers = Vec::new();
    for count in 1..=REQUESTS {
        let last = if count == REQUESTS {
            request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        } else {
            request.to_owned()
        };
        stream.write_all(last.as_bytes()).expect("writes");
        if count % 50 == 0 || count == REQUESTS {
            let wanted = count;
            while count_answers(&answers) < wanted {
                let mut space = [0; 16 << 10];
                let read = stream.read(&mut space).expect("answers");
                assert_ne!(read, 0, "the connection ended");
                answers.extend_from_slice(&space[..read]);
            }
        }
    }
}

fn count_answers(bytes: &[u8]) -> usize {
    bytes
        .windows(12)
        .filter(|window| window.starts_with(b"HTTP/1.1 401"))
        .count()
}

fn config(address: SocketAddr, upstream: &str) -> String {
    format!(
        "[[listen]]\naddress = \"{address}\"\n[upstream.one]\naddresses = [\"127.0.0.1:1\"]\n{upstream}\n\
         [[route]]\nname = \"open\"\npath = \"/open\"\nmethods = [\"GET\"]\nupstream = \"one\"\npolicy = \"public\"\n"
    )
}

fn terminate(child: &Child) {
    let kill = Command::new("kill").arg(child.id().to_string()).status();
    assert!(kill.expect("kill runs").success());
}

#[test]
fn process_ends_although_nobody_reads_its_log() {
    // Standard error is a file at first, and then the pipe that is full.
    for is_shared in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = gateway(folder.path(), &config(address, ""));
        if is_shared {
            command.stderr(writer.try_clone().expect("a descriptor"));
        } else {
            command.stderr(std::fs::File::create(folder.path().join("log")).expect("a file"));
        }
        let mut child = command.stdout(writer).spawn().expect("starts");
        drop(command);
        fill_log(address);
        terminate(&child);
        let status = wait(&mut child, END_WITHIN);
        assert!(
            status.is_some_and(|status| status.success()),
            "{status:?}, shared: {is_shared}"
        );
        drop(reader);
    }
}

#[test]
fn events_are_all_written_where_they_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let out = folder.path().join("out");
    let mut command = gateway(folder.path(), &config(address, ""));
    command.stdout(std::fs::File::create(&out).expect("a file"));
    let mut child = command.stderr(Stdio::null()).spawn().expect("starts");
    fill_log(address);
    terminate(&child);
    let status = wait(&mut child, END_WITHIN);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    let text = std::fs::read_to_string(out).expect("reads");
    assert_eq!(text.lines().count(), REQUESTS);
}

#[test]
fn missing_certificate_authorities_are_reported_where_needed() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none.pem");
    std::fs::write(&none, "").expect("writes");
    let start = |text: &str| {
        let mut command = gateway(folder.path(), text);
        command
            .env("SSL_CERT_FILE", &none)
            .env("SSL_CERT_DIR", folder.path().join("none"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().expect("starts")
    };
    let tls = "[upstream.one.tls]\nname = \"one.example\"";
    let mut child = start(&config(free_address(), tls));
    let status = wait(&mut child, STEP_TIMEOUT).expect("it ends at once");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("piped");
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(status.code(), Some(69), "{said}");
    assert!(
        said.contains("system's certificate authorities") && said.contains("tls.ca"),
        "{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
    let address = free_address();
    let mut child = start(&config(address, ""));
    drop(connect(address));
    terminate(&child);
    let status = wait(&mut child, END_WITHIN);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

/// Returns the status of a response, and the body.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = connect(address);
    stream
        .set_read_timeout(Some(STEP_TIMEOUT))
        .expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("writes");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

/// Answers every request with an empty JWKS.
fn serve_keys() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 4096];
            let _read = stream.read(&mut head);
            let answer =
                "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{\"keys\":[]}";
            let _sent = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn gateway_without_pools_is_ready_with_its_own_issuers() {
    let issuer = |name: &str, keys: SocketAddr| {
        format!(
            "[[identity.issuer]]\nkind = \"user\"\nissuer = \"{name}\"\njwks_url = \"http://{keys}\"\nclients = [\"web\"]\n"
        )
    };
    let (present, absent) = (issuer("a", serve_keys()), issuer("b", free_address()));
    for (issuers, is_ready) in [
        (String::new(), true),
        (present.clone(), true),
        (absent.clone(), false),
        (format!("{absent}{present}"), true),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, admin) = (free_address(), free_address());
        let text = format!(
            "{}[admin]\naddress = \"{admin}\"\n{issuers}",
            config(address, "")
        );
        let mut command = gateway(folder.path(), &text);
        for name in [
            "IDP_ACTOR_POOL_ID",
            "IDP_ACTOR_CLIENT_ID",
            "IDP_SERVICE_POOL_ID",
            "IDP_SERVICE_CLIENT_ID",
        ] {
            command.env_remove(name);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("starts");
        let until = Instant::now() + STEP_TIMEOUT;
        let (mut status, mut body) = get(admin, "/readyz");
        while is_ready && status != 200 {
            assert!(Instant::now() < until, "{issuers}{body}");
            std::thread::sleep(Duration::from_millis(20));
            (status, body) = get(admin, "/readyz");
        }
        assert!(
            is_ready || status == 503 && body.contains("keys of an issuer"),
            "{body}"
        );
        // A public route without its upstream.
        assert_eq!(get(address, "/open").0, 503);
        terminate(&child);
        let ended = wait(&mut child, END_WITHIN);
        assert!(ended.is_some_and(|ended| ended.success()), "{ended:?}");
    }
}

/// Waits until a line of the log satisfies the condition, and returns it.
fn wait_for_line(log: &Path, is: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + STEP_TIMEOUT;
    loop {
        let text = std::fs::read_to_string(log).expect("a log");
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(line) = lines.into_iter().find(|line| is(line)) {
            return line;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Stops the gateway and waits for the events of each step.
fn assert_shutdown_is_logged(child: &mut Child, log: &Path) {
    terminate(child);
    let status = wait(child, END_WITHIN);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    for message in [
        "shutdown started",
        "stopped accepting connections, draining",
        "shutdown completed",
    ] {
        wait_for_line(log, |line| line["message"] == message);
    }
}

#[test]
fn start_reload_and_shutdown_are_logged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, log) = (free_address(), folder.path().join("log"));
    let text = config(address, "");
    let mut command = gateway(folder.path(), &text);
    command
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("a file"));
    let mut child = command.spawn().expect("starts");
    let says = |message: &'static str| move |line: &Value| line["message"] == message;
    let listening = wait_for_line(&log, says("listening"));
    assert_eq!(
        (
            &listening["address"],
            &listening["protocol"],
            &listening["config_file"]
        ),
        (
            &address.to_string().into(),
            &"http".into(),
            &"proxy.toml".into()
        ),
        "{listening}"
    );
    assert_eq!(
        listening["version"],
        env!("CARGO_PKG_VERSION"),
        "{listening}"
    );
    let started = listening["config_hash"]
        .as_str()
        .expect("a hash")
        .to_owned();
    assert!(started.len() == 16, "{started}");
    drop(connect(address));

    let file = folder.path().join("proxy.toml");
    std::fs::write(&file, format!("{text}unknown = 1\n[nothing]\n")).expect("writes");
    let rejected = wait_for_line(&log, says("configuration reload rejected"));
    let errors = rejected["errors"].as_str().expect("errors");
    assert!(
        errors.contains("proxy.toml:") && errors.contains("; "),
        "{rejected}"
    );
    assert_eq!(
        (&rejected["file"], &rejected["level"]),
        (&"proxy.toml".into(), &"ERROR".into())
    );

    std::fs::write(&file, format!("workers = 1\n{text}")).expect("writes");
    let reloaded = wait_for_line(&log, says("configuration reloaded"));
    assert_eq!(reloaded["version"], 2, "{reloaded}");
    assert_ne!(reloaded["hash"], started, "{reloaded}");
    let restart = wait_for_line(&log, says("configuration change needs a restart"));
    assert_eq!(
        (&restart["level"], &restart["settings"]),
        (&"WARN".into(), &"workers".into())
    );

    assert_shutdown_is_logged(&mut child, &log);
    let said = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(
        said.matches("configuration reload rejected").count(),
        1,
        "{said}"
    );
}

#[test]
fn diff_fails_if_more_callers_reach_something() {
    let folder = tempfile::tempdir().expect("a folder");
    let public = config(free_address(), "");
    let protected = public.replace("\"public\"", "{ users = \"any\" }");
    std::fs::write(folder.path().join("old.toml"), &protected).expect("writes");
    std::fs::write(folder.path().join("new.toml"), &public).expect("writes");
    let run = |arguments: &[&str]| {
        let mut command = gateway(folder.path(), &public);
        let output = command.arg("diff").args(arguments).output().expect("runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        (output.status.code(), text)
    };
    let (status, text) = run(&["old.toml", "new.toml", "--fail-on", "widened"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("GET /open (Host: x.test)") && text.contains("    widened\n"),
        "{text}"
    );
    assert_eq!(
        run(&["new.toml", "old.toml", "--fail-on", "widened"]).0,
        Some(0)
    );
    assert_eq!(
        run(&["new.toml", "old.toml", "--fail-on", "any"]).0,
        Some(1)
    );
    let (status, text) = run(&["new.toml", "new.toml", "--fail-on", "any", "--json"]);
    assert_eq!((status, text.as_str()), (Some(0), ""));
}
