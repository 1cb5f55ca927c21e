use postern_core::Clock;
use postern_core::clock::Timestamp;

use super::*;
use crate::address::{Address, DeviceToken};
use crate::delivery::provider::{FaultScope, HttpConfig, HttpProvider};
use crate::metrics::NotifyMetrics;
use crate::notification::OrderSequence;
use crate::templates::MessageContent;
use crate::testing::script::{self, ProviderScript, email_pool};
use crate::testing::{mailbox, outgoing, pause_of};

fn pooled(name: &str, provider: Provider, weight: u32, clock: &Clock) -> PooledProvider {
    script::pooled(name, (provider, weight), 8, clock, &NotifyMetrics::new())
}

fn providers(clock: &Clock) -> (ProviderPool, [ProviderScript; 2]) {
    let scripts = [ProviderScript::default(), ProviderScript::default()];
    let [a, b] = scripts.clone().map(Provider::Script);
    let email = vec![pooled("a", a, 3, clock), pooled("b", b, 1, clock)];
    (email_pool(email), scripts)
}

fn text(text: &str) -> MessageContent {
    MessageContent::Sms {
        text: text.to_owned(),
    }
}

fn request<'a>(message: &'a OutgoingMessage<'a>, attempt: i32) -> CallRequest<'a> {
    CallRequest {
        channel: Channel::Email,
        message,
        attempt,
        caller: "service:test",
        priority: Priority::Normal,
    }
}

/// Sends an e-mail, and returns the name of the provider that took it.
async fn send(providers: &ProviderPool, order: i64) -> Result<String, String> {
    let (to, content) = (mailbox("ada@example.com"), text(""));
    let message = OutgoingMessage {
        id: OrderSequence::id(order),
        ..outgoing(&to, &content)
    };
    let permit = providers.acquire(&request(&message, 1)).await;
    let permit = permit.map_err(|none| format!("{none:?}"))?;
    let provider = permit.provider().to_owned();
    let sent = permit.send(&message).await;
    sent.map(|_| provider).map_err(|refusal| refusal.code)
}

#[tokio::test]
async fn load_is_balanced_by_weight_and_fails_over() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    for order in 0..400 {
        send(&providers, order).await.expect("sent");
    }
    let share = scripts[0].calls().len();
    let by_weight = 240..=360;
    assert!(
        by_weight.contains(&share),
        "{share} of 400 by weight 3 of 4"
    );
    scripts[0].refuse(&["451"; 10]);
    let mut failures = 0;
    for order in 0..400 {
        failures += usize::from(send(&providers, order).await.is_err());
    }
    let fails_over = "the breaker opens and the other provider gets all calls";
    assert_eq!(failures, 10, "{fails_over}");
    let state = providers.breaker_state(Channel::Email);
    assert_eq!(state, BreakerState::Closed);
}

#[tokio::test]
async fn failing_providers_get_one_probe_each() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    for script in &scripts {
        script.refuse(&["451"; 40]);
    }
    let state = || providers.breaker_state(Channel::Email);
    let calls = || [scripts[0].calls().len(), scripts[1].calls().len()];
    for order in 0..200 {
        send(&providers, order).await.expect_err("refused");
    }
    let open = BreakerState::Open(Duration::from_secs(2));
    assert_eq!((calls(), state()), ([10, 10], open));
    let left_alone = send(&providers, 1).await;
    assert_eq!(left_alone.expect_err("refused"), "CircuitOpen(2s)");
    clock.advance(Duration::from_secs(2));
    assert_eq!(state(), BreakerState::HalfOpen);
    for order in 0..200 {
        send(&providers, order).await.expect_err("refused");
    }
    assert_eq!(calls(), [11, 11]);
}

#[tokio::test]
async fn probe_is_not_used_for_another_providers_address() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    scripts[0].refuse(&["451"; 60]);
    for round in 0..30 {
        let before = scripts[0].calls().len();
        for order in 0..100 {
            let _ = send(&providers, order).await;
        }
        let made = scripts[0].calls().len() - before;
        assert_eq!(made, if round == 0 { 10 } else { 1 }, "round {round}");
        clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn retry_uses_the_next_provider() {
    let (providers, scripts) = providers(&Clock::manual(Timestamp(0)));
    let to = Address::DeviceToken(DeviceToken::parse("t").expect("token"));
    let content = text("");
    let message = outgoing(&to, &content);
    for attempt in 1..=4 {
        let permit = providers.acquire(&request(&message, attempt)).await;
        let sent = permit.expect("a provider").send(&message).await;
        sent.expect("sent");
    }
    assert_eq!([scripts[0].calls().len(), scripts[1].calls().len()], [2, 2]);
    let elsewhere = CallRequest {
        channel: Channel::Sms,
        ..request(&message, 1)
    };
    let refused = providers.acquire(&elsewhere).await.err();
    let is_refused = |outcome: &AttemptOutcome| matches!(outcome, AttemptOutcome::Failed(failure) if failure.refusal.code == "no_provider");
    assert!(refused.as_ref().is_some_and(is_refused), "{refused:?}");
}

#[tokio::test]
async fn local_refusal_does_not_affect_the_circuit_breaker() {
    let clock = Clock::manual(Timestamp(0));
    let config = HttpConfig {
        url: "http://127.0.0.1:9/".parse().expect("URL"),
        authorization: None,
        body: "{}".to_owned(),
    };
    let http = HttpProvider::new(config).expect("valid");
    let providers = email_pool(vec![pooled("a", Provider::Http(http.into()), 1, &clock)]);
    let breaker = &providers.channels.get(Channel::Email)[0].breaker;
    // Eleven segments are refused before the call.
    let (to, content) = (mailbox("ada@example.com"), text(&"a".repeat(1531)));
    let message = outgoing(&to, &content);
    let request = request(&message, 1);
    let refused = async || {
        let permit = providers.acquire(&request).await.expect("a provider");
        let refusal = permit.send(&message).await.expect_err("too long");
        let found = (refusal.code.as_str(), refusal.scope);
        assert_eq!(found, ("message_too_long", FaultScope::NotSent));
    };
    for _ in 0..9 {
        breaker.record(CallOutcome::ProviderFailed);
    }
    for _ in 0..20 {
        refused().await;
    }
    let open = BreakerState::Open(Duration::from_secs(2));
    assert_eq!(breaker.state(), BreakerState::Closed, "no failure");
    breaker.record(CallOutcome::ProviderFailed);
    assert_eq!(breaker.state(), open, "the count is not reset");
    clock.advance(Duration::from_secs(2));
    refused().await;
    let state = breaker.state();
    assert_eq!(state, BreakerState::HalfOpen, "the probe was returned");
    // A notification that has expired meanwhile is not sent.
    drop(providers.acquire(&request).await.expect("the probe"));
    let probe = providers.acquire(&request).await;
    let probe = probe.expect("an unused probe is returned");
    assert!(providers.acquire(&request).await.is_err(), "one probe");
    drop(probe);
}

#[tokio::test]
async fn other_provider_takes_over_from_a_paused_one() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    let both = ["a", "b"].map(pause_of);
    assert_eq!(providers.apply_pauses(&both[..1]), [Channel::Email]);
    assert_eq!(providers.apply_pauses(&both[..1]), []);
    for order in 0..40 {
        let sent = send(&providers, order).await;
        assert_eq!(sent.as_deref(), Ok("b"));
    }
    assert!(scripts[0].calls().is_empty());
    assert!(!providers.is_paused(Channel::Email));
    providers.apply_pauses(&both);
    let waits = send(&providers, 1).await;
    assert_eq!(waits.expect_err("paused"), "CircuitOpen(1s)");
    assert!(providers.is_paused(Channel::Email));
    // A channel without providers is not paused.
    assert!(!providers.is_paused(Channel::Sms));
    assert_eq!(providers.apply_pauses(&[]), [Channel::Email; 2]);
    let state = providers.breaker_state(Channel::Email);
    assert_eq!(state, BreakerState::Closed);
}
