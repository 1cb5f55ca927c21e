use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::Secret;
use crate::clock::Timestamp;

/// A token is not sent in the last seconds before its `exp`: it has a way to go, and clocks differ.
const MARGIN: Duration = Duration::from_secs(10);

/// Where in its life a token is refreshed: with this share of it left, and up to as much again by
/// chance, so that replicas that started together do not refresh together. Of an hour: 9 to 18
/// minutes before the end.
const AHEAD_PERCENT: u64 = 15;

/// A service token and what its times mean.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Secret,
    refresh_at: Timestamp,
    usable_until: Timestamp,
}

// === impl Held ===

impl Held {
    /// Reads the times of a token that comes from the pool, or from our own sealed copy: its
    /// signature is for those who receive it. `chance` is anything; `None` if it is no JWT with an
    /// `exp`.
    pub(super) fn read(token: &str, now: Timestamp, chance: u32) -> Option<Self> {
        let claims = claims(token)?;
        let expires = Timestamp::from_unix_seconds(claims.get("exp")?.as_i64()?);
        let issued = claims
            .get("iat")
            .and_then(Value::as_i64)
            .map_or(now, Timestamp::from_unix_seconds);
        let life = expires.since(issued);
        let percent = AHEAD_PERCENT + u64::from(chance) % AHEAD_PERCENT;
        let ahead = i64::try_from(life.as_millis() * u128::from(percent) / 100).ok()?;
        let margin = i64::try_from(MARGIN.as_millis()).ok()?;
        Some(Self {
            token: Secret::from(token),
            refresh_at: Timestamp(expires.0 - ahead),
            usable_until: Timestamp(expires.0 - margin),
        })
    }

    /// Valid, and for long enough that nothing needs to be done.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        now < self.refresh_at && self.is_usable(now)
    }

    pub(super) fn is_usable(&self, now: Timestamp) -> bool {
        now < self.usable_until
    }

    /// How long another may use it.
    pub(super) fn remaining(&self, now: Timestamp) -> Duration {
        self.usable_until.since(now)
    }
}

/// Whether the token says which service it is for; the pool decides which of its two tokens does.
pub(super) fn names_a_service(token: &str) -> bool {
    let claims = claims(token);
    let name = claims
        .as_ref()
        .and_then(|claims| claims.get("custom:service_id"))
        .and_then(Value::as_str);
    name.is_some_and(|name| !name.is_empty())
}

fn claims(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}
