//! Key sets: rotation, removal, outages, invalid responses, floods, restarts.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use futures_util::future::join_all;
use serde_json::json;

use super::fixtures::{
    Behaviour, OTHER_RSA, RSA, SERVICES, Server, Signer, USERS, World, b64, clock, issuers, jwks,
    options, user_claims, with,
};
use crate::token::{TokenError, Verifier};

const UNAVAILABLE: TokenError = TokenError::KeysUnavailable { retry_after_s: 1 };

#[tokio::test]
async fn known_key_causes_no_fetch() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    for subject in 0..20 {
        let token = RSA.token(
            "u1",
            &with(user_claims(), "sub", json!(format!("{subject}"))),
        );
        assert!(world.accepts(&token).await);
    }
    assert_eq!((world.users.requests(), world.services.requests()), (1, 1));
}

#[tokio::test]
async fn added_key_verifies_without_a_failed_request() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    world.users.becomes(Behaviour::Serve(jwks(&[
        RSA.jwk("u1"),
        OTHER_RSA.jwk("u2"),
    ])));
    let tokens: Vec<String> = (0..50)
        .map(|n| OTHER_RSA.token("u2", &with(user_claims(), "sub", json!(format!("{n}")))))
        .collect();
    let outcomes = join_all(tokens.iter().map(|token| world.verifier.verify(token))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(
        world.users.requests(),
        2,
        "one refetch serves all waiting requests"
    );
}

#[tokio::test]
async fn removed_key_verifies_nothing_cached_or_not() {
    let world = World::new(&[RSA.jwk("u1"), OTHER_RSA.jwk("u2")], &[]).await;
    let (kept, removed) = (
        RSA.token("u1", &user_claims()),
        OTHER_RSA.token("u2", &user_claims()),
    );
    assert!(world.accepts(&kept).await);
    assert!(world.accepts(&removed).await);
    world
        .users
        .becomes(Behaviour::Serve(jwks(&[RSA.jwk("u1")])));
    world.verifier.refresh_now().await;
    assert!(world.verifier.verify_cached(&removed).is_none());
    assert_eq!(world.rejection(&removed).await, TokenError::KeyUnknown);
    assert!(
        world
            .verifier
            .verify_cached(&kept)
            .expect("still cached")
            .is_ok()
    );
}

#[tokio::test]
async fn kid_with_a_new_key_replaces_the_old_key() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.accepts(&token).await);
    world
        .users
        .becomes(Behaviour::Serve(jwks(&[OTHER_RSA.jwk("u1")])));
    world.verifier.refresh_now().await;
    assert_eq!(world.rejection(&token).await, TokenError::Signature);
    assert!(world.accepts(&OTHER_RSA.token("u1", &user_claims())).await);
}

#[tokio::test]
async fn known_keys_are_used_in_an_outage_until_they_are_too_old() {
    let world = World::usual().await;
    let known = RSA.token("u1", &with(user_claims(), "exp", json!(4_000_000_000_i64)));
    assert!(world.accepts(&known).await);
    world.users.becomes(Behaviour::Status(500));
    world.clock.advance(Duration::from_secs(24 * 3600 - 1));
    world.verifier.refresh_now().await;
    assert!(world.accepts(&known).await);
    let fresh = RSA.token("u1", &with(user_claims(), "exp", json!(4_000_000_001_i64)));
    assert!(world.accepts(&fresh).await, "an uncached token as well");
    world.clock.advance(Duration::from_secs(1));
    assert!(!world.verifier.can_verify(USERS));
    assert_eq!(world.rejection(&known).await, UNAVAILABLE, "503, never 401");
    world
        .users
        .becomes(Behaviour::Serve(jwks(&[RSA.jwk("u1")])));
    assert!(world.accepts(&known).await);
}

#[tokio::test]
async fn prepared_issuer_has_keys_before_it_is_trusted() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let moved = Server::start(Behaviour::Serve(jwks(&[OTHER_RSA.jwk("u2")]))).await;
    let asked = world.services.requests();
    let prepared = world
        .verifier
        .prepare(issuers(&moved.url, &world.services.url))
        .await;
    let (old, new) = (
        RSA.token("u1", &user_claims()),
        OTHER_RSA.token("u2", &user_claims()),
    );
    assert!(world.accepts(&old).await, "trusted until then");
    world.verifier.adopt(prepared);
    assert!(world.verifier.can_verify(USERS));
    assert!(world.accepts(&new).await);
    assert_eq!(
        (moved.requests(), world.services.requests()),
        (1, asked),
        "an unchanged issuer is not fetched again"
    );
    let away = world
        .verifier
        .prepare(issuers(
            &"http://127.0.0.1:1/".parse().expect("a URL"),
            &world.services.url,
        ))
        .await;
    world.verifier.adopt(away);
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
    let elsewhere = Server::start(Behaviour::Serve(jwks(&[OTHER_RSA.jwk("u1")]))).await;
    let many: Vec<_> = (0..101).map(|n| RSA.jwk(&format!("k{n}"))).collect();
    for (behaviour, fault) in [
        (
            Behaviour::Serve("garbage".into()),
            "the answer is not a JWKS",
        ),
        (Behaviour::Serve(String::new()), "the answer is not a JWKS"),
        (
            Behaviour::Serve("{\"keys\":{}}".into()),
            "the answer is not a JWKS",
        ),
        (
            Behaviour::Serve(jwks(&many)),
            "the JWKS has more than 100 keys",
        ),
        (
            Behaviour::Serve("x".repeat(10 * 1024 * 1024)),
            "the answer is larger than 256 KiB",
        ),
        (
            Behaviour::Status(404),
            "the server has no such document (404)",
        ),
        (
            Behaviour::Status(403),
            "the server denied access (401 or 403)",
        ),
        (Behaviour::Status(503), "the server failed (5xx)"),
        (
            Behaviour::Status(410),
            "the server answered with another status than 200",
        ),
        (
            Behaviour::Redirect(elsewhere.url.to_string()),
            "the server answered with a redirect",
        ),
        (Behaviour::Close, "the exchange with the server failed"),
    ] {
        world.users.becomes(behaviour);
        world.verifier.refresh_now().await;
        let status = &world.verifier.status()[1];
        assert_eq!(status.last_error.as_deref(), Some(fault));
        assert_eq!(status.keys, ["u1"]);
        let token = RSA.token("u1", &with(user_claims(), "sub", json!(fault)));
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
    assert_eq!(
        world.verifier.status()[1].last_error.as_deref(),
        Some("the server did not answer in time")
    );
}

#[tokio::test]
async fn unusable_key_is_skipped() {
    let mut curve = Signer::ec().jwk("curve");
    curve["crv"] = "P-384".into();
    let mut point = Signer::ec().jwk("point");
    point["x"] = b64([7; 32]).into();
    let mut private = Signer::ed().jwk("private");
    private["d"] = b64([1; 32]).into();
    let mut padded = RSA.jwk("padded");
    padded["n"] = format!("{}==", padded["n"].as_str().unwrap()).into();
    let mut exponent = RSA.jwk("exponent");
    exponent["e"] = b64([1]).into();
    let mut algorithm = RSA.jwk("algorithm");
    algorithm["alg"] = "RS512".into();
    let oct = json!({"kty": "oct", "kid": "oct", "k": "AAAA"});
    let twice = [RSA.jwk("twice"), OTHER_RSA.jwk("twice")];
    let mut keys = vec![
        json!(7),
        json!({"kty": "RSA"}),
        curve,
        point,
        private,
        padded,
        exponent,
        algorithm,
        oct,
    ];
    keys.extend(twice);
    keys.push(RSA.jwk("u1"));
    let world = World::new(&keys, &[]).await;
    assert!(world.accepts(&RSA.token("u1", &user_claims())).await);
    let status = &world.verifier.status()[1];
    assert_eq!(status.keys, ["u1"]);
    assert_eq!(status.skipped.len(), 10, "{:?}", status.skipped);
}

#[tokio::test]
async fn key_without_alg_uses_the_algorithm_of_its_type() {
    let mut jwk = RSA.jwk("u1");
    jwk.as_object_mut().unwrap().remove("alg");
    jwk.as_object_mut().unwrap().remove("use");
    let world = World::new(&[jwk], &[]).await;
    assert!(world.accepts(&RSA.token("u1", &user_claims())).await);
}

#[tokio::test]
async fn saved_keys_survive_a_restart_and_keep_their_age() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let users = Server::start(Behaviour::Serve(jwks(&[RSA.jwk("u1")]))).await;
    let start = || {
        let mut options = options(&clock);
        options.jwks_dir = Some(dir.path().join("jwks"));
        let mut issuers = issuers(&users.url, &users.url);
        issuers.truncate(1);
        Verifier::new(issuers, options)
    };
    start().refresh_now().await;
    users.becomes(Behaviour::Close);
    clock.advance(Duration::from_secs(1800));
    let restarted = start();
    assert!(
        restarted
            .verify(&RSA.token("u1", &user_claims()))
            .await
            .is_ok()
    );
    assert_eq!(restarted.status()[0].age_s, Some(1800));
    clock.advance(Duration::from_secs(24 * 3600));
    let much_later = start();
    let token = RSA.token("u1", &with(user_claims(), "exp", json!(4_000_000_000_i64)));
    assert_eq!(much_later.verify(&token).await.unwrap_err(), UNAVAILABLE);
}

#[tokio::test]
async fn saved_keys_that_others_may_write_are_ignored() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("jwks");
    let clock = clock();
    let users = Server::start(Behaviour::Serve(jwks(&[RSA.jwk("u1")]))).await;
    let verdict = async || {
        let mut options = options(&clock);
        options.jwks_dir = Some(dir.clone());
        let verifier = Verifier::new(issuers(&users.url, &users.url), options);
        let token = RSA.token("u1", &user_claims());
        verifier.verify(&token).await.map(|_| ())
    };
    assert_eq!(verdict().await, Ok(()));
    let mut files = std::fs::read_dir(&dir).unwrap();
    let file = files.next().unwrap().unwrap().path();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&file)), (0o700, 0o600));
    users.becomes(Behaviour::Close);
    for (of_dir, of_file, expected) in [
        (0o700, 0o600, Ok(())),
        (0o755, 0o644, Ok(())),
        (0o777, 0o600, Err(UNAVAILABLE)),
        (0o770, 0o600, Err(UNAVAILABLE)),
        (0o700, 0o666, Err(UNAVAILABLE)),
    ] {
        for (path, mode) in [(&dir, of_dir), (&file, of_file)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        assert_eq!(verdict().await, expected, "{of_dir:o} {of_file:o}");
    }
}

#[tokio::test]
async fn corrupt_saved_file_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let users = Server::start(Behaviour::Serve(jwks(&[RSA.jwk("u1")]))).await;
    let start = || {
        let mut options = options(&clock);
        options.jwks_dir = Some(dir.path().to_owned());
        Verifier::new(issuers(&users.url, &users.url), options)
    };
    start().refresh_now().await;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        std::fs::write(file.unwrap().path(), "{\"issuer\": ").unwrap();
    }
    assert!(
        start()
            .verify(&RSA.token("u1", &user_claims()))
            .await
            .is_ok()
    );
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
        assert_eq!(
            verifier
                .verify(&RSA.token("u1", &user_claims()))
                .await
                .unwrap_err(),
            UNAVAILABLE
        );
        let fault = verifier.status()[0].last_error.clone();
        assert!(
            fault.is_none()
                || fault.as_deref()
                    == Some("the address of the JWKS is neither HTTPS nor on a loopback host")
        );
        assert!(!verifier.can_verify(USERS));
    }
}

#[tokio::test]
async fn max_age_is_used_within_bounds() {
    let world = World::usual().await;
    for (max_age_s, at_least, at_most) in [(0, 24, 30), (120, 96, 120), (86_400, 720, 900)] {
        world
            .users
            .becomes(Behaviour::ServeFor(jwks(&[RSA.jwk("u1")]), max_age_s));
        world.verifier.refresh_now().await;
        let before = world.users.requests();
        world.clock.advance(Duration::from_secs(at_least - 1));
        world.verifier.refresh_due().await;
        assert_eq!(
            world.users.requests(),
            before,
            "max-age={max_age_s}: not due yet"
        );
        world
            .clock
            .advance(Duration::from_secs(at_most - at_least + 1));
        world.verifier.refresh_due().await;
        assert_eq!(
            world.users.requests(),
            before + 1,
            "max-age={max_age_s}: due"
        );
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
