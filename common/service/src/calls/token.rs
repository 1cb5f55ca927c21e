//! A service token with its refresh and expiry times.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use postern_core::Secret;
use postern_core::clock::Timestamp;

/// Time before `exp` in which a token is no longer sent, for transmission and clock differences.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// Percentage of a token's lifetime by which it is refreshed before its end. A random part of up to
/// the same size is added, so that replicas that started together do not refresh together. A token
/// with a lifetime of one hour is refreshed 9 to 18 minutes before its end.
const REFRESH_AHEAD_PERCENT: u64 = 15;

/// A service token with its refresh and expiry times.
#[derive(Debug)]
pub(super) struct ServiceToken {
    pub(super) token: Secret,
    refresh_at: Timestamp,
    usable_until: Timestamp,
}

impl ServiceToken {
    /// Parses the times of a token received from the pool. The
    /// signature is verified by the recipient, not here. `random` is a random number, which
    /// spreads the refresh times. Returns
    /// `None` if the token is not a JWT with `exp`.
    pub(super) fn read(token: &str, now: Timestamp, random: u32) -> Option<Self> {
        let claims = claims(token)?;
        // A NumericDate may have a fraction (RFC 7519 section 2).
        let instant = |name| Some(claims.get(name)?.as_f64()?.floor() as i64);
        let expires = Timestamp::from_unix_seconds(instant("exp")?);
        let issued = instant("iat").map_or(now, Timestamp::from_unix_seconds);
        let lifetime = expires.since(issued);
        let percent = REFRESH_AHEAD_PERCENT + u64::from(random) % REFRESH_AHEAD_PERCENT;
        let ahead = i64::try_from(lifetime.as_millis() * u128::from(percent) / 100).ok()?;
        let margin = i64::try_from(EXPIRY_MARGIN.as_millis()).ok()?;
        Some(Self {
            token: Secret::from(token),
            refresh_at: Timestamp(expires.0 - ahead),
            usable_until: Timestamp(expires.0 - margin),
        })
    }

    /// Returns whether the token is valid and not due for refresh.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        now < self.refresh_at && self.is_usable(now)
    }

    /// Returns whether the token may be sent.
    pub(super) fn is_usable(&self, now: Timestamp) -> bool {
        now < self.usable_until
    }
}

/// Returns whether the token has `custom:service_id`; the pool decides whether its ID or its access
/// token does.
pub(super) fn has_service_id(token: &str) -> bool {
    let claims = claims(token).unwrap_or_default();
    let name = claims["custom:service_id"].as_str();
    name.is_some_and(|name| !name.is_empty())
}

/// Returns the claims without verifying the signature, or `None` if the token is not a JWT.
fn claims(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}
