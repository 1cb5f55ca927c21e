use super::*;

fn source(caller: usize, domain: usize) -> CallSource {
    CallSource {
        caller: format!("user:{caller}"),
        domain: format!("{domain}.example"),
    }
}

fn breaker() -> (Clock, CircuitBreaker) {
    let clock = Clock::manual(Timestamp(0));
    (clock.clone(), CircuitBreaker::new(clock))
}

fn failed(breaker: &CircuitBreaker, times: u32) {
    for _ in 0..times {
        breaker.record(CallOutcome::ProviderFailed, &source(0, 0));
    }
}

fn refused(breaker: &CircuitBreaker, sources: impl IntoIterator<Item = CallSource>) {
    for source in sources {
        breaker.record(CallOutcome::RecipientRefused, &source);
    }
}

#[test]
fn it_opens_after_failures_in_a_row_and_probes() {
    let (clock, breaker) = breaker();
    failed(&breaker, 9);
    breaker.record(CallOutcome::Answered, &source(0, 0));
    assert!(breaker.allows_call("a"));
    failed(&breaker, 10);
    assert_eq!(
        (breaker.allows_call("a"), breaker.state()),
        (false, BreakerState::Open(MIN_OPEN_TIME))
    );
    clock.advance(Duration::from_secs(2));
    assert_eq!(
        (breaker.state(), breaker.state()),
        (BreakerState::HalfOpen, BreakerState::HalfOpen)
    );
    assert_eq!(
        (breaker.allows_call("a"), breaker.allows_call("b")),
        (true, false)
    );
    assert_eq!(
        breaker.record(CallOutcome::Answered, &source(0, 0)),
        Some(BreakerTransition::Closed)
    );
    assert!(breaker.allows_call("a") && breaker.state() == BreakerState::Closed);
}

#[test]
fn the_wait_grows_with_each_probe_and_not_with_what_was_in_flight() {
    let (clock, breaker) = breaker();
    failed(&breaker, 25);
    for wait_s in [2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(
            breaker.state(),
            BreakerState::Open(Duration::from_secs(wait_s))
        );
        clock.advance(Duration::from_secs(wait_s));
        assert!(breaker.allows_call("a"));
        failed(&breaker, 3);
    }
}

#[test]
fn refusals_of_one_caller_or_one_domain_never_open_it() {
    let (_clock, breaker) = breaker();
    refused(&breaker, (0..1000).map(|domain| source(1, domain)));
    refused(&breaker, (0..1000).map(|caller| source(caller, 1)));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn refusals_of_many_callers_and_domains_open_it() {
    let (_clock, breaker) = breaker();
    refused(&breaker, (0..9).map(|n| source(n, n)));
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.record(CallOutcome::Answered, &source(0, 0));
    refused(&breaker, (0..10).map(|n| source(n, n)));
    assert_eq!(breaker.state(), BreakerState::Open(MIN_OPEN_TIME));
}

#[test]
fn a_refused_recipient_shows_that_the_provider_answers() {
    let (clock, breaker) = breaker();
    failed(&breaker, 9);
    refused(&breaker, [source(1, 1)]);
    failed(&breaker, 9);
    assert_eq!(breaker.state(), BreakerState::Closed, "nine in a row");
    failed(&breaker, 1);
    refused(&breaker, [source(1, 1)]);
    assert_ne!(
        breaker.state(),
        BreakerState::Closed,
        "that one was in flight"
    );
    clock.advance(MIN_OPEN_TIME);
    assert!(breaker.allows_call("user:1"));
    refused(&breaker, [source(1, 1)]);
    assert_eq!(
        breaker.state(),
        BreakerState::Closed,
        "the probe reached the recipient"
    );
}

#[test]
fn probes_rotate_over_callers_and_their_wait_does_not_grow() {
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
    assert!(breaker.allows_call("user:3"), "there is nobody else");
}
