//! Project Wycheproof's vectors, processed like a real token: the key is served as a JWKS, fetched,
//! parsed, looked up by `kid`, and the signature is verified. Most payloads are no claims, so
//! processing ends there.

use serde_json::{Value, json};

use super::fixtures::{Behaviour, Server, clock, options};
use crate::testing;
use crate::token::TokenError;
use crate::token::jwks::KeySource;
use crate::token::jws::{self, CompactJws};

fn groups(name: &str) -> Vec<Value> {
    let path = testing::vectors(&format!("wycheproof/{name}"));
    let text = std::fs::read(path).expect("a readable file");
    let vectors: Value = serde_json::from_slice(&text).expect("the vectors are JSON");
    vectors["testGroups"].as_array().expect("groups").clone()
}

async fn serve(key: &Value) -> KeySource {
    let set = match key.get("keys") {
        Some(_) => key.to_string(),
        None => json!({"keys": [key]}).to_string(),
    };
    let server = Server::start(Behaviour::Serve(set)).await;
    KeySource::new("https://issuer.test".into(), server.url, options(&clock()))
}

async fn verdict(source: &KeySource, token: &str) -> Result<(), TokenError> {
    let jws = CompactJws::read(token)?;
    let key_id = jws.key_id.as_deref().ok_or(TokenError::KeyIdMissing)?;
    match source.obtain(key_id).await?.check(&jws) {
        // The payload, which is read after the signature was verified.
        Err(TokenError::NotJson) => Ok(()),
        verdict => verdict,
    }
}

/// Returns whether a valid token of this test must be accepted: a supported algorithm, in compact
/// form.
fn is_supported(key: &Value, token: &str) -> bool {
    let keys = key["keys"]
        .as_array()
        .map_or(std::slice::from_ref(key), Vec::as_slice);
    let is_known = |key: &Value| key["alg"].as_str().and_then(jws::algorithm).is_some();
    keys.iter().all(is_known) && !token.starts_with('{')
}

async fn run(file: &str, token: &str, at_least_valid: usize) {
    let groups = groups(file);
    let (mut accepted, mut refused) = (0, 0);
    for group in &groups {
        let key = group.get("public").or(group.get("private"));
        let key = key.expect("a key");
        let source = serve(key).await;
        for test in group["tests"].as_array().expect("tests") {
            let Some(text) = test.get(token) else {
                continue;
            };
            let text = text.as_str().map_or(text.to_string(), str::to_owned);
            let outcome = verdict(&source, &text).await;
            let name = format!("{file} {}: {}", test["tcId"], test["comment"]);
            match test["result"].as_str() {
                Some("valid") if is_supported(key, &text) => {
                    assert_eq!(outcome, Ok(()), "{name}");
                    accepted += 1;
                }
                Some("valid" | "invalid" | "acceptable") => {
                    assert!(outcome.is_err(), "{name} was accepted");
                    refused += 1;
                }
                other => panic!("{name}: unknown result {other:?}"),
            }
        }
    }
    println!("{file}: {accepted} accepted, {refused} refused");
    assert!(accepted >= at_least_valid && refused > 0, "{file}");
}

#[tokio::test]
async fn tokens_and_keys_of_wycheproof_are_judged_alike() {
    for (name, token, at_least_valid) in [
        ("signature", "jws", 8),
        ("key", "jws", 1),
        ("crypto", "jws", 2),
        ("encryption", "jwe", 0),
    ] {
        let file = format!("json_web_{name}_test.json");
        run(&file, token, at_least_valid).await;
    }
}
