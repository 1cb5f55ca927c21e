use super::*;

const BODY: usize = 100;

fn budgets() -> BodyMemoryBudget {
    let budgets = BodyBudgets {
        services: 1600,
        users: 1600,
        anonymous: 1600,
        webhooks: 1600,
    };
    BodyMemoryBudget::new(budgets, BODY)
}

/// Adds incomplete bodies of 99 bytes each until one is rejected.
fn fill(budget: &BodyMemoryBudget, owner: BodyOwner) -> (Vec<BodyReservation>, Code) {
    let mut unfinished = Vec::new();
    loop {
        let mut one = match budget.reserve(owner, 100) {
            Ok(one) => one,
            Err(refused) => return (unfinished, refused.code()),
        };
        match one.grow(99, false) {
            Ok(()) => unfinished.push(one),
            Err(refused) => return (unfinished, refused.code()),
        }
    }
}

fn complete(budget: &BodyMemoryBudget, owner: BodyOwner) -> Result<BodyReservation, Code> {
    let one = budget.reserve(owner, 100);
    let one = one.and_then(|mut one| one.grow(100, true).map(|()| one));
    one.map_err(|refused| refused.code())
}

fn address(text: &str) -> Option<IpAddr> {
    Some(text.parse().expect("an address"))
}

fn anonymous(address: &str) -> BodyOwner {
    BodyOwner::Anonymous(self::address(address))
}

fn webhook(address: &str) -> BodyOwner {
    BodyOwner::Webhook(self::address(address))
}

#[test]
fn incomplete_bodies_do_not_affect_other_classes() {
    let all = [
        BodyOwner::Service,
        BodyOwner::user("https://a", "ada"),
        BodyOwner::Anonymous(None),
        BodyOwner::Webhook(None),
    ];
    for filling in all {
        let budget = budgets();
        let (_unfinished, _code) = fill(&budget, filling);
        for other in all.into_iter().filter(|other| *other != filling) {
            let mut one = budget.reserve(other, 100).expect("a budget of its own");
            one.grow(50, false).expect("a budget of its own");
            one.grow(50, true).expect("a budget of its own");
        }
    }
}

#[test]
fn complete_body_is_read_despite_incomplete_ones() {
    let budget = budgets();
    let (unfinished, code) = fill(&budget, BodyOwner::Anonymous(None));
    assert_eq!((unfinished.len(), code), (16, Code::Unavailable));
    let whole_one = complete(&budget, anonymous("192.0.2.1"));
    let whole_one = whole_one.expect("complete bodies have their own budget");
    drop(unfinished);
    let unfinished = fill(&budget, BodyOwner::Anonymous(None)).0;
    assert_eq!(unfinished.len(), 16, "all reservations are released");
    drop((whole_one, unfinished));
    assert_eq!(*budget.0[2].usage.lock(), BudgetUsage::default());
}

#[test]
fn one_source_is_limited_to_its_share() {
    let user = |issuer| BodyOwner::user(issuer, "ada");
    for (owner, other, at_most) in [
        (anonymous("192.0.2.1"), anonymous("192.0.2.2"), 2),
        (anonymous("2001:db8::1"), anonymous("2001:db8:0:1::"), 2),
        (webhook("192.0.2.1"), webhook("192.0.2.2"), 4),
        (user("https://a"), user("https://b"), 2),
    ] {
        let budget = budgets();
        let (unfinished, code) = fill(&budget, owner);
        let full = (at_most, Code::RateLimited);
        assert_eq!((unfinished.len(), code), full, "{owner:?}");
        let code = complete(&budget, owner).err();
        assert_eq!(code, Some(Code::RateLimited), "{owner:?}");
        let mut one = budget.reserve(other, 100).expect("another source");
        one.grow(100, false).expect("another source");
    }
}

#[test]
fn ipv6_addresses_of_one_network_share_a_limit() {
    for (one, other) in [
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ] {
        assert_eq!(anonymous(one).source(), anonymous(other).source());
    }
}

#[test]
fn budget_allows_at_least_one_body() {
    let budget = BodyMemoryBudget::new(BodyBudgets::split(8), BODY);
    complete(&budget, webhook("192.0.2.1")).expect("one");
}
