//! Attempts at the same moment: guesses together do not exceed the limits of address and network,
//! and sign-ins with the right password all succeed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postern_store::cache::testing::redis;

use crate::testing::{
    ADA, Fixture, FixtureOptions, PASSWORD, PausePoint, client_at, email, register, reset, sign_in,
};

/// Fixtures with the cache in memory and with Redis.
async fn both(config: &'static str) -> [Fixture; 2] {
    let url = redis().await.url;
    let shared = |it: &mut FixtureOptions| (it.config, it.cache) = (config, Some(url));
    [
        Fixture::with_config(config).await,
        Fixture::with(shared).await,
    ]
}

/// Makes wrong guesses at the same moment, each on another account, and returns how many the pool
/// evaluated.
async fn burst(fixture: &Fixture, addresses: &[String]) -> usize {
    let before = fixture.count("InitiateAuth");
    let guesses = addresses.iter().enumerate().map(async |(number, address)| {
        let (client, account) = (client_at(address), format!("u{number}@example.com"));
        sign_in(&fixture.service, &client, &account, "guess").await
    });
    let outcomes = join_all(guesses).await;
    assert!(outcomes.iter().all(Result::is_err));
    fixture.count("InitiateAuth") - before
}

#[tokio::test]
async fn burst_on_many_accounts_is_limited() {
    for fixture in both("[abuse]\naddress = 5\nnetwork = 8").await {
        let one_address = vec!["192.0.2.1".to_owned(); 60];
        assert_eq!(burst(&fixture, &one_address).await, 5);
        let addresses: Vec<String> = (2..62).map(|n| format!("192.0.2.{n}")).collect();
        assert_eq!(
            burst(&fixture, &addresses).await,
            3,
            "what is left of the network"
        );
    }
}

#[tokio::test]
async fn burst_from_many_networks_is_limited() {
    for fixture in both("[abuse]\nall = 12").await {
        // Ten guesses from each of four networks.
        let addresses: Vec<String> = (0..40).map(|n| format!("192.0.{}.1", n % 4)).collect();
        let evaluated = burst(&fixture, &addresses).await;
        assert!(
            (12..=16).contains(&evaluated),
            "{evaluated}: the limit, and one for each network"
        );
    }
}

#[tokio::test]
async fn people_of_one_office_sign_in_at_once() {
    for fixture in both("[abuse]\naddress = 6").await {
        for morning in 0..2 {
            let people: Vec<String> = (0..6)
                .map(|person| format!("p{morning}-{person}@example.com"))
                .collect();
            for person in &people {
                fixture.pool().add_user(person, PASSWORD, true).await;
            }
            let client = client_at("192.0.2.1");
            let sign_ins = people.iter();
            let sign_ins =
                sign_ins.map(|person| sign_in(&fixture.service, &client, person, PASSWORD));
            for outcome in join_all(sign_ins).await {
                outcome.expect("signed in");
            }
        }
    }
}

#[tokio::test]
async fn burst_of_registrations_and_code_requests_is_limited() {
    let fixture = Fixture::with_config("[abuse]\naddress = 3").await;
    let client = client_at("192.0.2.1");
    let registrations = (0..30).map(async |number| {
        let account = format!("u{number}@example.com");
        register(&fixture.service, &client, &account, PASSWORD)
            .await
            .is_ok()
    });
    let registered = join_all(registrations).await;
    assert_eq!(registered.iter().filter(|ok| **ok).count(), 3);
    assert_eq!(fixture.count("SignUp"), 3);
    let requests = (0..30).map(|number| {
        let account = email(&format!("w{number}@example.com"));
        let task = fixture.flows().request_code(client.clone(), account);
        task.expect("a task")
    });
    for request in join_all(requests).await {
        request.expect("no panic");
    }
    assert_eq!(fixture.count("AdminGetUser"), 3);
}

#[tokio::test]
async fn aborted_reset_forgets_the_trusted_networks() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let signed_in = fixture.sign_in_at("192.0.2.1", PASSWORD).await;
    signed_in.expect("signed in");
    fixture.request_code(ADA).await;
    let request = reset(ADA, &fixture.code(ADA, "account-reset"), "Password-2");
    let held = fixture.pause("AdminSetUserPassword", PausePoint::After);
    let service = Arc::clone(&fixture.service);
    let aborted = tokio::spawn(async move {
        let client = client_at("198.51.100.1");
        service.flows.reset_password(&client, &request).await
    });
    held.reached().await;
    aborted.abort();
    let _ = aborted.await.expect_err("aborted");
    held.release();
    let limiter = &fixture.flows().limiter;
    let began = Instant::now();
    while limiter.is_trusted(ADA, "192.0.2.0/24").await {
        assert!(began.elapsed() < Duration::from_secs(30), "still trusted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
