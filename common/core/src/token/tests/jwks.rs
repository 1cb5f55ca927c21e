//! Key sets: rotation, removal, outages, invalid responses, floods, restarts.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use futures_util::future::join_all;
use serde_json::json;

use super::fixtures::{
    Behaviour, OTHER_RSA, RSA, SERVICES, Server, Signer, USERS, World, b64, claims_of, clock,
    issuers, jwks, keys, options, user_claims, with,
};
use crate::token::{TokenError, Verifier, VerifierOptions};

/// Claims of a token that outlives the keys.
fn lasting(exp: i64) -> serde_json::Value {
    with(user_claims(), "exp", json!(exp))
}

const UNAVAILABLE: TokenError = TokenError::KeysUnavailable;

#[tokio::test]
async fn known_key_causes_no_fetch() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    for subject in 0..20 {
        let token = RSA.token("u1", &claims_of(subject));
        assert!(world.accepts(&token).await);
    }
    assert_eq!((world.users.requests(), world.services.requests()), (1, 1));
}

#[tokio::test]
async fn added_key_verifies_without_a_failed_request() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let both = keys(&[RSA.jwk("u1"), OTHER_RSA.jwk("u2")]);
    world.users.becomes(both);
    let token = |n| OTHER_RSA.token("u2", &claims_of(n));
    let tokens: Vec<String> = (0..50).map(token).collect();
    let outcomes = join_all(tokens.iter().map(|token| world.verifier.verify(token))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    // One refetch serves all waiting requests.
    assert_eq!(world.users.requests(), 2);
}

#[tokio::test]
async fn removed_key_verifies_nothing_cached_or_not() {
    let world = World::new(&[RSA.jwk("u1"), OTHER_RSA.jwk("u2")], &[]).await;
    let [kept, removed] =
        [(&RSA, "u1"), (&OTHER_RSA, "u2")].map(|(key, id)| key.token(id, &user_claims()));
    assert!(world.accepts(&kept).await);
    assert!(world.accepts(&removed).await);
    world.users.becomes(keys(&[RSA.jwk("u1")]));
    world.verifier.refresh_now().await;
    assert!(world.verifier.verify_cached(&removed).is_none());
    assert_eq!(world.rejection(&removed).await, TokenError::KeyUnknown);
    let cached = world.verifier.verify_cached(&kept);
    assert!(cached.expect("still cached").is_ok());
}

#[tokio::test]
async fn kid_with_a_new_key_replaces_the_old_key() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.accepts(&token).await);
    world.users.becomes(keys(&[OTHER_RSA.jwk("u1")]));
    world.verifier.refresh_now().await;
    assert_eq!(world.rejection(&token).await, TokenError::Signature);
    assert!(world.accepts(&OTHER_RSA.token("u1", &user_claims())).await);
}

#[tokio::test]
async fn known_keys_are_used_in_an_outage_until_they_are_too_old() {
    let world = World::usual().await;
    let known = RSA.token("u1", &lasting(4_000_000_000));
    assert!(world.accepts(&known).await);
    world.users.becomes(Behaviour::Status(500));
    world.clock.advance(Duration::from_secs(24 * 3600 - 1));
    world.verifier.refresh_now().await;
    assert!(world.accepts(&known).await);
    let fresh = RSA.token("u1", &lasting(4_000_000_001));
    assert!(world.accepts(&fresh).await, "an uncached token as well");
    world.clock.advance(Duration::from_secs(1));
    assert!(!world.verifier.can_verify(USERS));
    assert_eq!(world.rejection(&known).await, UNAVAILABLE, "503, never 401");
    world.users.becomes(keys(&[RSA.jwk("u1")]));
    assert!(world.accepts(&known).await);
}

#[tokio::test]
async fn prepared_issuer_has_keys_before_it_is_trusted() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let moved = Server::start(keys(&[OTHER_RSA.jwk("u2")])).await;
    let asked = world.services.requests();
    let prepared = issuers(&moved.url, &world.services.url);
    let prepared = world.verifier.prepare(prepared).await;
    let [old, new] =
        [(&RSA, "u1"), (&OTHER_RSA, "u2")].map(|(key, id)| key.token(id, &user_claims()));
    assert!(world.accepts(&old).await, "trusted until then");
    world.verifier.adopt(prepared);
    assert!(world.verifier.can_verify(USERS));
    assert!(world.accepts(&new).await);
    // An unchanged issuer is not fetched again.
    let requests = (moved.requests(), world.services.requests());
    assert_eq!(requests, (1, asked));
    let away = "http://127.0.0.1:1/".parse().expect("a URL");
    world.trust(issuers(&away, &world.services.url)).await;
    assert!(!world.verifier.can_verify(USERS) && world.verifier.can_verify(SERVICES));
}

#[tokio::test]
async fn unknown_kid_during_an_outage_is_keys_unavailable() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    world.users.becomes(Behaviour::Close);
    let token = OTHER_RSA.token("u2", &user_claims());
    assert_eq!(world.rejection(&token).await, UNAVAILABLE);
}

#[tokio::test]
async fn invalid_jwks_response_changes_nothing() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let elsewhere = Server::start(keys(&[OTHER_RSA.jwk("u1")])).await;
    let many: Vec<_> = (0..101).map(|n| RSA.jwk(&format!("k{n}"))).collect();
    let (serve, status) = (
        |text: &str| Behaviour::Serve(text.into()),
        Behaviour::Status,
    );
    let large = serve(&"x".repeat(10 << 20));
    let redirect = Behaviour::Redirect(elsewhere.url.to_string());
    const NO_JWKS: &str = "the answer is not a JWKS";
    for (behaviour, fault) in [
        (serve("garbage"), NO_JWKS),
        (serve(""), NO_JWKS),
        (serve("{\"keys\":{}}"), NO_JWKS),
        (keys(&many), "the JWKS has more than 100 keys"),
        (large, "the answer is larger than 256 KiB"),
        (status(404), "the server has no such document (404)"),
        (status(403), "the server denied access (401 or 403)"),
        (status(503), "the server failed (5xx)"),
        (
            status(410),
            "the server answered with another status than 200",
        ),
        (redirect, "the server answered with a redirect"),
        (Behaviour::Close, "the exchange with the server failed"),
    ] {
        world.users.becomes(behaviour);
        world.verifier.refresh_now().await;
        let status = &world.verifier.status()[1];
        assert_eq!(status.last_error.as_deref(), Some(fault));
        assert_eq!(status.keys, ["u1"]);
        let token = RSA.token("u1", &claims_of(fault));
        assert!(world.accepts(&token).await, "{fault}");
    }
    assert_eq!(elsewhere.requests(), 0, "no redirect is followed");
}

#[tokio::test]
async fn slow_server_does_not_delay_known_keys() {
    let world = World::with_options(&[RSA.jwk("u1")], &[], |mut options| {
        options.fetch_timeout = Duration::from_millis(300);
        options
    })
    .await;
    while !world.verifier.can_verify(USERS) {
        world.verifier.refresh_now().await;
    }
    world.users.becomes(Behaviour::Hang);
    let refresh = world.verifier.refresh_now();
    let token = RSA.token("u1", &user_claims());
    let verify = world.verifier.verify(&token);
    tokio::select! {
        biased;
        () = refresh => panic!("the refresh ended before the request"),
        outcome = verify => assert!(outcome.is_ok()),
    }
    world.verifier.refresh_now().await;
    let error = world.verifier.status()[1].last_error.clone();
    assert_eq!(error.as_deref(), Some("the server did not answer in time"));
}

#[tokio::test]
async fn unusable_key_is_skipped() {
    let (ec, ed) = (Signer::ec(), Signer::ed());
    let padded = format!("{}==", RSA.jwk("")["n"].as_str().expect("text"));
    let of = |signer: &Signer, member: &str, value| with(signer.jwk("odd"), member, json!(value));
    let named = "several keys have this kid";
    for (odd, reason) in [
        (json!(7), "it is not an object with each name once"),
        (
            json!({"kty": "RSA"}),
            "a member of the public key is missing",
        ),
        (
            json!({"kty": "oct", "kid": "oct"}),
            "its kty is none of RSA, EC, OKP",
        ),
        (of(&ec, "crv", "P-384".to_owned()), "its crv is not P-256"),
        (of(&ec, "x", b64([7; 32])), "its point is not on the curve"),
        (of(&ed, "d", b64([1; 32])), "it publishes its private half"),
        (
            of(&RSA, "n", padded),
            "a member of the public key is not base64url",
        ),
        (
            of(&RSA, "n", b64([0xc5; 128])),
            "its modulus is not of 2048 to 8192 bits",
        ),
        (
            of(&RSA, "e", b64([1])),
            "its exponent or modulus is not sound",
        ),
        (
            of(&RSA, "alg", "RS512".to_owned()),
            "its alg is not accepted for its type",
        ),
        (of(&RSA, "use", "enc".to_owned()), "its use is not sig"),
        (OTHER_RSA.jwk("twice"), named),
    ] {
        let mut served = vec![odd, RSA.jwk("u1")];
        if reason == named {
            served.push(RSA.jwk("twice"));
        }
        let world = World::new(&served, &[]).await;
        assert!(world.accepts(&RSA.token("u1", &user_claims())).await);
        for kid in ["odd", "twice"] {
            let error = world.rejection(&RSA.token(kid, &user_claims())).await;
            assert_eq!(error, TokenError::KeyUnknown);
        }
        let status = &world.verifier.status()[1];
        let skipped: Vec<&str> = status.skipped.iter().map(|key| key.reason).collect();
        assert_eq!(status.keys, ["u1"]);
        assert_eq!(skipped, [reason]);
    }
}

#[tokio::test]
async fn key_without_alg_uses_the_algorithm_of_its_type() {
    let mut jwk = RSA.jwk("u1");
    jwk.as_object_mut().unwrap().remove("alg");
    jwk.as_object_mut().unwrap().remove("use");
    let world = World::new(&[jwk], &[]).await;
    assert!(world.accepts(&RSA.token("u1", &user_claims())).await);
}

/// A user pool whose keys are saved in a folder.
struct Saved {
    folder: tempfile::TempDir,
    clock: crate::Clock,
    users: Server,
}

impl Saved {
    async fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: clock(),
            users: Server::start(keys(&[RSA.jwk("u1")])).await,
        }
    }

    /// Starts a process.
    fn start(&self) -> Arc<Verifier> {
        let options = VerifierOptions {
            jwks_dir: Some(self.folder.path().join("jwks")),
            ..options(&self.clock)
        };
        let mut issuers = issuers(&self.users.url, &self.users.url);
        issuers.truncate(1);
        Verifier::new(issuers, options)
    }

    async fn verdict(&self) -> Result<(), TokenError> {
        let token = RSA.token("u1", &lasting(4_000_000_000));
        self.start().verify(&token).await.map(drop)
    }

    /// Returns the folder and the file in it.
    fn paths(&self) -> [std::path::PathBuf; 2] {
        let folder = self.folder.path().join("jwks");
        let mut files = std::fs::read_dir(&folder).expect("a folder");
        let file = files.next().expect("a file").expect("readable").path();
        [folder, file]
    }
}

#[tokio::test]
async fn saved_keys_survive_a_restart_and_keep_their_age() {
    let saved = Saved::new().await;
    assert_eq!(saved.verdict().await, Ok(()));
    saved.users.becomes(Behaviour::Close);
    saved.clock.advance(Duration::from_secs(1800));
    let restarted = saved.start();
    let token = RSA.token("u1", &user_claims());
    assert!(restarted.verify(&token).await.is_ok());
    assert_eq!(restarted.status()[0].age_s, Some(1800));
    saved.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(saved.verdict().await, Err(UNAVAILABLE));
}

#[tokio::test]
async fn saved_keys_that_others_may_write_are_ignored() {
    use std::os::unix::fs::PermissionsExt;
    let saved = Saved::new().await;
    assert_eq!(saved.verdict().await, Ok(()));
    let paths = saved.paths();
    let mode = |path| {
        let metadata = std::fs::metadata(path).expect("it exists");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(paths.each_ref().map(mode), [0o700, 0o600]);
    saved.users.becomes(Behaviour::Close);
    for (modes, expected) in [
        ([0o700, 0o600], Ok(())),
        ([0o755, 0o644], Ok(())),
        ([0o777, 0o600], Err(UNAVAILABLE)),
        ([0o770, 0o600], Err(UNAVAILABLE)),
        ([0o700, 0o666], Err(UNAVAILABLE)),
    ] {
        for (path, mode) in paths.iter().zip(modes) {
            let permissions = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, permissions).expect("set");
        }
        assert_eq!(saved.verdict().await, expected, "{modes:?}");
    }
}

#[tokio::test]
async fn corrupt_saved_file_is_ignored() {
    let saved = Saved::new().await;
    assert_eq!(saved.verdict().await, Ok(()));
    let [_, file] = saved.paths();
    std::fs::write(file, "{\"issuer\": ").expect("written");
    assert_eq!(saved.verdict().await, Ok(()));
}

#[tokio::test]
async fn plain_http_to_another_host_is_not_fetched() {
    for url in [
        "http://192.0.2.1/jwks",
        "http://keys.test/jwks",
        "http://localhost.evil.test/jwks",
        "ftp://127.0.0.1/jwks",
        "file:///etc/jwks",
    ] {
        let url = url.parse().unwrap();
        let verifier = Verifier::new(issuers(&url, &url), options(&clock()));
        let verified = verifier.verify(&RSA.token("u1", &user_claims())).await;
        assert_eq!(verified.err(), Some(UNAVAILABLE));
        let fault = verifier.status()[1].last_error.clone();
        let expected = "the address of the JWKS is neither HTTPS nor on a loopback host";
        assert_eq!(fault.as_deref(), Some(expected));
        assert!(!verifier.can_verify(USERS));
    }
}

#[tokio::test]
async fn max_age_is_used_within_bounds() {
    let world = World::usual().await;
    for (max_age_s, at_least, at_most) in [(0, 24, 30), (120, 96, 120), (86_400, 720, 900)] {
        let behaviour = Behaviour::ServeFor(jwks(&[RSA.jwk("u1")]), max_age_s);
        world.users.becomes(behaviour);
        world.verifier.refresh_now().await;
        let before = world.users.requests();
        world.clock.advance(Duration::from_secs(at_least - 1));
        world.verifier.refresh_due().await;
        let early = world.users.requests();
        let rest = Duration::from_secs(at_most - at_least + 1);
        world.clock.advance(rest);
        world.verifier.refresh_due().await;
        let due = world.users.requests();
        assert_eq!((early, due), (before, before + 1), "max-age={max_age_s}");
    }
}

#[tokio::test]
async fn background_refresh_starts_at_once_and_ends_at_shutdown() {
    let world = World::usual().await;
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&world.verifier).run(shutdown.clone()));
    while !world.verifier.can_verify(USERS) {
        tokio::task::yield_now().await;
    }
    shutdown.cancel();
    running.await.expect("ends");
    assert_eq!(world.users.requests(), 1);
}
