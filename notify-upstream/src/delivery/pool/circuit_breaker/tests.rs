use super::*;

fn source(caller: usize, domain: usize) -> Source {
    Source {
        caller: format!("user:{caller}"),
        domain: format!("{domain}.example"),
    }
}

fn breaker() -> (Clock, Breaker) {
    let clock = Clock::manual(Timestamp(0));
    (clock.clone(), Breaker::new(clock))
}

fn failed(breaker: &Breaker, times: u32) {
    for _ in 0..times {
        breaker.record(CallOutcome::ProviderFailed, &source(0, 0));
    }
}

fn refused(breaker: &Breaker, sources: impl IntoIterator<Item = Source>) {
    for source in sources {
        breaker.record(CallOutcome::RecipientRefused, &source);
    }
}

#[test]
fn it_opens_after_failures_in_a_row_and_probes() {
    let (clock, breaker) = breaker();
    failed(&breaker, 9);
    breaker.record(CallOutcome::Answered, &source(0, 0));
    assert!(breaker.lets_through("a"));
    failed(&breaker, 10);
    assert_eq!(
        (breaker.lets_through("a"), breaker.standing()),
        (false, Standing::Open(FIRST_WAIT))
    );
    clock.advance(Duration::from_secs(2));
    assert_eq!(
        (breaker.standing(), breaker.standing()),
        (Standing::Due, Standing::Due)
    );
    assert_eq!(
        (breaker.lets_through("a"), breaker.lets_through("b")),
        (true, false)
    );
    assert_eq!(
        breaker.record(CallOutcome::Answered, &source(0, 0)),
        Some(Change::Closed)
    );
    assert!(breaker.lets_through("a") && breaker.standing() == Standing::Closed);
}

#[test]
fn the_wait_grows_with_each_probe_and_not_with_what_was_in_flight() {
    let (clock, breaker) = breaker();
    failed(&breaker, 25);
    for wait_s in [2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(
            breaker.standing(),
            Standing::Open(Duration::from_secs(wait_s))
        );
        clock.advance(Duration::from_secs(wait_s));
        assert!(breaker.lets_through("a"));
        failed(&breaker, 3);
    }
}

#[test]
fn refusals_of_one_caller_or_one_domain_never_open_it() {
    let (_clock, breaker) = breaker();
    refused(&breaker, (0..1000).map(|domain| source(1, domain)));
    refused(&breaker, (0..1000).map(|caller| source(caller, 1)));
    assert_eq!(breaker.standing(), Standing::Closed);
}

#[test]
fn refusals_of_many_callers_and_domains_open_it() {
    let (_clock, breaker) = breaker();
    refused(&breaker, (0..9).map(|n| source(n, n)));
    assert_eq!(breaker.standing(), Standing::Closed);
    breaker.record(CallOutcome::Answered, &source(0, 0));
    refused(&breaker, (0..10).map(|n| source(n, n)));
    assert_eq!(breaker.standing(), Standing::Open(FIRST_WAIT));
}

#[test]
fn a_refused_recipient_shows_that_the_provider_answers() {
    let (clock, breaker) = breaker();
    failed(&breaker, 9);
    refused(&breaker, [source(1, 1)]);
    failed(&breaker, 9);
    assert_eq!(breaker.standing(), Standing::Closed, "nine in a row");
    failed(&breaker, 1);
    refused(&breaker, [source(1, 1)]);
    assert_ne!(
        breaker.standing(),
        Standing::Closed,
        "that one was in flight"
    );
    clock.advance(FIRST_WAIT);
    assert!(breaker.lets_through("user:1"));
    refused(&breaker, [source(1, 1)]);
    assert_eq!(
        breaker.standing(),
        Standing::Closed,
        "the probe reached the recipient"
    );
}

#[test]
fn probes_rotate_over_callers_and_their_wait_does_not_grow() {
    let (clock, breaker) = breaker();
    refused(&breaker, (0..10).map(|n| source(n, n)));
    for next in 10..20 {
        clock.advance(FIRST_WAIT);
        assert!(
            (0..next).all(|caller| !breaker.lets_through(&format!("user:{caller}"))),
            "{next}"
        );
        assert!(breaker.lets_through(&format!("user:{next}")));
        refused(&breaker, [source(next, next)]);
        assert_eq!(breaker.standing(), Standing::Open(FIRST_WAIT));
    }
    clock.advance(FIRST_WAIT);
    assert!(!breaker.lets_through("user:3"));
    clock.advance(FIRST_WAIT);
    assert!(breaker.lets_through("user:3"), "there is nobody else");
}
