//! Attempts at the same moment: guesses together do not exceed the limits of address and network,
//! and sign-ins with the right password all succeed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use postern_common::Problem;
use postern_common::cache::testing::redis;

use crate::assembly::AuthService;
use crate::testing::{
    Fixture, FixtureOptions, PausePoint, StubFailure, client_at, email, login, registration,
};

const PASSWORD: &str = "Password-1";

/// Fixtures with the cache in memory and with Redis.
async fn both(config: &'static str) -> [Fixture; 2] {
    let shared = FixtureOptions {
        config,
        cache: Some(redis().await),
        ..FixtureOptions::default()
    };
    [
        Fixture::with_config(config).await,
        Fixture::with(shared).await,
    ]
}

async fn sign_in(
    service: Arc<AuthService>,
    address: &str,
    account: String,
    password: &str,
) -> Result<(), Problem> {
    let flow = &service.flows.login;
    let outcome = flow
        .sign_in(&client_at(address), &login(&account, password))
        .await;
    outcome.map(drop).map_err(Problem::from)
}

/// Makes wrong guesses at the same moment, each on another account, and returns how many the pool
/// evaluated.
async fn burst(fixture: &Fixture, services: &[Arc<AuthService>], addresses: &[String]) -> usize {
    let before = fixture.pool.count("InitiateAuth");
    let guesses = addresses.iter().enumerate().map(|(number, address)| {
        let service = Arc::clone(&services[number % services.len()]);
        sign_in(service, address, format!("u{number}@example.com"), "guess")
    });
    let outcomes = join_all(guesses).await;
    assert!(outcomes.iter().all(Result::is_err));
    fixture.pool.count("InitiateAuth") - before
}

#[tokio::test]
async fn burst_on_many_accounts_is_limited() {
    for fixture in both("[abuse]\naddress = 5\nnetwork = 8").await {
        let services = [Arc::clone(&fixture.service)];
        let one_address = vec!["192.0.2.1".to_owned(); 60];
        assert_eq!(burst(&fixture, &services, &one_address).await, 5);
        let addresses: Vec<String> = (2..62).map(|n| format!("192.0.2.{n}")).collect();
        assert_eq!(
            burst(&fixture, &services, &addresses).await,
            3,
            "what is left of the network"
        );
    }
}

#[tokio::test]
async fn burst_from_many_networks_is_limited() {
    for fixture in both("[abuse]\nall = 12").await {
        let services = [Arc::clone(&fixture.service)];
        // Ten guesses from each of four networks.
        let addresses: Vec<String> = (0..40).map(|n| format!("192.0.{}.1", n % 4)).collect();
        let evaluated = burst(&fixture, &services, &addresses).await;
        assert!(
            (12..=16).contains(&evaluated),
            "{evaluated}: the limit, and one for each network"
        );
    }
}

#[tokio::test]
async fn one_guess_of_two_replicas_is_evaluated_after_a_delay() {
    let [_, fixture] = both("[abuse]\naddress = 2").await;
    let services = [Arc::clone(&fixture.service), fixture.replica().await];
    let one_address = vec!["192.0.2.1".to_owned(); 40];
    assert_eq!(burst(&fixture, &services, &one_address).await, 2);
    // The clock of Redis cannot be controlled.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        assert_eq!(burst(&fixture, &services, &one_address).await, 1);
    }
}

#[tokio::test]
async fn people_of_one_office_sign_in_at_once() {
    for fixture in both("").await {
        for morning in 0..2 {
            let people: Vec<String> = (0..30)
                .map(|person| format!("p{morning}-{person}@example.com"))
                .collect();
            for person in &people {
                fixture.pool.add_user(person, PASSWORD, true);
            }
            let sign_ins = people.into_iter().map(|person| {
                let service = Arc::clone(&fixture.service);
                sign_in(service, "192.0.2.1", person, PASSWORD)
            });
            for outcome in join_all(sign_ins).await {
                outcome.expect("signed in");
            }
        }
    }
}

#[tokio::test]
async fn outage_of_the_pool_costs_an_office_nothing() {
    for fixture in both("[abuse]\naddress = 3").await {
        for _ in 0..3 {
            fixture
                .pool
                .failures
                .add("InitiateAuth", StubFailure::INTERNAL_ERROR);
        }
        let services = [Arc::clone(&fixture.service)];
        for _ in 0..8 {
            burst(&fixture, &services, &vec!["192.0.2.1".to_owned(); 3]).await;
        }
        // The circuit breaker of the pool.
        fixture.clock.advance(Duration::from_secs(1));
        let people = ["ada@example.com", "bob@example.com", "eve@example.com"];
        for person in people {
            fixture.pool.add_user(person, PASSWORD, true);
            sign_in(
                Arc::clone(&fixture.service),
                "192.0.2.1",
                person.to_owned(),
                PASSWORD,
            )
            .await
            .expect("signed in");
        }
    }
}

#[tokio::test]
async fn burst_of_registrations_is_limited() {
    for fixture in both("[abuse]\naddress = 3").await {
        let register = |number: usize| {
            let service = Arc::clone(&fixture.service);
            async move {
                let request = registration(&format!("u{number}@example.com"), PASSWORD);
                let client = client_at("192.0.2.1");
                let flow = &service.flows.registration;
                flow.register(&client, &request).await.is_ok()
            }
        };
        let registered = join_all((0..30).map(register)).await;
        assert_eq!(registered.iter().filter(|ok| **ok).count(), 3);
        assert_eq!(fixture.pool.count("SignUp"), 3);
    }
}

#[tokio::test]
async fn burst_of_code_requests_is_limited() {
    for fixture in both("[abuse]\naddress = 3").await {
        let request = |number: usize| {
            let client = client_at("192.0.2.1");
            let address = email(&format!("u{number}@example.com"));
            let flow = &fixture.service.flows.password;
            flow.request_code(client, address).expect("a task")
        };
        for request in join_all((0..30).map(request)).await {
            request.expect("no panic");
        }
        assert_eq!(fixture.pool.count("ForgotPassword"), 3);
    }
}

#[tokio::test]
async fn code_requests_in_an_outage_do_not_count_for_the_address() {
    let fixture = Fixture::with_config("[abuse]\naddress = 3").await;
    let request = async |account: &str| {
        let flow = &fixture.service.flows.password;
        let task = flow.request_code(client_at("192.0.2.1"), email(account));
        task.expect("a task").await.expect("no panic");
    };
    for _ in 0..3 {
        fixture
            .pool
            .failures
            .add("ForgotPassword", StubFailure::INTERNAL_ERROR);
    }
    for number in 0..8 {
        request(&format!("u{number}@example.com")).await;
    }
    fixture.clock.advance(Duration::from_secs(1));
    let before = fixture.pool.count("ForgotPassword");
    for account in ["ada@example.com", "bob@example.com", "eve@example.com"] {
        request(account).await;
    }
    assert_eq!(fixture.pool.count("ForgotPassword"), before + 3);
}

#[tokio::test]
async fn aborted_reset_forgets_the_trusted_networks() {
    const ADA: &str = "ada@example.com";
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, PASSWORD, true);
    let service = Arc::clone(&fixture.service);
    sign_in(service, "192.0.2.1", ADA.to_owned(), PASSWORD)
        .await
        .expect("signed in");
    let held = fixture
        .pool
        .pauses
        .add("ConfirmForgotPassword", PausePoint::After);
    let service = Arc::clone(&fixture.service);
    let reset = tokio::spawn(async move {
        let request = crate::flows::ResetRequest {
            email: email(ADA),
            code: "123456".into(),
            new_password: "Password-2".into(),
        };
        let flow = &service.flows.password;
        flow.reset(&client_at("198.51.100.1"), &request).await
    });
    held.reached().await;
    reset.abort();
    let _ = reset.await.expect_err("aborted");
    held.release();
    let limiter = fixture.service.flows.login.guard.limiter();
    let began = std::time::Instant::now();
    while limiter.is_trusted(ADA, "192.0.2.0/24").await {
        assert!(began.elapsed() < Duration::from_secs(10), "still trusted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
