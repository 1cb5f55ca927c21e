//! The gateway's commands: output and exit status.

use postern_harness::Pools;
use postern_harness::process::{Ended, Program};
use tempfile::TempDir;

const ROUTES: &str = r#"
[[listen]]
address = "127.0.0.1:0"
[upstream.one]
addresses = ["127.0.0.1:1"]
[[route]]
name = "closed"
path = "/v1/things/{id}"
methods = ["GET"]
upstream = "one"
policy = { users = { groups = ["staff"] } }
rewrite = { strip = "/v1", add = "/api" }
[[route]]
name = "beta"
path = "/v1/things/{id}"
methods = ["GET"]
headers = { X-Beta = "1" }
upstream = "one"
policy = "public"
[[test]]
request = "GET /v1/things/7"
token = { groups = ["staff"] }
route = "closed"
decision = "allow"
"#;

/// A folder with a configuration, and the pools whose tokens it trusts.
struct Desk {
    folder: TempDir,
    pools: Pools,
}

impl Desk {
    async fn new() -> Self {
        let desk = Self {
            folder: tempfile::tempdir().expect("a folder"),
            pools: Pools::start().await,
        };
        desk.write(ROUTES);
        desk
    }

    fn write(&self, text: &str) {
        let written = std::fs::write(self.folder.path().join("proxy.toml"), text);
        written.expect("the folder can be written");
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        let program = Program::of_workspace("postern-proxy", self.folder.path());
        let program = program.args(["--config", "proxy.toml"]);
        let program = program.args(arguments.iter().copied());
        program.envs(self.pools.variables()).run().await
    }

    /// Returns the output of `explain` for a request.
    async fn explain(&self, arguments: &[&str]) -> String {
        let request = ["explain", "GET", "https://gate.example/v1/things/7?a=b"];
        let ended = self.run(&[&request, arguments].concat()).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        ended.stdout
    }
}

#[tokio::test]
async fn request_is_explained_with_a_real_or_given_identity() {
    let desk = Desk::new().await;
    let said = desk.explain(&[]).await;
    for line in [
        "request    GET /v1/things/7?a=b (Host: gate.example)\n",
        "route      closed: GET /v1/things/{id}\n",
        "{id} is 7",
        "policy     users in one of the groups staff\n",
        "upstream   one (weight 1): 127.0.0.1:1\n",
        "forwarded  /api/things/7\n",
        "caller     no token\ndecision   401 authentication_required",
    ] {
        assert!(said.contains(line), "{line} is missing:\n{said}");
    }
    let (stranger_id, stranger) = desk.pools.user(&[]).await;
    let (member_id, member) = desk.pools.user(&["staff"]).await;
    let (body, signature) = member.rsplit_once('.').expect("a token");
    let other = if signature.starts_with('A') { "B" } else { "A" };
    let forged = format!("{body}.{other}{}", &signature[1..]);
    let refused = "decision   403 insufficient_scope";
    let not_a_user = "decision   401 user_required";
    let invalid = "caller     the token is refused\ndecision   401 token_signature_invalid";
    let header = ["--header", "X-Beta: 1"];
    for (arguments, expected) in [
        (header, "route      beta: ".to_owned()),
        (header, "with x-beta\n".to_owned()),
        (header, "decision   allow".to_owned()),
        (["--token", "user"], refused.to_owned()),
        (["--token", "service:a"], not_a_user.to_owned()),
        (
            ["--token", &stranger],
            format!("caller     user {stranger_id}\n{refused}"),
        ),
        (
            ["--token", &member],
            format!("caller     user {member_id}\ndecision   allow"),
        ),
        (["--token", &forged], invalid.to_owned()),
    ] {
        let said = desk.explain(&arguments).await;
        assert!(said.contains(&expected), "{expected} is missing:\n{said}");
    }
    let wrong = ["explain", "GET", "/", "--header", "no header"];
    let wrong = desk.run(&wrong).await;
    let is_told = wrong.stderr.contains("must be a header such as");
    assert!(wrong.status == Some(64) && is_told, "{}", wrong.stderr);
}

#[tokio::test]
async fn created_api_key_is_accepted_until_its_entry_is_removed() {
    let desk = Desk::new().await;
    let create = "api-key create --name partner-x --scopes a,b";
    let created = desk.run(&create.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(created.status, Some(0), "{}", created.stderr);
    let mut lines = created.stdout.lines();
    let key = lines.find(|line| line.starts_with("pk_")).expect("a key");
    let entry = created.stdout.replace(key, "");
    let write = |text: &str| {
        std::fs::write(desk.folder.path().join("keys.toml"), text).expect("writes");
    };
    write(&entry);
    desk.write(&format!("[api_keys]\nfile = \"keys.toml\"\n{ROUTES}"));
    let said = desk.explain(&["--token", key]).await;
    let caller = "caller     service partner-x\ndecision   401 user_required";
    assert!(said.contains(caller), "{said}");
    write("");
    let said = desk.explain(&["--token", key]).await;
    assert!(said.contains("decision   401 invalid_api_key"), "{said}");
    write(&entry.replace("id = \"", "id = \"x "));
    let ended = desk.run(&["check"]).await;
    for mistake in [
        "proxy.toml:2: api_keys.file: ",
        "key.0.id: must be an id of visible ASCII characters",
    ] {
        assert!(ended.stderr.contains(mistake), "{}", ended.stderr);
    }
    assert_eq!(ended.status, Some(64));
    let wrong = ["api-key", "create", "--name", "partner x"];
    let wrong = desk.run(&wrong).await;
    let is_empty = wrong.stdout.is_empty();
    assert!(wrong.status == Some(64) && is_empty, "{}", wrong.stderr);
}

#[tokio::test]
async fn access_list_is_explained_for_a_client_address() {
    let desk = Desk::new().await;
    let list = "access = { allow = [\"10.0.0.0/8\"] }\npolicy = \"public\"";
    desk.write(&ROUTES.replace("policy = \"public\"", list));
    let refused = "403 address_not_allowed";
    for (option, value, access, decision) in [
        ("--token", "none", "refuses an unknown address", refused),
        ("--client-address", "10.1.2.3", "accepts 10.1.2.3", "allow"),
        (
            "--client-address",
            "192.0.2.1",
            "refuses 192.0.2.1",
            refused,
        ),
    ] {
        let arguments = ["--header", "X-Beta: 1", option, value];
        let said = desk.explain(&arguments).await;
        for line in [format!(": {access}"), format!("decision   {decision}")] {
            assert!(said.contains(&line), "{line} is missing:\n{said}");
        }
    }
}
