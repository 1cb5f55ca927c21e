//! Addresses of actors, from the actor service.

use std::time::Duration;

use postern_common::service::{ServiceClient, ServiceTokenError};
use serde_json::Value;
use url::Url;

use crate::address::{
    ActorId, Address, DeviceToken, E164, EmailAddress, Subscription, SubscriptionKeys, is_public_https,
};
use crate::notification::Channel;

/// Asks the actor service, with our own service token.
#[derive(Clone, Debug)]
pub struct Actors {
    base: Url,
    client: ServiceClient,
}

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAddress {
    /// The actor service does not know this actor.
    Unknown,
    /// The actor has no address for this channel, or one that is not well-formed.
    NotThere,
    /// The actor service refuses us, or our service account is wrong.
    Misconfigured,
    /// The actor service or the service pool is away.
    Unavailable,
}

/// Deadline of one question.
const DEADLINE: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 << 10;

// === impl Actors ===

impl Actors {
    /// Asks at `base`, such as `http://127.0.0.1:8504`.
    #[must_use]
    pub fn new(base: Url, client: ServiceClient) -> Self {
        Self { base, client }
    }

    /// Where a channel reaches an actor.
    ///
    /// # Errors
    /// Why not.
    pub async fn address(&self, actor: &ActorId, channel: Channel) -> Result<Address, NoAddress> {
        let asked = tokio::time::timeout(DEADLINE, self.ask(actor));
        let profile = asked.await.unwrap_or(Err(NoAddress::Unavailable))?;
        address_of(&profile, channel).ok_or(NoAddress::NotThere)
    }

    async fn ask(&self, actor: &ActorId) -> Result<Value, NoAddress> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| NoAddress::Misconfigured)?
            .pop_if_empty()
            .extend(["actors", actor.as_str()]);
        let request =
            self.client.request(http::Method::GET, url, None).await.map_err(|error| match error {
                ServiceTokenError::Unavailable(_) => NoAddress::Unavailable,
                ServiceTokenError::NotConfigured | ServiceTokenError::Refused(_) => NoAddress::Misconfigured,
            })?;
        let mut response = request.send().await.map_err(|_| NoAddress::Unavailable)?;
        match response.status().as_u16() {
            200 => {}
            404 | 410 => return Err(NoAddress::Unknown),
            401 | 403 => return Err(NoAddress::Misconfigured),
            _ => return Err(NoAddress::Unavailable),
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| NoAddress::Unavailable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER {
                return Err(NoAddress::Unavailable);
            }
        }
        serde_json::from_slice(&body).map_err(|_| NoAddress::Unavailable)
    }
}

fn address_of(profile: &Value, channel: Channel) -> Option<Address> {
    let text = |name| profile.get(name).and_then(Value::as_str);
    match channel {
        Channel::Email => EmailAddress::parse(text("email")?).map(Address::Email),
        Channel::Sms => E164::parse(text("phone")?).map(Address::Phone),
        Channel::Push => match text("deviceToken") {
            Some(token) => DeviceToken::parse(token).map(Address::DeviceToken),
            None => subscription_of(profile.get("subscription")?).map(Address::Subscription),
        },
    }
}

fn subscription_of(value: &Value) -> Option<Subscription> {
    let endpoint = value.get("endpoint")?.as_str()?;
    let key = |name| value.get("keys")?.get(name)?.as_str().map(|key| key.trim_end_matches('=').to_owned());
    let keys = SubscriptionKeys { p256dh: key("p256dh")?, auth: key("auth")? };
    is_public_https(&Url::parse(endpoint).ok()?).then(|| Subscription { endpoint: endpoint.to_owned(), keys })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_channel_reads_its_own_field() {
        let profile =
            json!({"actorId": "a", "email": "ada@example.com", "phone": "+491701234567", "deviceToken": "t"});
        for channel in Channel::ALL {
            assert_eq!(address_of(&profile, channel).map(|address| address.channel()), Some(channel));
        }
        assert!(address_of(&json!({"email": "a@b\r\nRCPT"}), Channel::Email).is_none());
        assert!(address_of(&json!({"email": "a@example.com"}), Channel::Sms).is_none());
    }
}
