//! Incidents of the gateway: upstreams, routes, tokens, keys, certificates, configuration and disk.

use std::process::Command;

use super::gateway::FaultyGateway;
use super::tokens::KEY_ID;
use postern_harness::wait::until;

/// Requests until an address is ejected that gets half of them.
const REQUESTS: usize = 20;

/// Seconds by which the clock of the issuer is ahead.
const AHEAD_S: i64 = 3600;

pub(super) async fn plant(gateway: &mut FaultyGateway) {
    upstream_faults(gateway).await;
    unresolved_name(gateway).await;
    unroutable_requests(gateway).await;
    limited_client(gateway).await;
    rejected_tokens(gateway).await;
    removed_api_key(gateway).await;
    full_disk(gateway).await;
    expired_certificate(gateway).await;
    rejected_reload(gateway).await;
}

async fn upstream_faults(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    for _ in 0..REQUESTS {
        let _ = gateway.client.get("/pair").send().await;
    }
    let shown = gateway.status_with("/upstreams", "\"ejected\":true").await;
    gateway.prove("Upstream address is ejected", &shown).await;

    gateway.evidence.begin().await;
    let cut = gateway.client.get("/cut").try_send().await;
    assert!(cut.is_none(), "the response is not complete");
    let shown = gateway.access_log_with("\"cause\":\"reset\"").await;
    gateway
        .prove("Upstream closes within a response", &shown)
        .await;

    gateway.evidence.begin().await;
    let answer = gateway.client.get("/expired").send().await;
    assert!(answer.status.is_server_error(), "{}", answer.text());
    let shown = gateway.access_log_with("\"cause\":\"tls_failed\"").await;
    gateway
        .prove("Certificate of an upstream has expired", &shown)
        .await;
}

async fn unresolved_name(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    gateway.names.change(&[]);
    let shown = gateway.status_with("/upstreams/names", "stale").await;
    gateway.prove("DNS name does not resolve", &shown).await;
}

async fn unroutable_requests(gateway: &mut FaultyGateway) {
    let token = gateway.issuer.token(KEY_ID, 0);
    gateway.evidence.begin().await;
    gateway.refuses("/acount", &token, "not_found").await;
    let shown = gateway.explain("GET", "acount", "user").await;
    gateway.prove("No route matches", &shown).await;

    gateway.evidence.begin().await;
    let post = gateway.client.with_token(&token).post("/account");
    post.send().await.problem(405, "method_not_allowed");
    let shown = gateway.explain("POST", "account", "user").await;
    gateway.prove("Method is not allowed", &shown).await;
}

async fn limited_client(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    let _ = gateway.client.fetch("/limited", 200).await;
    for _ in 0..3 {
        gateway.client.denied("/limited", 429, "rate_limited").await;
    }
    let shown = gateway.access_log_with("\"code\":\"rate_limited\"").await;
    gateway.prove("Client exceeds a rate limit", &shown).await;
}

/// Tokens of an issuer whose clock is ahead, whose key is unknown, and whose keys cannot be fetched.
async fn rejected_tokens(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    let token = gateway.issuer.token(KEY_ID, AHEAD_S);
    let code = "token_not_yet_valid";
    gateway.refuses("/account", &token, code).await;
    let shown = gateway.explain("GET", "account", &token).await;
    gateway.prove("Clock of the issuer is ahead", &shown).await;

    gateway.evidence.begin().await;
    let token = gateway.issuer.token("key-2", 0);
    gateway
        .refuses("/account", &token, "token_key_unknown")
        .await;
    let shown = gateway.status("/jwks/status").await;
    gateway.prove("Token key is unknown", &shown).await;

    gateway.evidence.begin().await;
    gateway.issuer.lose_keys();
    let token = gateway.issuer.token("key-3", 0);
    gateway
        .refuses("/account", &token, "keys_unavailable")
        .await;
    let shown = gateway.status_with("/jwks/status", "lastError").await;
    gateway.prove("JWKS endpoint is unavailable", &shown).await;
}

async fn removed_api_key(gateway: &mut FaultyGateway) {
    let key = gateway.api_key.clone();
    let client = gateway.client.with_token(&key);
    let _ = client.fetch("/orders", 200).await;
    let file = gateway.folder.path().join("api-keys.toml");
    std::fs::write(file, "# All are revoked.\n").expect("the folder can be written");
    let revoked = async || client.get("/orders").send().await.status == 401;
    until("the key is revoked", revoked).await;
    gateway.evidence.begin().await;
    client.denied("/orders", 401, "invalid_api_key").await;
    let code = "\"code\":\"invalid_api_key\"";
    let shown = gateway.access_log_with(code).await;
    gateway.prove("API key was removed", &shown).await;
}

async fn full_disk(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    let _ = gateway.full_client.fetch("/open", 200).await;
    gateway.prove("Disk of the access log is full", "").await;
}

async fn expired_certificate(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    let shown = Command::new("openssl")
        .args(["x509", "-noout", "-enddate", "-in", "expired.pem"])
        .current_dir(gateway.folder.path())
        .output()
        .expect("openssl runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    gateway
        .prove("Certificate of a listener has expired", &shown)
        .await;
}

async fn rejected_reload(gateway: &mut FaultyGateway) {
    gateway.evidence.begin().await;
    let file = gateway.folder.path().join("proxy.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let text = text.replace("upstream = \"pair\"", "upstream = \"pear\"");
    std::fs::write(file, text).expect("the folder can be written");
    let shown = gateway.run(&["check"]).await;
    gateway.prove("Configuration is rejected", &shown).await;
}
