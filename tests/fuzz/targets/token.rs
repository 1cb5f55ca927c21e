//! Fuzzes tokens. Raw input must be rejected without a panic. Input that is encoded as header and
//! payload, signed with a known key and accepted must have the same meaning to a plain JSON parser
//! as to the verifier.
#![no_main]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libfuzzer_sys::fuzz_target;
use postern_core::token::{Issuer, IssuerKind, IssuerRules, Verifier, VerifierOptions};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const ISSUER: &str = "https://i.test";
const CLIENT: &str = "c";
const KEY_ID: &str = "k";

/// Claims stored in identities.
const KEPT: [&str; 3] = ["iss", "scope", "x"];

struct World {
    key: Ed25519KeyPair,
    verifier: Arc<Verifier>,
    runtime: Runtime,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let key = Ed25519KeyPair::generate().expect("a key");
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": KEY_ID, "x": URL_SAFE_NO_PAD.encode(key.public_key())});
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address")).parse().expect("a URL");
    serve(listener, json!({"keys": [jwk]}).to_string());
    let issuer = Issuer {
        issuer: ISSUER.to_owned(),
        jwks_url: url,
        kind: IssuerKind::User,
        client_ids: vec![CLIENT.to_owned()],
        rules: IssuerRules::default(),
        claims: KEPT.map(str::to_owned).to_vec(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Unknown keys are not tested here and must not slow the target down.
    let refetch_interval = std::time::Duration::from_micros(1);
    let verifier = Verifier::new(vec![issuer], VerifierOptions { refetch_interval, ..VerifierOptions::default() });
    runtime.block_on(verifier.refresh_now());
    assert!(verifier.can_verify(ISSUER));
    World { key, verifier, runtime }
});

fn serve(listener: TcpListener, body: String) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            if stream.read(&mut [0; 4096]).is_ok() {
                drop(stream.write_all(answer.as_bytes()));
            }
        }
    });
}

fuzz_target!(|input: &[u8]| {
    let world = &*WORLD;
    if let Ok(text) = std::str::from_utf8(input) {
        assert!(world.runtime.block_on(world.verifier.verify(text)).is_err(), "nobody signed this");
    }
    // The header ends at the first zero byte, followed by the payload. An empty header is replaced
    // by the default one.
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(0);
    let (header, payload) = input.split_at(end);
    let usual = format!(r#"{{"alg":"EdDSA","kid":"{KEY_ID}"}}"#);
    let header = if header.is_empty() { usual.as_bytes() } else { header };
    let payload = payload.strip_prefix(&[0]).unwrap_or(payload);
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(world.key.sign(signed.as_bytes())));
    let Ok(caller) = world.runtime.block_on(world.verifier.verify(&token)) else { return };
    let header: Value = serde_json::from_slice(header).expect("an accepted header is JSON");
    let claims: Value = serde_json::from_slice(payload).expect("an accepted payload is JSON");
    assert_eq!((&header["alg"], &header["kid"]), (&json!("EdDSA"), &json!(KEY_ID)));
    for name in ["crit", "jku", "x5u", "x5c", "jwk", "b64", "zip"] {
        assert!(header.get(name).is_none());
    }
    let user = caller.user().expect("the pool has users only");
    assert_eq!((&claims["iss"], &claims["client_id"]), (&json!(ISSUER), &json!(CLIENT)));
    assert_eq!((&claims["token_use"], &claims["sub"]), (&json!("access"), &json!(&*user.subject)));
    // It may have a fraction.
    let exp = claims["exp"].as_f64().expect("a number");
    assert!((exp - user.expires_at as f64).abs() < 1.0);
    assert!(claims.get("custom:service_id").is_none());
    for name in KEPT {
        assert_eq!(user.claims.get(name), claims.get(name));
    }
    let again = world.verifier.verify_cached(&token).expect("remembered").expect("accepted");
    assert_eq!(again.subject(), &*user.subject);
});
