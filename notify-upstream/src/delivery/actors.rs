//! Addresses of actors, requested from the actor service: at acceptance, so that the caller learns
//! that there is none, and again at delivery, since they may have changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use postern_core::decode::{self, Mistakes};
use postern_core::dependency::{Dependencies, Dependency, origin, root_cause};
use postern_core::email::EmailAddress;
use postern_core::network::read_body;
use postern_core::trace;
use postern_service::calls::{ServiceClient, ServiceTokenError};
use serde_json::{Value, json};
use url::Url;

use crate::address::{ActorId, Address, DeviceToken, PhoneNumber, PushSubscription};
use crate::notification::{Channel, PerChannel};
use crate::principal::Principal;

/// A client of the actor service.
#[derive(Clone, Debug)]
pub(crate) struct ActorClient {
    base: Url,
    client: ServiceClient,
    policy: UserAddressPolicy,
    /// Shared by the clones.
    availability: Arc<Dependency>,
}

/// Decides to which addresses in their own profile users may have messages sent. Users can write
/// any address into their profile; if that sufficed, they could have messages sent to other people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserAddressPolicy {
    /// Users may address any recipient, so that ownership of an address is irrelevant.
    pub(crate) anyone: bool,
    /// Channels on which an address is allowed if the actor service does not say whether it is
    /// verified.
    pub(crate) unverified: PerChannel<bool>,
}

/// The address of an actor on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActorAddress {
    pub(crate) address: Address,
    /// Whether the creator may have any message sent to the address: a service, or a user whose
    /// address is verified.
    pub(crate) is_trusted: bool,
}

/// The reason why an actor has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActorAddressError {
    /// The actor service does not know the actor.
    Unknown,
    /// The actor has no well-formed address for the channel.
    Missing,
    /// The actor service rejects the credentials of this process, or they are not configured.
    Misconfigured,
    /// The actor service or the service pool is unavailable.
    Unavailable,
}

/// The profiles of the actors that a request addresses. Those that the actor service did not return
/// in time are unavailable: their notifications are accepted, and decided at delivery.
#[derive(Debug, Default)]
pub(crate) struct AddressedActors(HashMap<ActorId, Result<Value, ActorAddressError>>);

/// Timeout of the lookups for one acceptance.
const ACCEPTANCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent lookups for one batch.
const CONCURRENT_LOOKUPS: usize = 16;
/// Timeout of one request.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response.
const MAX_PROFILE_BYTES: usize = 64 << 10;

// === impl ActorClient ===

impl ActorClient {
    /// Creates a client of the service at `base`, such as `http://127.0.0.1:8504`.
    pub(crate) fn new(
        base: Url,
        client: ServiceClient,
        policy: UserAddressPolicy,
        dependencies: &Dependencies,
    ) -> Self {
        Self {
            availability: dependencies.optional("actor_service", origin(&base)).into(),
            base,
            client,
            policy,
        }
    }

    /// Returns the address of an actor on a channel, for a notification of `creator`.
    pub(crate) async fn address(
        &self,
        actor: &ActorId,
        channel: Channel,
        creator: &str,
    ) -> Result<ActorAddress, ActorAddressError> {
        self.address_in(&self.profile(actor).await?, channel, creator)
    }

    fn address_in(
        &self,
        profile: &Value,
        channel: Channel,
        creator: &str,
    ) -> Result<ActorAddress, ActorAddressError> {
        let is_verified = self.policy.allow(channel, is_verified(profile, channel));
        Ok(ActorAddress {
            address: address_of(profile, channel).ok_or(ActorAddressError::Missing)?,
            is_trusted: !Principal::is_user(creator) || is_verified,
        })
    }

    /// Requests the profiles of the actors that the notifications of a request address.
    pub(crate) async fn addressed(&self, actors: HashSet<ActorId>) -> AddressedActors {
        let lookups = actors.into_iter().map(|actor| async move {
            let profile = self.profile(&actor).await;
            (actor, profile)
        });
        let mut lookups = futures_util::stream::iter(lookups).buffer_unordered(CONCURRENT_LOOKUPS);
        let mut found = AddressedActors::default();
        let all = async {
            while let Some((actor, profile)) = lookups.next().await {
                found.0.insert(actor, profile);
            }
        };
        let _those_in_time = tokio::time::timeout(ACCEPTANCE_TIMEOUT, all).await;
        found
    }

    /// Returns the address of an actor that a request addresses, as [`Self::address`].
    pub(crate) fn address_of(
        &self,
        actor: &ActorId,
        among: &AddressedActors,
        channel: Channel,
        creator: &str,
    ) -> Result<ActorAddress, ActorAddressError> {
        match among.0.get(actor) {
            Some(Ok(profile)) => self.address_in(profile, channel, creator),
            Some(Err(error)) => Err(*error),
            None => Err(ActorAddressError::Unavailable),
        }
    }

    /// Returns the addresses of its own that an actor may send to.
    pub(crate) async fn own_addresses(
        &self,
        actor: &ActorId,
    ) -> Result<Vec<Address>, ActorAddressError> {
        let profile = self.profile(actor).await?;
        let is_allowed =
            |channel: &Channel| self.policy.allow(*channel, is_verified(&profile, *channel));
        let allowed = Channel::ALL.into_iter().filter(is_allowed);
        let addresses = allowed.filter_map(|channel| address_of(&profile, channel));
        Ok(addresses.collect())
    }

    async fn profile(&self, actor: &ActorId) -> Result<Value, ActorAddressError> {
        let asked = tokio::time::timeout(LOOKUP_TIMEOUT, self.fetch_profile(actor));
        asked.await.unwrap_or_else(|_| {
            self.record_timeout();
            Err(ActorAddressError::Unavailable)
        })
    }

    /// Records that the timeout of the lookup or that of the client, which is as long, has passed.
    fn record_timeout(&self) {
        let seconds = LOOKUP_TIMEOUT.as_secs();
        let cause = format_args!("no answer within {seconds} s");
        self.availability.record_failure(cause);
    }

    async fn fetch_profile(&self, actor: &ActorId) -> Result<Value, ActorAddressError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ActorAddressError::Misconfigured)?
            .pop_if_empty()
            .extend(["actors", actor.as_str()]);
        let request = self.client.request(http::Method::GET, url).await;
        let request = request.map_err(|error| match error {
            ServiceTokenError::Unavailable(_) => ActorAddressError::Unavailable,
            ServiceTokenError::NotConfigured | ServiceTokenError::Refused(_) => {
                ActorAddressError::Misconfigured
            }
        })?;
        let response = trace::send(request).await.map_err(|error| {
            if error.is_timeout() {
                self.record_timeout();
            } else {
                let cause = root_cause(&error.without_url());
                self.availability.record_failure(cause);
            }
            ActorAddressError::Unavailable
        })?;
        let status = response.status();
        match status.as_u16() {
            code @ 500.. => self
                .availability
                .record_failure(format_args!("status {code}")),
            _ => self.availability.record_success(),
        }
        match status.as_u16() {
            200 => {}
            404 | 410 => return Err(ActorAddressError::Unknown),
            401 | 403 => return Err(ActorAddressError::Misconfigured),
            _ => return Err(ActorAddressError::Unavailable),
        }
        let body = read_body(response, MAX_PROFILE_BYTES).await;
        let body = body.ok().flatten().ok_or(ActorAddressError::Unavailable)?;
        serde_json::from_slice(&body).map_err(|_| ActorAddressError::Unavailable)
    }
}

// === impl UserAddressPolicy ===

impl UserAddressPolicy {
    /// Returns whether a user may send to its own address, given what the actor service says of its
    /// verification.
    fn allow(&self, channel: Channel, verified: Option<bool>) -> bool {
        self.anyone || verified.unwrap_or(*self.unverified.get(channel))
    }
}

/// Returns whether the actor service says that the address is verified: `emailVerified`,
/// `phoneVerified`, `deviceVerified`. Any value but `true` means no. A device token or subscription
/// in a profile proves nothing: users can write those of others there.
fn is_verified(profile: &Value, channel: Channel) -> Option<bool> {
    let name = match channel {
        Channel::Email => "emailVerified",
        Channel::Sms => "phoneVerified",
        Channel::Push => "deviceVerified",
    };
    profile.get(name).map(|value| value == &Value::Bool(true))
}

fn address_of(profile: &Value, channel: Channel) -> Option<Address> {
    let text = |name| profile.get(name).and_then(Value::as_str);
    match channel {
        Channel::Email => EmailAddress::parse(text("email")?).map(Address::Email),
        Channel::Sms => PhoneNumber::parse(text("phone")?).map(Address::Phone),
        Channel::Push => match text("deviceToken") {
            Some(token) => DeviceToken::parse(token).map(Address::DeviceToken),
            None => subscription_of(profile.get("subscription")?).map(Address::Subscription),
        },
    }
}

fn subscription_of(value: &Value) -> Option<PushSubscription> {
    let key = |name| value.get("keys")?.get(name);
    let known = json!({
        "endpoint": value.get("endpoint")?, "keys": {"p256dh": key("p256dh")?, "auth": key("auth")?}
    });
    let mistakes = Mistakes::default();
    let node = decode::json(known.to_string().as_bytes(), &mistakes)?;
    let read = mistakes.field(&node).object(PushSubscription::read);
    mistakes.finish(read).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_uses_its_own_profile_field() {
        let profile = json!({"actorId": "a", "email": "ada@example.com", "phone": "+491701234567", "deviceToken": "t"});
        for channel in Channel::ALL {
            let address = address_of(&profile, channel).expect("an address");
            assert_eq!(address.channel(), channel);
        }
        assert!(address_of(&json!({"email": "a@b\r\nRCPT"}), Channel::Email).is_none());
        assert!(address_of(&json!({"email": "a@example.com"}), Channel::Sms).is_none());
    }

    #[test]
    fn unverified_profile_address_is_not_trusted() {
        let shipped = UserAddressPolicy {
            anyone: false,
            unverified: PerChannel::default(),
        };
        let wide = UserAddressPolicy {
            unverified: PerChannel::from_fn(|channel| channel != Channel::Sms),
            ..shipped
        };
        let anyone = UserAddressPolicy {
            anyone: true,
            ..shipped
        };
        let silent =
            json!({"email": "a@example.com", "phone": "+491701234567", "deviceToken": "t"});
        let allowed = |policy: UserAddressPolicy, profile: &Value| {
            Channel::ALL.map(|channel| policy.allow(channel, is_verified(profile, channel)))
        };
        assert_eq!(allowed(shipped, &silent), [false; 3]);
        assert_eq!(allowed(wide, &silent), [true, false, true]);
        assert_eq!(allowed(anyone, &silent), [true; 3]);
        let verified =
            json!({"emailVerified": true, "phoneVerified": true, "deviceVerified": true});
        assert_eq!(allowed(shipped, &verified), [true; 3]);
        for no in [json!(false), json!("true"), json!(null), json!(1)] {
            let profile = json!({"emailVerified": no, "phoneVerified": no, "deviceVerified": no});
            assert_eq!(allowed(wide, &profile), [false; 3], "{no}");
        }
    }
}
