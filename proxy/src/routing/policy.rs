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

impl OwnerRule {
    fn is(&self, user: &User, path: &str) -> bool {
        let is_foreign = self.foreign.iter().any(|issuer| **issuer == *user.issuer);
        !is_foreign && percent_decode_str(self.of(path)).eq(user.subject.bytes())
    }
}

fn is_item(claim: &Value, value: &Value) -> bool {
    claim.as_array().is_some_and(|items| items.contains(value))
}

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
mod tests {
    use std::sync::Arc;

    use postern_core::token::Claims;

    use super::*;
    use crate::tests::{read_tables, rows};

    #[test]
    fn policy_decides_by_kind_and_grants() {
        for [policy, token, path, decision] in rows(
            r#"
            { services = ["auth"] } | "service:auth" | ada/x | allow
            { services = ["auth"] } | "service:Auth" | ada/x | service_not_allowed
            { services = ["auth"] } | "service:auth2" | ada/x | service_not_allowed
            { services = ["auth"] } | "service:aut" | ada/x | service_not_allowed
            { users = { scopes = ["a", "b"], groups = ["admin", "ops"] } } | { groups = ["ops"], scopes = ["b", "a"] } | ada/x | allow
            { users = { scopes = ["a", "b"], groups = ["admin", "ops"] } } | { groups = ["ops"], scopes = ["b"] } | ada/x | insufficient_scope
            { users = { scopes = ["a", "b"], groups = ["admin", "ops"] } } | { groups = ["dev"], scopes = ["a", "b"] } | ada/x | insufficient_scope
            { users = { claims = { tier = 2 } } } | CLAIMS | ada/x | allow
            { users = { claims = { tier = 3 } } } | CLAIMS | ada/x | insufficient_scope
            { users = { claims = { tier = "2" } } } | CLAIMS | ada/x | insufficient_scope
            { users = { claims = { "realm.roles" = "reader" } } } | CLAIMS | ada/x | allow
            { users = { claims = { "realm.roles" = 7 } } } | CLAIMS | ada/x | allow
            { users = { claims = { "realm.roles" = "read" } } } | CLAIMS | ada/x | insufficient_scope
            { users = { claims = { "realm.roles" = "editor" } } } | CLAIMS | ada/x | insufficient_scope
            { users = { claims = { realm = "reader" } } } | CLAIMS | ada/x | insufficient_scope
            { users = { claims = { "realm.roles" = "reader", tier = 3 } } } | CLAIMS | ada/x | insufficient_scope
            { users = { claims = { "realm.roles" = ["reader", 7] } } } | CLAIMS | ada/x | allow
            { users = { owner = "one" } } | "user:ada" | ada/x | allow
            { users = { owner = "two" } } | "user:ada" | x/ada | allow
            { users = { owner = "one" } } | "user:ada" | Ada/x | not_found
            { users = { owner = "one" } } | "user:ada" | x/ada | not_found
            { users = { owner = "one", groups = ["staff"] } } | { subject = "ada", groups = ["staff"] } | eve/x | allow
            { users = { owner = "one", groups = ["boss"] } } | { subject = "ada", groups = ["staff"] } | eve/x | not_found
            { users = { owner = "one", groups = ["boss"] } } | { subject = "ada", groups = ["staff"] } | ada/x | allow
            { users = { owner = "one" } } | { subject = "a\u007Cb+c" } | a%7Cb+c/x | allow
            { users = { owner = "one" } } | { subject = "a b" } | a+b/x | not_found
            { users = { owner = "one", scopes = ["read"] } } | "user:ada" | ada/x | insufficient_scope
            "#,
        ) {
            let claims = r#"{ claims = { tier = 2, "realm.roles" = ["reader", ["editor"], 7] } }"#;
            let token = token.replace("CLAIMS", claims);
            let text = format!(
                "[[route]]\npath = \"/a/{{one}}/{{two}}\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = {policy}\n\
                 [[test]]\nrequest = \"GET /a/{path}\"\ntoken = {token}\ndecision = \"{decision}\"\n"
            );
            if let Err(error) = read_tables(&text) {
                panic!("{error}\n{text}");
            }
        }
    }

    #[test]
    fn users_of_further_issuers_own_nothing() {
        let owner = OwnerRule {
            param: "id".to_owned(),
            segment: 0,
            foreign: ["https://partner".to_owned()].into(),
        };
        for (issuer, is_owner) in [("https://pool", true), ("https://partner", false)] {
            let user = User {
                issuer: issuer.into(),
                subject: "ada".into(),
                username: "ada".into(),
                client_id: "web".into(),
                scopes: Arc::new([]),
                groups: Arc::new([]),
                expires_at: i64::MAX,
                claims: Claims::default(),
            };
            assert_eq!(owner.is(&user, "/ada"), is_owner, "{issuer}");
        }
    }
}
