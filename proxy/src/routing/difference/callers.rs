//! Representatives of the callers and client addresses that two routes can tell apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::config::{AccessList, CallerRules, RoutePolicy, TestToken};

/// The subject of a user who owns nothing: no segment of a path.
pub(super) const NO_OWNER: &str = "/";

/// Returns representatives of all callers, those with fewer properties first.
///
/// Users: a rule accepts one of its groups together with all of its scopes and claims, so a user
/// that two rules treat differently exists if and only if one with at most one group of each, and
/// the scopes and claims of none, either or both, does; and each of them as the owner that a rule
/// finds in the path. Services: each name, and a name that no rule has. Returns `None` if there may
/// be more than `max` kinds of users.
pub(in crate::routing) fn callers(
    policies: [Option<&RoutePolicy>; 2],
    path: &str,
    max: usize,
) -> Option<Vec<TestToken>> {
    let rules = policies.map(|policy| match policy {
        Some(RoutePolicy::Protected(rules)) => rules.clone(),
        Some(RoutePolicy::Public) | None => CallerRules::default(),
    });
    let users = rules
        .each_ref()
        .map(|it| it.users.clone().unwrap_or_default());
    let [old_groups, new_groups] = users.each_ref().map(|rule| rule.groups.as_slice());
    if (old_groups.len() + 1).saturating_mul(new_groups.len() + 1) > max {
        return None;
    }
    let mut callers = vec![TestToken::None];
    let scopes = users.each_ref().map(|rule| rule.scopes.clone());
    let user_scopes = combinations(scopes, sorted);
    let claims = users.each_ref().map(|rule| rule.claims.clone());
    let claim_sets = combinations(claims, claims_with);
    for groups in group_combinations(old_groups, new_groups) {
        for scopes in &user_scopes {
            callers.extend(claim_sets.iter().map(|claims| TestToken::User {
                subject: NO_OWNER.to_owned(),
                groups: groups.clone(),
                scopes: scopes.clone(),
                claims: claims.clone(),
            }));
        }
    }
    let owners = policies.into_iter().flatten();
    let owners: BTreeSet<&str> = owners.filter_map(|policy| policy.owner(path)).collect();
    let owning = |owner| {
        callers
            .iter()
            .filter_map(move |caller| with_subject(caller, owner))
    };
    let owning: Vec<TestToken> = owners.into_iter().flat_map(owning).collect();
    callers.extend(owning);
    let services = rules.map(|rules| rules.services.unwrap_or_default());
    let names = services.iter().flat_map(|rule| rule.allow.iter().flatten());
    let names: BTreeSet<String> = names.cloned().collect();
    let mut other = "other".to_owned();
    while names.contains(&other) {
        other.push('-');
    }
    let service_scopes = combinations(services.map(|rule| rule.scopes), sorted);
    for name in std::iter::once(other).chain(names) {
        callers.extend(service_scopes.iter().map(|scopes| TestToken::Service {
            name: name.clone(),
            scopes: scopes.clone(),
        }));
    }
    Some(callers)
}

/// Returns the same user with an encoded subject; `None` if this is no user.
fn with_subject(user: &TestToken, encoded: &str) -> Option<TestToken> {
    let mut owner = user.clone();
    let TestToken::User { subject, .. } = &mut owner else {
        return None;
    };
    *subject = percent_decode_str(encoded).decode_utf8_lossy().into_owned();
    Some(owner)
}

/// Returns none, the first, the second, and both sets in their normal form, without repetitions.
fn combinations<T: Clone + PartialEq>(
    sets: [Vec<T>; 2],
    normal: impl Fn(Vec<T>) -> Vec<T>,
) -> Vec<Vec<T>> {
    let both = sets.concat();
    let [old, new] = sets;
    let mut found = Vec::new();
    for set in [Vec::new(), old, new, both].map(normal) {
        if !found.contains(&set) {
            found.push(set);
        }
    }
    found
}

fn sorted(names: Vec<String>) -> Vec<String> {
    BTreeSet::from_iter(names).into_iter().collect()
}

/// Returns no group, each group, and each pair of a group of both rules.
fn group_combinations(old: &[String], new: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::from([Vec::new()]);
    found.extend(old.iter().chain(new).map(|group| vec![group.clone()]));
    for first in old {
        let others = new.iter().filter(|second| *second != first);
        found.extend(others.map(|second| vec![first.clone(), second.clone()]));
    }
    found
}

/// Returns claims that have all these values: a list if a claim has several.
fn claims_with(required: Vec<(String, Value)>) -> Vec<(String, Value)> {
    let mut claims: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (name, value) in required {
        let values = claims.entry(name).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }
    let claim = |(name, mut values): (String, Vec<Value>)| match values.len() {
        1 => (name, values.remove(0)),
        _ => (name, Value::Array(values)),
    };
    claims.into_iter().map(claim).collect()
}

/// Returns an address of each range that the lists treat alike, and no address if there are no
/// lists.
pub(in crate::routing) fn addresses(lists: [Option<&AccessList>; 2]) -> Vec<Option<IpAddr>> {
    let mut lists = lists.into_iter().flatten().peekable();
    if lists.peek().is_none() {
        return vec![None];
    }
    // A range begins at an end of a network, or at the first address.
    let mut starts = BTreeSet::from([
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ]);
    for network in lists.flat_map(AccessList::networks) {
        starts.insert(network.address());
        starts.extend(network.address_after());
    }
    std::iter::once(None)
        .chain(starts.into_iter().map(Some))
        .collect()
}

impl fmt::Display for TestToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scopes, mut properties) = match self {
            Self::None => return f.write_str("no token"),
            Self::User {
                subject,
                groups,
                scopes,
                claims,
            } => {
                match subject.as_str() {
                    NO_OWNER => f.write_str("a user")?,
                    subject => write!(f, "the user {subject}")?,
                }
                let groups = groups.iter().map(|name| format!("the group {name}"));
                let claims = claims
                    .iter()
                    .map(|(name, value)| format!("{name} = {value}"));
                (scopes, groups.chain(claims).collect::<Vec<_>>())
            }
            Self::Service { name, scopes } => {
                write!(f, "the service {name}")?;
                (scopes, Vec::new())
            }
        };
        properties.extend(scopes.iter().map(|name| format!("the scope {name}")));
        match properties.as_slice() {
            [] => Ok(()),
            properties => write!(f, " with {}", properties.join(", ")),
        }
    }
}
