//! API keys of services.

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use crate::api_keys::{NewApiKey, create};

fn routes() -> String {
    route_table(
        r#"
        open | /open | "GET" | policy = "public"
        partner | /partner | "GET" | policy = { services = { allow = ["partner-x"], scopes = ["read"] } }
        others | /others | "GET" | policy = { services = ["auth"] }
        writers | /writers | "GET" | policy = { services = { scopes = ["write"] } }
        users | /users | "GET" | policy = { users = "any" }
        socket | /socket | "GET" | policy = { services = "any" }\nwebsocket = true
        "#,
    )
}

/// Creates a key with the scope `read`. Returns it and its entry.
fn new_key(name: &str, seed: u8) -> (String, String) {
    let new = NewApiKey {
        name: name.to_owned(),
        scopes: vec!["read".to_owned()],
        lifetime: None,
    };
    let created = create(&new, &[seed; 38], Timestamp(0)).expect("a key");
    (created.key.expose().to_owned(), created.entry)
}

struct KeyGateway {
    gateway: TestGateway,
    folder: TempDir,
}

impl KeyGateway {
    async fn start(behavior: OriginBehavior, limits: &str, keys: &str) -> Self {
        Self::with_places(behavior, limits, keys, "").await
    }

    /// `places` are further lines of `[api_keys]`.
    async fn with_places(behavior: OriginBehavior, limits: &str, keys: &str, places: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(Self::path(folder.path()), keys).expect("writes");
        let file = Self::path(folder.path()).display().to_string();
        let routes = format!("[api_keys]\nfile = \"{file}\"\n{places}{}", routes());
        let gateway = TestGateway::h2c(behavior, "", limits, &routes).await;
        Self { gateway, folder }
    }

    fn path(folder: &Path) -> PathBuf {
        folder.join("api-keys.toml")
    }

    fn write(&self, keys: &str) {
        std::fs::write(Self::path(self.folder.path()), keys).expect("writes");
    }

    async fn status(&self, target: &str, key: &str) -> u16 {
        self.gateway.status(target, &bearer(key)).await
    }
}

#[tokio::test]
async fn key_identifies_a_service_and_stays_at_the_gateway() {
    let (key, entry) = new_key("partner-x", 1);
    let keys = KeyGateway::start(OriginBehavior::Answer, "", &entry).await;
    let gateway = &keys.gateway;
    for (target, scheme) in [
        ("/partner", "Bearer"),
        ("/open", "bearer"),
        ("/open", "BEARER "),
    ] {
        let headers = format!("Authorization: {scheme} {key}\r\n");
        assert_eq!(gateway.status(target, &headers).await, 200, "{target}");
    }
    let mut client = http2_client(gateway, 65_535).await;
    let value = format!("Bearer {key}");
    let answer = get(&mut client, "/partner", &[("authorization", &value)]).await;
    assert_eq!(answer.status, 200);
    let seen = gateway.origin.seen();
    assert_eq!(seen.len(), 4);
    for request in &seen {
        let text = request.to_ascii_lowercase();
        let is_seen = text.contains("pk_") || text.contains("authorization");
        assert!(!is_seen, "{request}");
        let identity = [
            "X-Postern-Kind: service",
            "X-Postern-Service: partner-x",
            "X-Postern-Subject: partner-x",
            "X-Postern-Issuer: urn:postern:api-keys",
            "X-Postern-Scopes: read",
        ];
        if request.starts_with("GET /partner") {
            assert_fields(request, &identity);
        }
    }
    // A token still reaches the upstream, which verifies it again.
    assert_eq!(keys.status("/users", &gateway.user()).await, 200);
    let seen = gateway.origin.last().to_ascii_lowercase();
    assert!(seen.contains("authorization: bearer ey"), "{seen}");
}

#[tokio::test]
async fn key_stays_at_the_gateway_in_an_upgrade() {
    let (key, entry) = new_key("partner-x", 1);
    let keys = KeyGateway::start(OriginBehavior::Upgrade, "", &entry).await;
    let _tunnel = keys.gateway.tunnel(&bearer(&key)).await;
    let seen = keys.gateway.origin.only();
    assert!(!seen.contains("pk_"), "{seen}");
    assert_fields(&seen, &["X-Postern-Service: partner-x"]);
}

#[tokio::test]
async fn policies_apply_to_keys_as_to_service_tokens() {
    let ((key, one), (other, two)) = (new_key("partner-x", 1), new_key("partner-y", 2));
    let keys = KeyGateway::start(OriginBehavior::Answer, "", &format!("{one}{two}")).await;
    for (target, key, code) in [
        ("/others", &key, "service_not_allowed"),
        ("/partner", &other, "service_not_allowed"),
        ("/writers", &key, "insufficient_scope"),
        ("/users", &key, "user_required"),
        ("/no-such-path", &key, "not_found"),
    ] {
        let response = keys.gateway.get(target, &bearer(key)).await;
        assert_eq!(response.code(), code, "{target}");
    }
    keys.gateway.origin.assert_unused();
}

#[tokio::test]
async fn key_that_is_not_accepted_is_never_logged() {
    let (key, entry) = new_key("partner-x", 1);
    let (unknown, _) = new_key("partner-x", 2);
    let keys = KeyGateway::start(OriginBehavior::Answer, "", &entry).await;
    let forged = format!("{}{}", &key[..16], &unknown[16..]);
    let cut = &key[..40];
    for wrong in [unknown.as_str(), &forged, cut, "pk_", "pk_\u{e9}"] {
        let response = keys.gateway.get("/partner", &bearer(wrong)).await;
        assert_eq!(response.code(), "invalid_api_key", "{wrong}");
        response.assert_header("www-authenticate", "Bearer error=\"invalid_token\"");
        assert!(!response.body.contains("pk_"), "{}", response.body);
    }
    let response = keys.gateway.get("/partner", &bearer(&key).repeat(2)).await;
    assert_eq!(response.code(), "invalid_header");
    // Only one header carries credentials.
    let in_field = format!("X-Api-Key: {key}\r\n");
    let response = keys.gateway.get("/partner", &in_field).await;
    assert_eq!(response.code(), "authentication_required");
    keys.gateway.origin.assert_unused();
    assert_eq!(keys.status("/partner", &key).await, 200);
    let events = keys.gateway.finish().await;
    let text = serde_json::to_string(&events).expect("JSON");
    let is_logged = text.contains("pk_") || text.contains(&key[16..]);
    assert!(!is_logged, "{text}");
    let expected = json!({ "caller_service": "partner-x", "kind": "service" });
    assert_members(events.last().expect("an event"), &expected);
}

#[tokio::test]
async fn key_in_a_field_or_the_query_stays_at_the_gateway() {
    let (key, entry) = new_key("partner-x", 1);
    let digest = hex::encode(Sha256::digest("old+key/1"));
    let entries = format!(
        "{entry}[[key]]\nid = \"old\"\nname = \"partner-x\"\nscopes = [\"read\"]\nsha256 = \"{digest}\"\n"
    );
    let places = "header = \"X-Key\"\nquery = \"key\"\n";
    let keys = KeyGateway::with_places(OriginBehavior::Answer, "", &entries, places).await;
    let gateway = &keys.gateway;
    let filled = |text: String| {
        let token = gateway.bearer();
        text.replace("KEY", &key).replace("TOKEN", &token)
    };
    for [target, headers, forwarded] in rows(
        r"
        /partner | x-key: KEY\r\n | /partner
        /partner | x-key: old+key/1\r\n | /partner
        /open | X_Key: KEY\r\nX.Key: KEY\r\n | /open
        /partner?key=KEY | | /partner
        /partner?key=old%2Bkey%2F1 | | /partner
        /partner?a=%20&%6bey=KEY&&b | | /partner?a=%20&&b
        /open?key=KEY&key=KEY&keys=1 | | /open?keys=1
        /partner?key=old+key/1 | x-key: KEY\r\n | /partner
        ",
    ) {
        let (target, headers) = (filled(target), filled(headers));
        let status = gateway.status(&target, &headers).await;
        assert_eq!(status, 200, "{target} {headers}");
        let seen = gateway.origin.last();
        let line = format!("GET {forwarded} HTTP/1.1\r\n");
        assert!(seen.starts_with(&line), "{target}: {seen}");
        let rest = seen.to_ascii_lowercase();
        assert!(!rest.contains("pk_") && !rest.contains("x-key"), "{seen}");
    }
    let mut client = http2_client(gateway, 65_535).await;
    let target = format!("/partner?key={key}&a=1");
    assert_eq!(get(&mut client, &target, &[]).await.status, 200);
    let seen = gateway.origin.last();
    assert!(seen.starts_with("GET /partner?a=1 HTTP/1.1\r\n"), "{seen}");
    let count = gateway.origin.seen().len();
    // A token decides, and an imported key is none.
    for [target, headers, code] in rows(
        r"
        /partner | x-key: wrong\r\n | invalid_api_key
        /partner?key= | | invalid_api_key
        /partner?Key=KEY | | authentication_required
        /partner | X_Key: KEY\r\n | authentication_required
        /partner | TOKENx-key: KEY\r\n | service_required
        /partner | Authorization: Bearer old+key/1\r\n | token_malformed
        ",
    ) {
        let (target, headers) = (filled(target), filled(headers));
        let response = gateway.get(&target, &headers).await;
        assert_eq!(response.code(), code, "{target} {headers}");
    }
    assert_eq!(gateway.origin.seen().len(), count);
    let events = keys.gateway.finish().await;
    let text = serde_json::to_string(&events).expect("JSON");
    assert!(!text.contains("pk_") && !text.contains("old+key"), "{text}");
}

#[tokio::test]
async fn principal_limit_counts_all_keys_of_a_name() {
    let ((first, one), (second, two)) = (new_key("partner-x", 1), new_key("partner-x", 2));
    let (other, three) = new_key("partner-y", 3);
    let limits = "[defaults]\nlimits = [{ by = \"principal\", requests = 2, per = \"1h\" }]\n";
    let entries = format!("{one}{two}{three}");
    let keys = KeyGateway::with_places(OriginBehavior::Answer, "", &entries, limits).await;
    assert_eq!(keys.status("/partner", &first).await, 200);
    assert_eq!(keys.status("/partner", &second).await, 200);
    assert_eq!(keys.status("/partner", &first).await, 429);
    // Another principal.
    assert_eq!(keys.status("/others", &other).await, 401);
}

#[tokio::test]
async fn removed_key_is_rejected_within_the_reload_interval() {
    let ((first, one), (second, two)) = (new_key("partner-x", 1), new_key("partner-x", 2));
    let keys = KeyGateway::start(OriginBehavior::Answer, "", &one).await;
    assert_eq!(keys.status("/partner", &first).await, 200);
    assert_eq!(keys.status("/partner", &second).await, 401);
    let reloaded = "postern_proxy_api_keys_last_reload_successful";
    keys.write(&two);
    wait_until(async || keys.status("/partner", &second).await == 200).await;
    assert_eq!(keys.status("/partner", &first).await, 401, "revoked");
    // An invalid file changes nothing.
    for invalid in ["[[key]]\nname = 1\n", ""] {
        keys.write(invalid);
        keys.gateway.wait_for_metric(&format!("{reloaded} 0")).await;
        assert_eq!(keys.status("/partner", &second).await, 200);
    }
    let used = "api_key_last_used_timestamp_seconds{id=\"020202020202\",name=\"partner-x\"} 1";
    keys.gateway.wait_for_metric(used).await;
    keys.write("# All are revoked.\n");
    wait_until(async || keys.status("/partner", &second).await == 401).await;
    keys.gateway.wait_for_metric(&format!("{reloaded} 1")).await;
}

#[tokio::test]
async fn key_is_no_token_without_a_file() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let (key, _) = new_key("partner-x", 1);
    let response = gateway.get("/any/1", &bearer(&key)).await;
    assert_eq!(response.code(), "token_malformed");
}
