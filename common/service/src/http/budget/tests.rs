use super::*;

const BODY: usize = 100;

fn budgets() -> BodyMemoryBudget {
    BodyMemoryBudget::new(
        BodyBudgets {
            services: 1600,
            users: 1600,
            anonymous: 1600,
            webhooks: 1600,
        },
        BODY,
    )
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
    let mut one = budget
        .reserve(owner, 100)
        .map_err(|refused| refused.code())?;
    one.grow(100, true).map_err(|refused| refused.code())?;
    Ok(one)
}

fn address(text: &str) -> Option<IpAddr> {
    Some(text.parse().expect("an address"))
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
    let whole_one = complete(&budget, BodyOwner::Anonymous(address("192.0.2.1")))
        .expect("complete bodies have their own budget");
    drop(unfinished);
    let unfinished = fill(&budget, BodyOwner::Anonymous(None)).0;
    assert_eq!(unfinished.len(), 16, "all reservations are released");
    drop((whole_one, unfinished));
    assert_eq!(*budget.0[2].usage.lock(), BudgetUsage::default());
}

#[test]
fn one_source_is_limited_to_its_share() {
    for (owner, other, at_most) in [
        (
            BodyOwner::Anonymous(address("192.0.2.1")),
            BodyOwner::Anonymous(address("192.0.2.2")),
            2,
        ),
        (
            BodyOwner::Anonymous(address("2001:db8::1")),
            BodyOwner::Anonymous(address("2001:db8:0:1::")),
            2,
        ),
        (
            BodyOwner::Webhook(address("192.0.2.1")),
            BodyOwner::Webhook(address("192.0.2.2")),
            4,
        ),
        (
            BodyOwner::user("https://a", "ada"),
            BodyOwner::user("https://b", "ada"),
            2,
        ),
    ] {
        let budget = budgets();
        let (unfinished, code) = fill(&budget, owner);
        assert_eq!(
            (unfinished.len(), code),
            (at_most, Code::RateLimited),
            "{owner:?}"
        );
        assert_eq!(
            complete(&budget, owner).err(),
            Some(Code::RateLimited),
            "{owner:?}"
        );
        let mut one = budget.reserve(other, 100).expect("another source");
        one.grow(100, false).expect("another source");
    }
}

#[test]
fn ipv6_addresses_of_one_network_share_a_limit() {
    let one = BodyOwner::Anonymous(address("2001:db8::1"));
    assert_eq!(
        one.source(),
        BodyOwner::Anonymous(address("2001:db8::ffff:1")).source()
    );
    let mapped = BodyOwner::Anonymous(address("::ffff:192.0.2.1"));
    assert_eq!(
        mapped.source(),
        BodyOwner::Anonymous(address("192.0.2.1")).source()
    );
}

#[test]
fn budget_allows_at_least_one_body() {
    let budget = BodyMemoryBudget::new(BodyBudgets::split(8), BODY);
    complete(&budget, BodyOwner::Webhook(address("192.0.2.1"))).expect("one");
}
