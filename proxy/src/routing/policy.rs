//! Authorization of callers.
//!
//! Access is denied by default: a route without a policy does not load. The policy is evaluated for
//! every request, whether or not the verification of its token was cached, and treats users and
//! services as different types.

use postern_core::Code;
use postern_core::token::{Caller, Service, User};
use serde_json::Value;

use percent_encoding::percent_decode_str;

use crate::config::{OwnerRule, RoutePolicy, ServiceRule, UserRule};

// === impl RoutePolicy ===

impl RoutePolicy {
    /// Decides whether the caller may use the route with this path.
    ///
    /// # Errors
    /// The problem code of the rejection. A caller of the wrong kind, or a service that is not on
    /// the list, fails authentication (401); a caller of the right kind without a required grant is
    /// forbidden (403), and to a user who does not own an object it does not exist (404).
    pub fn decide(&self, caller: &Caller, path: &str) -> Result<(), Code> {
        match (self, caller) {
            (Self::Public, _) => Ok(()),
            (Self::Protected(protected), Caller::User(user)) => match &protected.users {
                Some(rule) => rule.decide(user, path),
                None => Err(Code::ServiceRequired),
            },
            (Self::Protected(protected), Caller::Service(service)) => match &protected.services {
                Some(rule) => rule.decide(service),
                None => Err(Code::UserRequired),
            },
        }
    }
}

// === impl UserRule ===

impl UserRule {
    fn decide(&self, user: &User, path: &str) -> Result<(), Code> {
        let is_in_group = self.groups.iter().any(|group| user.groups.contains(group));
        let (is_admitted, code) = match &self.owner {
            Some(owner) => (is_in_group || owner.is(user, path), Code::NotFound),
            None => (
                is_in_group || self.groups.is_empty(),
                Code::InsufficientScope,
            ),
        };
        let has_scopes = self.scopes.iter().all(|scope| user.scopes.contains(scope));
        let has_claims = self.claims.iter().all(|(name, value)| {
            let claim = user.claims.get(name);
            claim.is_some_and(|claim| claim == value || is_item(claim, value))
        });
        match (has_scopes && has_claims, is_admitted) {
            (true, true) => Ok(()),
            (true, false) => Err(code),
            (false, _) => Err(Code::InsufficientScope),
        }
    }
}

// === impl OwnerRule ===

impl OwnerRule {
    fn is(&self, user: &User, path: &str) -> bool {
        let is_foreign = self.foreign.iter().any(|issuer| **issuer == *user.issuer);
        !is_foreign && percent_decode_str(self.of(path)).eq(user.subject.bytes())
    }
}

/// Returns whether a claim is a list that contains the value.
fn is_item(claim: &Value, value: &Value) -> bool {
    claim.as_array().is_some_and(|items| items.contains(value))
}

// === impl ServiceRule ===

impl ServiceRule {
    fn decide(&self, service: &Service) -> Result<(), Code> {
        let is_listed =
            |allow: &Vec<String>| allow.iter().any(|name| **name == *service.service_id);
        if !self.allow.as_ref().is_none_or(is_listed) {
            return Err(Code::ServiceNotAllowed);
        }
        let has_scopes = self
            .scopes
            .iter()
            .all(|scope| service.scopes.contains(scope));
        if has_scopes {
            Ok(())
        } else {
            Err(Code::InsufficientScope)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use postern_core::token::Claims;
    use serde_json::json;

    use super::*;
    use crate::config::CallerRules;

    pub(crate) fn user(groups: &[&str], scopes: &[&str]) -> Caller {
        Caller::User(std::sync::Arc::new(User {
            issuer: "https://pool".into(),
            subject: "ada".into(),
            username: "ada".into(),
            client_id: "web".into(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            expires_at: i64::MAX,
            claims: Claims::from_iter([
                ("tier".into(), 2.into()),
                ("realm.roles".into(), json!(["reader", ["editor"], 7])),
            ]),
        }))
    }

    fn service(name: &str) -> Caller {
        Caller::Service(std::sync::Arc::new(Service {
            issuer: "https://services".into(),
            subject: name.into(),
            service_id: name.into(),
            scopes: ["read".to_owned()].into(),
            expires_at: i64::MAX,
        }))
    }

    fn protected(users: Option<UserRule>, services: Option<ServiceRule>) -> RoutePolicy {
        RoutePolicy::Protected(CallerRules {
            users,
            services,
            report_only: false,
        })
    }

    #[test]
    fn service_names_are_compared_exactly() {
        let rule = ServiceRule {
            allow: Some(vec!["auth".to_owned()]),
            scopes: Vec::new(),
        };
        let policy = protected(None, Some(rule));
        assert_eq!(policy.decide(&service("auth"), "/a"), Ok(()));
        for other in ["Auth", "auth2", "aut"] {
            let decided = policy.decide(&service(other), "/a");
            assert_eq!(decided, Err(Code::ServiceNotAllowed), "{other}");
        }
    }

    #[test]
    fn missing_grant_is_forbidden() {
        let strings = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        let rule = UserRule {
            scopes: strings(&["a", "b"]),
            groups: strings(&["admin", "ops"]),
            ..UserRule::default()
        };
        let policy = protected(Some(rule), None);
        assert_eq!(policy.decide(&user(&["ops"], &["b", "a"]), "/a"), Ok(()));
        assert_eq!(
            policy.decide(&user(&["ops"], &["b"]), "/a"),
            Err(Code::InsufficientScope)
        );
        assert_eq!(
            policy.decide(&user(&["dev"], &["a", "b"]), "/a"),
            Err(Code::InsufficientScope)
        );
    }

    #[test]
    fn claim_is_the_value_or_a_list_that_contains_it() {
        for (claims, is_allowed) in [
            (vec![("tier", json!(2))], true),
            (vec![("tier", json!(3))], false),
            (vec![("tier", json!("2"))], false),
            (vec![("realm.roles", json!("reader"))], true),
            (vec![("realm.roles", json!(7))], true),
            (vec![("realm.roles", json!("read"))], false),
            (vec![("realm.roles", json!("editor"))], false),
            (vec![("realm", json!("reader"))], false),
            (
                vec![("realm.roles", json!("reader")), ("tier", json!(3))],
                false,
            ),
            (
                vec![("realm.roles", json!("reader")), ("realm.roles", json!(7))],
                true,
            ),
        ] {
            let required = claims
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()));
            let rule = UserRule {
                claims: required.collect(),
                ..UserRule::default()
            };
            let decided = protected(Some(rule), None).decide(&user(&[], &[]), "/a");
            assert_eq!(decided.is_ok(), is_allowed, "{claims:?}");
        }
    }

    #[test]
    fn owner_and_group_members_may_use_an_object() {
        let rule = |groups: &[&str], segment| UserRule {
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            owner: Some(OwnerRule {
                param: "id".to_owned(),
                segment,
                foreign: ["https://partner".to_owned()].into(),
            }),
            ..UserRule::default()
        };
        let of = |issuer: &str, subject: &str| {
            let Caller::User(ada) = user(&["staff"], &[]) else {
                unreachable!("a user");
            };
            Caller::User(std::sync::Arc::new(User {
                issuer: issuer.into(),
                subject: subject.into(),
                ..(*ada).clone()
            }))
        };
        let (ada, pool) = (user(&["staff"], &[]), "https://pool");
        for (policy, caller, path, expected) in [
            (rule(&[], 1), &ada, "/a/ada", Ok(())),
            (rule(&[], 1), &ada, "/a/ada/x", Ok(())),
            (rule(&[], 2), &ada, "/a/x/ada", Ok(())),
            (rule(&[], 1), &ada, "/a/Ada", Err(Code::NotFound)),
            (rule(&[], 1), &ada, "/a/x/ada", Err(Code::NotFound)),
            (rule(&[], 1), &ada, "/a", Err(Code::NotFound)),
            (rule(&["staff"], 1), &ada, "/a/eve", Ok(())),
            (rule(&["boss"], 1), &ada, "/a/eve", Err(Code::NotFound)),
            (rule(&["boss"], 1), &ada, "/a/ada", Ok(())),
            (rule(&[], 1), &of(pool, "a|b+c"), "/a/a%7Cb+c", Ok(())),
            (
                rule(&[], 1),
                &of(pool, "a b"),
                "/a/a+b",
                Err(Code::NotFound),
            ),
            (
                rule(&[], 1),
                &of("https://partner", "ada"),
                "/a/ada",
                Err(Code::NotFound),
            ),
            (
                rule(&["staff"], 1),
                &of("https://partner", "ada"),
                "/a/ada",
                Ok(()),
            ),
        ] {
            let found = protected(Some(policy), None).decide(caller, path);
            assert_eq!(found, expected, "{caller:?} {path}");
        }
        let scoped = UserRule {
            scopes: vec!["read".to_owned()],
            ..rule(&[], 1)
        };
        let found = protected(Some(scoped), None).decide(&ada, "/a/ada");
        assert_eq!(found, Err(Code::InsufficientScope));
    }
}
