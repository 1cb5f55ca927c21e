//! `load_balancing` and `consistent_key` of an upstream.

use http::HeaderName;
use postern_core::decode::{Field, Object, Value};

/// A load balancing algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadBalancing {
    /// Power of two choices: the less loaded of two random addresses (requests in flight times
    /// latency, which follows peaks at once).
    LeastLoaded,
    /// Weighted round robin.
    RoundRobin,
    /// Weighted random choice.
    Random,
    /// Consistent hashing (ketama) of a key of the request, so that requests with the same key keep
    /// using the same address.
    Consistent(ConsistentKey),
}

/// The key of a request that is hashed. A request without it is hashed by its client address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsistentKey {
    /// The first value of a header field.
    Header(HeaderName),
    /// The first value of a query parameter, as it is written in the target.
    Query(String),
    /// Issuer and subject of the verified token.
    Principal,
    /// The client address, as reported by trusted proxies.
    ClientAddress,
}

/// The names of the algorithms.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    LeastLoaded,
    RoundRobin,
    Random,
    Consistent,
}

// === impl LoadBalancing ===

impl LoadBalancing {
    /// Reads `load_balancing` and `consistent_key` of an upstream.
    pub(super) fn read(upstream: &Object<'_>) -> Self {
        let algorithm = upstream.or("load_balancing", Algorithm::LeastLoaded, |field| {
            field.one_of(&[
                ("least_loaded", Algorithm::LeastLoaded),
                ("round_robin", Algorithm::RoundRobin),
                ("random", Algorithm::Random),
                ("consistent", Algorithm::Consistent),
            ])
        });
        let key = upstream.optional("consistent_key", |field| {
            if algorithm != Algorithm::Consistent {
                let detail = "applies to load_balancing = \"consistent\" only";
                return field.fail("conflicting_fields", detail);
            }
            ConsistentKey::read(field)
        });
        match algorithm {
            Algorithm::LeastLoaded => Self::LeastLoaded,
            Algorithm::RoundRobin => Self::RoundRobin,
            Algorithm::Random => Self::Random,
            Algorithm::Consistent => Self::Consistent(key.unwrap_or(ConsistentKey::ClientAddress)),
        }
    }

    /// Returns the name of the algorithm, as it is configured.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::LeastLoaded => "least_loaded",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::Consistent(_) => "consistent",
        }
    }
}

// === impl ConsistentKey ===

impl ConsistentKey {
    const FORMAT: &str = "must be \"principal\", \"client_address\", { header = \"x-user\" } or \
                          { query = \"user\" }";

    fn read(field: Field<'_>) -> Option<Self> {
        if field.is("principal") {
            return Some(Self::Principal);
        } else if field.is("client_address") {
            return Some(Self::ClientAddress);
        } else if matches!(field.value(), Value::Object(_)) {
            return field.object(Self::read_table);
        }
        field.fail("invalid_choice", Self::FORMAT)
    }

    /// Reads `{ header = "…" }` or `{ query = "…" }`.
    fn read_table(table: &Object<'_>) -> Option<Self> {
        let header = table.optional("header", |field| {
            let name = HeaderName::from_bytes(field.string()?.as_bytes());
            name.ok()
                .or_else(|| field.fail("invalid_format", "must be the name of a header field"))
        });
        let query = table.optional("query", |field| field.text(1..=256));
        match (header, query, table.has("header"), table.has("query")) {
            (Some(name), _, true, false) => Some(Self::Header(name)),
            (_, Some(name), false, true) => Some(Self::Query(name)),
            (_, _, true, true) => {
                table.fail("conflicting_fields", "header and query exclude one another");
                None
            }
            (_, _, false, false) => {
                table.fail("missing_field", "header or query is required");
                None
            }
            // The mistake in the value is recorded already.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use postern_core::config::parse;

    use super::*;

    fn read(text: &str) -> Result<LoadBalancing, String> {
        parse("p.toml", text, |root| Some(LoadBalancing::read(root)))
            .map_err(|exit| exit.message().to_owned())
    }

    #[test]
    fn algorithms_and_keys_are_read() {
        let consistent = |key: &str| read(&format!("load_balancing = \"consistent\"\n{key}"));
        assert_eq!(read(""), Ok(LoadBalancing::LeastLoaded));
        for name in ["least_loaded", "round_robin", "random", "consistent"] {
            let found = read(&format!("load_balancing = \"{name}\"")).expect("an algorithm");
            assert_eq!(found.name(), name);
        }
        for (key, expected) in [
            ("", ConsistentKey::ClientAddress),
            (
                "consistent_key = \"client_address\"",
                ConsistentKey::ClientAddress,
            ),
            ("consistent_key = \"principal\"", ConsistentKey::Principal),
            (
                "consistent_key = { header = \"X-User\" }",
                ConsistentKey::Header(HeaderName::from_static("x-user")),
            ),
            (
                "consistent_key = { query = \"user\" }",
                ConsistentKey::Query("user".to_owned()),
            ),
        ] {
            assert_eq!(consistent(key), Ok(LoadBalancing::Consistent(expected)));
        }
    }

    #[test]
    fn mistakes_in_load_balancing_are_explained() {
        for (text, message) in [
            (
                "load_balancing = \"least-loaded\"",
                "must be one of least_loaded, round_robin, random, consistent",
            ),
            (
                "consistent_key = \"principal\"",
                "applies to load_balancing = \"consistent\" only",
            ),
            (
                "load_balancing = \"consistent\"\nconsistent_key = \"path\"",
                "must be \"principal\"",
            ),
            (
                "load_balancing = \"consistent\"\nconsistent_key = { header = \"a\", query = \"b\" }",
                "exclude one another",
            ),
            (
                "load_balancing = \"consistent\"\nconsistent_key = {}",
                "header or query is required",
            ),
            (
                "load_balancing = \"consistent\"\nconsistent_key = { header = \"a b\" }",
                "must be the name of a header field",
            ),
        ] {
            let found = read(text).expect_err(text);
            assert!(found.contains(message), "{found}");
        }
    }
}
