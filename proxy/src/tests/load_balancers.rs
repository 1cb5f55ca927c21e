//! The PROXY protocol of HAProxy in front of the gateway.

use std::process::Stdio;

use tokio::process::{Child, Command};

use super::*;

pub(super) struct Program {
    pub(super) address: SocketAddr,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Program {
    /// Starts HAProxy with these lines, in which `{port}` and `{folder}` are replaced.
    pub(super) async fn haproxy(lines: &str) -> Self {
        let times = "timeout connect 5s\ntimeout client 10s\ntimeout server 10s";
        let config = format!("global\nmaxconn 100\ndefaults\nmode http\n{times}\n{lines}");
        let arguments = |command: &mut Command, file: &Path, _| {
            command.arg("-db").arg("-f").arg(file);
        };
        Self::start(&config, arguments, "haproxy").await
    }

    /// Starts nginx with the directives of a server, as [`Self::haproxy`] does.
    pub(super) async fn nginx(server: &str) -> Self {
        Self::nginx_http(&format!("server {{\n{server}\n}}")).await
    }

    /// Starts nginx with the directives of `http`.
    pub(super) async fn nginx_http(http: &str) -> Self {
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {{folder}}/{kind};\n"))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {{folder}}/pid;\nerror_log {{folder}}/error.log;\nevents {{}}\n\
             http {{\nport_in_redirect off;\naccess_log off;\n{paths}{http}\n}}\n"
        );
        let arguments = |command: &mut Command, file: &Path, _| {
            let log = file.with_file_name("error.log");
            command.arg("-e").arg(log).arg("-c").arg(file);
        };
        Self::start(&config, arguments, "nginx").await
    }

    /// Starts a program of `/usr/sbin`, or with this path, with a configuration in which `{port}` and
    /// `{folder}` are replaced.
    pub(super) async fn start(
        config: &str,
        arguments: impl Fn(&mut Command, &Path, SocketAddr),
        program: &str,
    ) -> Self {
        // Another test may take the port before the program does.
        for _ in 0..3 {
            if let Some(started) = Self::start_once(config, &arguments, program).await {
                return started;
            }
        }
        panic!("{program} does not listen")
    }

    async fn start_once(
        config: &str,
        arguments: impl Fn(&mut Command, &Path, SocketAddr),
        program: &str,
    ) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        CertificateAuthority::new().write(folder.path());
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("reads");
        let both = read("server.pem") + &read("server.key");
        std::fs::write(folder.path().join("both.pem"), both).expect("writes");
        // Both programs need a port in their configuration.
        let address = unused_address().await;
        let config = config
            .replace("{port}", &address.port().to_string())
            .replace("{folder}", &folder.path().display().to_string());
        // Traefik reads the format from the name.
        let file = folder.path().join("config.yml");
        std::fs::write(&file, config).expect("writes");
        // Debian installs both outside of the PATH of users.
        let mut command = Command::new(Path::new("/usr/sbin").join(program));
        arguments(&mut command, &file, address);
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn();
        let mut started = Self {
            address,
            child: child.expect("the program is installed: tests/run installs it"),
            _folder: folder,
        };
        let deadline = Instant::now() + STEP_TIMEOUT * 2;
        while started.child.try_wait().expect("a state").is_none() && Instant::now() < deadline {
            if TcpStream::connect(address).await.is_ok() {
                return Some(started);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }
}

#[tokio::test]
async fn haproxy_in_front_reports_the_client() {
    let listen = "proxy_protocol = { from = [\"127.0.0.1\"] }";
    let gateway = TestGateway::behind_tls(OriginBehavior::Answer, "", "", listen).await;
    for option in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2 proxy-v2-options crc32c,unique-id",
    ] {
        let front = "listen front\nmode tcp\nbind 127.0.0.1:{port}\nunique-id-format %[uuid()]";
        let lines = format!("{front}\nserver gate {} {option}\n", gateway.address);
        let balancer = Program::haproxy(&lines).await;
        let mut client = RawClient::new(connect_from(7, balancer.address).await);
        assert_eq!(client.ask(GET).await.status, 200, "{option}");
        assert_fields(&gateway.origin.last(), &["X-Forwarded-For: 127.0.0.7"]);
    }
}
