use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;

use super::*;
use crate::address::{Address, DeviceToken};
use crate::delivery::provider::{FaultScope, HttpConfig, HttpProvider};
use crate::metrics::NotifyMetrics;
use crate::notification::OrderSequence;
use crate::store::ProviderPause;
use crate::templates::MessageContent;
use crate::testing::script::ProviderScript;

fn providers(clock: &Clock) -> (ProviderPool, [ProviderScript; 2]) {
    let metrics = NotifyMetrics::new();
    let scripts = [ProviderScript::default(), ProviderScript::default()];
    let pooled = |name: &str, script: &ProviderScript, weight| PooledProvider {
        name: name.to_owned(),
        provider: Provider::Script(script.clone()),
        weight,
        limiter: PriorityLimiter::new(8, None),
        shares: ShareLimiter::new(8),
        breaker: ProviderCircuitBreaker::new(clock.clone()),
        status: ProviderStatus::new(Channel::Email, name, &metrics),
    };
    let email = vec![pooled("a", &scripts[0], 3), pooled("b", &scripts[1], 1)];
    (email_pool(email), scripts)
}

fn email_pool(providers: Vec<PooledProvider>) -> ProviderPool {
    let mut channels = PerChannel::default();
    *channels.get_mut(Channel::Email) = providers;
    ProviderPool::new(channels, ErrorCodeTable::shipped())
}

async fn send(
    providers: &ProviderPool,
    channel: Channel,
    attempt: i32,
    order: i64,
) -> Result<String, String> {
    let to = Address::Email(EmailAddress::parse("ada@example.com").expect("address"));
    let content = MessageContent::Sms {
        text: String::new(),
    };
    let message = OutgoingMessage {
        id: OrderSequence::id(order),
        to: &to,
        content: &content,
        sent_at: Timestamp(0),
        expires_at: None,
        urgent: false,
        unsubscribe: false,
    };
    let permit = providers
        .acquire(&CallRequest {
            channel,
            message: &message,
            attempt,
            caller: "service:test",
            priority: Priority::Normal,
        })
        .await;
    let why = |none| match none {
        CallRejection::Refused(refusal) => refusal.code,
        CallRejection::CircuitOpen(left) => format!("left alone for {} s", left.as_secs()),
    };
    let sent = permit.map_err(why)?.send(&message).await;
    sent.map(|sent| sent.provider)
        .map_err(|failure| format!("{} {}", failure.provider, failure.refusal.code))
}

#[tokio::test]
async fn load_is_balanced_by_weight_and_fails_over() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    for order in 0..400 {
        send(&providers, Channel::Email, 1, order)
            .await
            .expect("sent");
    }
    let share = scripts[0].calls().len();
    assert!(
        (240..=360).contains(&share),
        "{share} of 400 by weight 3 of 4"
    );
    scripts[0].refuse(&["451"; 10]);
    let mut failures = 0;
    for order in 0..400 {
        failures += usize::from(send(&providers, Channel::Email, 1, order).await.is_err());
    }
    assert_eq!(
        failures, 10,
        "the breaker opens and the other provider gets all calls"
    );
    assert_eq!(
        providers.breaker_state(Channel::Email),
        BreakerState::Closed
    );
}

#[tokio::test]
async fn failing_providers_get_one_probe_each() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    scripts
        .iter()
        .for_each(|script| script.refuse(&["451"; 40]));
    let calls = || [scripts[0].calls().len(), scripts[1].calls().len()];
    for order in 0..200 {
        send(&providers, Channel::Email, 1, order)
            .await
            .expect_err("refused");
    }
    assert_eq!(
        (calls(), providers.breaker_state(Channel::Email)),
        ([10, 10], BreakerState::Open(Duration::from_secs(2)))
    );
    let left_alone = send(&providers, Channel::Email, 1, 1)
        .await
        .expect_err("refused");
    assert_eq!(left_alone, "left alone for 2 s");
    clock.advance(Duration::from_secs(2));
    assert_eq!(
        providers.breaker_state(Channel::Email),
        BreakerState::HalfOpen
    );
    for order in 0..200 {
        send(&providers, Channel::Email, 1, order)
            .await
            .expect_err("refused");
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
            let _ = send(&providers, Channel::Email, 1, order).await;
        }
        assert_eq!(
            scripts[0].calls().len(),
            before + if round == 0 { 10 } else { 1 },
            "round {round}"
        );
        clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn retry_uses_the_next_provider() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    let to = Address::DeviceToken(DeviceToken::parse("t").expect("token"));
    let content = MessageContent::Sms {
        text: String::new(),
    };
    let message = OutgoingMessage {
        id: OrderSequence::id(1),
        to: &to,
        content: &content,
        sent_at: Timestamp(0),
        expires_at: None,
        urgent: false,
        unsubscribe: false,
    };
    for attempt in 1..=4 {
        let permit = providers
            .acquire(&CallRequest {
                channel: Channel::Email,
                message: &message,
                attempt,
                caller: "service:test",
                priority: Priority::Normal,
            })
            .await;
        permit
            .expect("a provider")
            .send(&message)
            .await
            .expect("sent");
    }
    assert_eq!([scripts[0].calls().len(), scripts[1].calls().len()], [2, 2]);
    assert_eq!(
        send(&providers, Channel::Sms, 1, 1).await,
        Err("no_provider".to_owned())
    );
    assert_eq!(
        ErrorCodeTable::shipped().classify("smtp", "451").class,
        FailureClass::Transient
    );
}

/// Creates a provider that refuses a text message of eleven segments before the call.
fn refuses_before_the_call(clock: &Clock) -> ProviderPool {
    let config = HttpConfig {
        url: "http://127.0.0.1:9/".parse().expect("URL"),
        authorization: None,
        body: "{}".to_owned(),
    };
    let pooled = PooledProvider {
        name: "a".to_owned(),
        provider: Provider::Http(Box::new(
            HttpProvider::new(config, ErrorCodeTable::shipped())
                .expect("the configuration is valid"),
        )),
        weight: 1,
        limiter: PriorityLimiter::new(8, None),
        shares: ShareLimiter::new(8),
        breaker: ProviderCircuitBreaker::new(clock.clone()),
        status: ProviderStatus::new(Channel::Email, "a", &NotifyMetrics::new()),
    };
    email_pool(vec![pooled])
}

#[tokio::test]
async fn local_refusal_does_not_affect_the_circuit_breaker() {
    let clock = Clock::manual(Timestamp(0));
    let providers = refuses_before_the_call(&clock);
    let breaker = &providers.channels.get(Channel::Email)[0].breaker;
    let to = Address::Email(EmailAddress::parse("ada@example.com").expect("address"));
    let content = MessageContent::Sms {
        text: "a".repeat(1531),
    };
    let message = OutgoingMessage {
        id: OrderSequence::id(1),
        to: &to,
        content: &content,
        sent_at: Timestamp(0),
        expires_at: None,
        urgent: false,
        unsubscribe: false,
    };
    let request = CallRequest {
        channel: Channel::Email,
        message: &message,
        attempt: 1,
        caller: "service:test",
        priority: Priority::Normal,
    };
    let refused = async || {
        let permit = providers.acquire(&request).await.expect("a provider");
        let CallFailure { refusal, .. } = permit.send(&message).await.expect_err("too long");
        assert_eq!(
            (refusal.code.as_str(), refusal.scope),
            ("message_too_long", FaultScope::NotSent)
        );
    };
    for _ in 0..9 {
        breaker.record(CallOutcome::ProviderFailed);
    }
    for _ in 0..20 {
        refused().await;
    }
    assert_eq!(
        breaker.state(),
        BreakerState::Closed,
        "a local refusal is no failure"
    );
    breaker.record(CallOutcome::ProviderFailed);
    assert_eq!(
        breaker.state(),
        BreakerState::Open(Duration::from_secs(2)),
        "a local refusal does not reset the count"
    );
    clock.advance(Duration::from_secs(2));
    refused().await;
    assert_eq!(
        breaker.state(),
        BreakerState::HalfOpen,
        "the probe was returned"
    );
    // A notification that has expired meanwhile is not sent.
    drop(providers.acquire(&request).await.expect("the probe"));
    let probe = providers.acquire(&request).await;
    let probe = probe.expect("an unused probe is returned");
    assert!(
        providers.acquire(&request).await.is_err(),
        "there is one probe"
    );
    drop(probe);
}

#[tokio::test]
async fn other_provider_takes_over_from_a_paused_one() {
    let clock = Clock::manual(Timestamp(0));
    let (providers, scripts) = providers(&clock);
    let pause = |name: &str| ProviderPause {
        provider: name.to_owned(),
        operator: "ada".to_owned(),
        at: Timestamp(0),
        reason: None,
    };
    let both = [pause("a"), pause("b")];
    assert_eq!(providers.apply_pauses(&both[..1]), [Channel::Email]);
    assert_eq!(providers.apply_pauses(&both[..1]), []);
    for order in 0..40 {
        let sent = send(&providers, Channel::Email, 1, order).await;
        assert_eq!(sent.as_deref(), Ok("b"));
    }
    assert!(scripts[0].calls().is_empty());
    assert!(!providers.is_paused(Channel::Email));
    providers.apply_pauses(&both);
    let waits = send(&providers, Channel::Email, 1, 1).await;
    assert_eq!(waits.expect_err("paused"), "left alone for 1 s");
    assert!(providers.is_paused(Channel::Email));
    // A channel without providers is not paused.
    assert!(!providers.is_paused(Channel::Sms));
    assert_eq!(providers.apply_pauses(&[]), [Channel::Email; 2]);
    assert_eq!(
        providers.breaker_state(Channel::Email),
        BreakerState::Closed
    );
}
