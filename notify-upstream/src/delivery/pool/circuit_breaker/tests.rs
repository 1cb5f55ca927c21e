use super::*;

const MIN_OPEN_TIME: Duration = POLICY.open_time.initial;

fn source(caller: usize, domain: usize) -> CallSource {
    CallSource {
        caller: format!("user:{caller}"),
        domain: format!("{domain}.example"),
    }
}

fn breaker() -> (Clock, ProviderCircuitBreaker) {
    let clock = Clock::manual(Timestamp(0));
    (clock.clone(), ProviderCircuitBreaker::new(clock))
}

fn failed(breaker: &ProviderCircuitBreaker, times: u32) {
    for _ in 0..times {
        breaker.record(CallOutcome::ProviderFailed, &source(0, 0));
    }
}

fn refused(breaker: &ProviderCircuitBreaker, sources: impl IntoIterator<Item = CallSource>) {
    for source in sources {
        breaker.record(CallOutcome::RecipientRefused, &source);
    }
}

#[test]
fn refusals_of_one_caller_or_domain_do_not_open() {
    let (_clock, breaker) = breaker();
    refused(&breaker, (0..1000).map(|domain| source(1, domain)));
    refused(&breaker, (0..1000).map(|caller| source(caller, 1)));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn refusals_of_many_callers_and_domains_open() {
    let (_clock, breaker) = breaker();
    refused(&breaker, (0..9).map(|n| source(n, n)));
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.record(CallOutcome::Answered, &source(0, 0));
    refused(&breaker, (0..10).map(|n| source(n, n)));
    assert_eq!(breaker.state(), BreakerState::Open(MIN_OPEN_TIME));
}

#[test]
fn refused_recipient_resets_the_failure_count() {
    let (clock, breaker) = breaker();
    failed(&breaker, 9);
    refused(&breaker, [source(1, 1)]);
    failed(&breaker, 9);
    assert_eq!(
        breaker.state(),
        BreakerState::Closed,
        "nine consecutive failures"
    );
    failed(&breaker, 1);
    refused(&breaker, [source(1, 1)]);
    assert_ne!(
        breaker.state(),
        BreakerState::Closed,
        "the call was in flight"
    );
    clock.advance(MIN_OPEN_TIME);
    assert!(breaker.allows_call("user:1"));
    refused(&breaker, [source(1, 1)]);
    assert_eq!(
        breaker.state(),
        BreakerState::Closed,
        "the provider answered the probe"
    );
}

#[test]
fn probes_rotate_over_callers_with_constant_delay() {
    let (clock, breaker) = breaker();
    refused(&breaker, (0..10).map(|n| source(n, n)));
    for next in 10..20 {
        clock.advance(MIN_OPEN_TIME);
        assert!(
            (0..next).all(|caller| !breaker.allows_call(&format!("user:{caller}"))),
            "{next}"
        );
        assert!(breaker.allows_call(&format!("user:{next}")));
        refused(&breaker, [source(next, next)]);
        assert_eq!(breaker.state(), BreakerState::Open(MIN_OPEN_TIME));
    }
    clock.advance(MIN_OPEN_TIME);
    assert!(!breaker.allows_call("user:3"));
    clock.advance(MIN_OPEN_TIME);
    assert!(breaker.allows_call("user:3"), "no other caller");
}
