//! Nobody learns from an answer, or from how long it took, who is here: known, unknown, disabled and social-only
//! accounts read the same.

use std::time::{Duration, Instant};

use postern_common::config::Env;
use postern_tests::http_body::json;
use postern_tests::pools::administrator;
use postern_tests::surface::{sample, text};
use postern_tests::{Answer, Postern, Surface};
use serde_json::Value;

/// An answer without what is another for each request.
fn bytes(answer: &Answer) -> (u16, Vec<(String, String)>, String) {
    let mut headers: Vec<(String, String)> = answer
        .headers
        .iter()
        .filter(|(name, _)| !["x-request-id", "date"].contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    headers.sort();
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    if let Some(body) = body.as_object_mut() {
        let id = body.insert("requestId".to_owned(), Value::Null).expect("a problem has its request's id");
        assert_eq!(answer.header("x-request-id"), id);
    }
    (answer.status.as_u16(), headers, body.to_string())
}

#[track_caller]
fn all_the_same(answers: &[(&str, Answer)]) {
    let (first_name, first) = &answers[0];
    for (name, answer) in answers {
        assert_eq!(bytes(answer), bytes(first), "{name} and {first_name}");
    }
}

async fn disable(surface: &Surface, email: &str) {
    let (admin, identity) = administrator(surface).await;
    let call = admin.admin_disable_user().user_pool_id(&identity.actor.pool_id).username(email);
    Box::pin(call.send()).await.expect("disabled");
}

#[tokio::test]
async fn sign_in_forgotten_password_and_refresh_read_the_same_for_everybody() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let (known, disabled) = (surface.register().await, surface.register().await);
    let social = surface.social_sign_in(&sample("grace"), None).await.expect("grace is signed in");
    let body = json!({ "temporaryToken": social });
    let social = surface.client().post("/auth/tokens/exchange").json(&body).send().await.expect(200).json();
    disable(surface, &disabled.email).await;
    let accounts = [
        ("known", known.email.as_str()),
        ("unknown", "nobody@example.com"),
        ("disabled", disabled.email.as_str()),
        ("social-only", "grace.social@example.com"),
    ];
    let mut answers = Vec::new();
    for (name, email) in accounts {
        let body = json!({"email": email, "password": "a wrong password"});
        answers.push((name, surface.client().post("/auth/login").json(&body).send().await.expect(401)));
    }
    all_the_same(&answers);
    let mut answers = Vec::new();
    for (name, email) in accounts {
        let body = json!({"email": email});
        let answer = surface.client().post("/auth/password/forgot").json(&body).send().await;
        answers.push((name, answer.expect(204)));
    }
    all_the_same(&answers);
    let mut answers = Vec::new();
    for (name, email) in accounts {
        let body = json!({"email": email, "code": "000000", "newPassword": "Another horse battery 9"});
        let answer = surface.client().post("/auth/password/reset").json(&body).send().await;
        answers.push((name, answer.expect(422)));
    }
    all_the_same(&answers);
    // Refresh tokens that are none, and those of users who lost theirs in different ways.
    disable(surface, &known.email).await;
    disable(surface, "grace.social@example.com").await;
    let mut answers = Vec::new();
    for (name, token) in [
        ("never one", "never a token"),
        ("disabled", text(&disabled.tokens, "refreshToken")),
        ("disabled later", text(&known.tokens, "refreshToken")),
        ("social-only", text(&social["tokens"], "refreshToken")),
    ] {
        let body = json!({ "refreshToken": token });
        let answer = surface.client().post("/auth/tokens/refresh").json(&body).send().await;
        answers.push((name, answer.expect(401)));
    }
    all_the_same(&answers);
    postern.stop().await;
}

/// Pairs of one known and one unknown address, each tried once.
const PAIRS: usize = 500;

/// A figure, and so no part of every run: `POSTERN_TIMING=1` asks for it. What makes the times equal (the same work for
/// everybody) is held by tests of the pool.
#[tokio::test]
async fn known_and_unknown_addresses_take_the_same_time() {
    if Env::of_process().get("POSTERN_TIMING").is_none() {
        println!("skipped: a figure: POSTERN_TIMING=1 asks for it");
        return;
    }
    let postern = Postern::start().await;
    let surface = postern.surface();
    let mut people = Vec::new();
    for _ in 0..PAIRS {
        people.push(surface.register().await.email);
    }
    let guess = async |email: &str| {
        let body = json!({"email": email, "password": "a wrong password"});
        let began = Instant::now();
        let _ = surface.client().post("/auth/login").json(&body).send().await.expect(401);
        began.elapsed()
    };
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for (number, person) in people.iter().enumerate() {
        let nobody = format!("{}@example.com", uuid::Uuid::new_v4().simple());
        // In turns, so that whatever drifts meets both.
        if number % 2 == 0 {
            known.push(guess(person).await);
            unknown.push(guess(&nobody).await);
        } else {
            unknown.push(guess(&nobody).await);
            known.push(guess(person).await);
        }
    }
    let p = mann_whitney(&known, &unknown);
    let (known, unknown) = (median(known), median(unknown));
    println!("medians {known:?} and {unknown:?}, Mann-Whitney p = {p:.3}");
    postern_tests::note(&format!(
        "login: known {known:?}, unknown {unknown:?}, p = {p:.3} over {PAIRS} pairs"
    ));
    assert!(p > 0.05, "{p}");
    postern.stop().await;
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// The two-sided p of the rank sum test, by the normal approximation, which is good from twenty on. Times in
/// nanoseconds have no ties to speak of.
fn mann_whitney(a: &[Duration], b: &[Duration]) -> f64 {
    let mut all: Vec<(Duration, bool)> =
        a.iter().map(|time| (*time, true)).chain(b.iter().map(|time| (*time, false))).collect();
    all.sort_unstable();
    let number = |count: usize| f64::from(u32::try_from(count).expect("few"));
    let ranks: f64 =
        all.iter().enumerate().filter(|(_, (_, of_a))| *of_a).map(|(rank, _)| number(rank + 1)).sum();
    let (n, m) = (number(a.len()), number(b.len()));
    let u = ranks - n * (n + 1.0) / 2.0;
    let z = (u - n * m / 2.0) / (n * m * (n + m + 1.0) / 12.0).sqrt();
    2.0 * (1.0 - normal(z.abs()))
}

/// The normal distribution by Abramowitz and Stegun 26.2.17, to 7 digits.
fn normal(z: f64) -> f64 {
    const B: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let sum = B.iter().rev().fold(0.0, |sum, b| (sum + b) * t);
    1.0 - sum * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[test]
fn the_rank_sum_test_tells_what_is_different_from_what_is_not() {
    assert!((normal(1.959_964) - 0.975).abs() < 1e-6);
    let times = |from: u64, step: u64| {
        (0..100).map(move |at| Duration::from_nanos(from + at * step)).collect::<Vec<_>>()
    };
    assert!(mann_whitney(&times(0, 2), &times(1, 2)) > 0.9);
    assert!(mann_whitney(&times(0, 2), &times(60, 2)) < 0.001);
}
