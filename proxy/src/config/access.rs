//! `access`: lists of client addresses that a listener or a route accepts.

use std::fmt;
use std::net::IpAddr;

use postern_core::network::IpNetwork;
use postern_core::settings;

settings! {
    /// [Client addresses](../manual/gateway.md#access-lists) that may use a route; others get 403.
    ///
    /// An address in neither list is accepted only if there is no `allow`. An unknown address is never
    /// accepted.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AccessList(table) {
        /// Accepted networks; others are refused.
        allow: Option<Vec<IpNetwork>> = None ("all")
            => |field| field.non_empty_array(IpNetwork::read),
        /// Refused networks; takes precedence over `allow`.
        deny: Vec<IpNetwork> = { Some(Vec::new()) } ("none")
            => |field| field.non_empty_array(IpNetwork::read),
    } => {
        if !table.has("allow") && !table.has("deny") {
            table.fail("missing_field", "must have allow or deny");
        }
    }
}

impl AccessList {
    /// Returns whether the list accepts the address; `None` is an unknown one.
    #[must_use]
    pub fn accepts(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address else {
            return false;
        };
        let is_in = |networks: &[IpNetwork]| networks.iter().any(|it| it.contains(address));
        !is_in(&self.deny) && self.allow.as_deref().is_none_or(is_in)
    }

    pub(crate) fn networks(&self) -> impl Iterator<Item = &IpNetwork> {
        self.allow.iter().flatten().chain(&self.deny)
    }
}

impl fmt::Display for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |networks: &[IpNetwork]| {
            let shown: Vec<String> = networks.iter().map(ToString::to_string).collect();
            shown.join(", ")
        };
        match (&self.allow, self.deny.is_empty()) {
            (None, _) => write!(f, "all but {}", join(&self.deny)),
            (Some(allow), true) => write!(f, "only {}", join(allow)),
            (Some(allow), false) => {
                write!(f, "only {}, but not {}", join(allow), join(&self.deny))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use postern_core::config::parse;

    use super::*;
    use crate::tests::rows;

    fn read(list: &str) -> Result<AccessList, String> {
        let read = parse("t.toml", &format!("access = {list}\n"), |root| {
            root.section("access", AccessList::read)
        });
        read.map_err(|exit| exit.message().to_owned())
    }

    #[test]
    fn list_without_effect_is_rejected() {
        for [list, wrong] in rows(
            r#"
            {} | access: must have allow or deny
            { allow = [] } | access.allow: must not be empty
            { deny = [] } | access.deny: must not be empty
            { allow = ["all"] } | access.allow.0: must be a network such as 10.0.0.0/8
            "#,
        ) {
            assert_eq!(read(&list), Err(format!("t.toml:1: {wrong}")), "{list}");
        }
    }
}
