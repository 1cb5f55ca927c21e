//! Recipient addresses. A value of these types is always well-formed.
//!
//! Input: text of requests, profiles and the configuration. Output: addresses, or `None`. Depends
//! on `notification` for the channel.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::decode::{Field, Object};
use postern_core::email::EmailAddress;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::notification::Channel;

/// A telephone number in E.164: `+`, a digit from 1 to 9, and 6 to 14 more.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct PhoneNumber(String);

/// An FCM registration token: 1 to 4096 visible ASCII characters.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct DeviceToken(String);

/// A Web Push subscription of a browser (W3C Push API). The endpoint is an `https` URL of a public
/// host.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct PushSubscription {
    /// URL of the push service for this browser.
    pub(crate) endpoint: String,
    pub(crate) keys: SubscriptionKeys,
}

/// The keys of a subscription, base64url without padding.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SubscriptionKeys {
    /// The browser's public key: an uncompressed P-256 point.
    pub(crate) p256dh: String,
    /// The shared secret, 16 bytes.
    pub(crate) auth: String,
}

/// Identifier of a person at the actor service: 1 to 128 of `A-Z a-z 0-9 - _ . : @`, which is a
/// single path segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ActorId(String);

/// The recipient of a notification.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Recipient {
    /// A person whose address is looked up at the actor service.
    ActorId(ActorId),
    /// An address given in the request.
    #[serde(untagged)]
    Address(Address),
}

/// The destination of a message.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Address {
    Email(EmailAddress),
    Phone(PhoneNumber),
    /// A push message through FCM.
    DeviceToken(DeviceToken),
    /// A push message through Web Push.
    Subscription(PushSubscription),
}

/// SHA-256 digest of an address.
pub(crate) type AddressHash = [u8; 32];

macro_rules! debug_as_type_name {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!("[", stringify!($name), "]"))
            }
        }
    )*};
}
// Addresses are not logged.
debug_as_type_name!(
    PhoneNumber,
    DeviceToken,
    PushSubscription,
    SubscriptionKeys,
    Address,
    Recipient
);

// === impl PhoneNumber ===

impl PhoneNumber {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('+')?;
        let is_valid = (7..=15).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.starts_with('0');
        is_valid.then(|| Self(text.to_owned()))
    }

    /// Returns the number including `+`.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl DeviceToken ===

impl DeviceToken {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_valid =
            (1..=4096).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl ActorId ===

impl ActorId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
        let is_valid = (1..=128).contains(&text.len()) && text.bytes().all(is_allowed);
        (is_valid && text != "." && text != "..").then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl PushSubscription ===

impl PushSubscription {
    /// Parses a subscription as browsers serialize it. `expirationTime` is accepted and ignored.
    pub(crate) fn read(object: &Object<'_>) -> Option<Self> {
        object.has("expirationTime");
        let endpoint = object.required("endpoint", |field| {
            let url = Some(field.url()?).filter(is_public_https);
            let rejected = || field.reject("endpoint_not_allowed", "must be a public https URL");
            url.map(String::from).or_else(rejected)
        });
        let keys = object.required("keys", |field| {
            field.object(|keys| {
                let key = |field: Field<'_>, bytes| {
                    let key = key_bytes(field.string()?, bytes);
                    let detail = || format!("must be {bytes} bytes in base64url");
                    key.or_else(|| field.fail("invalid_format", detail()))
                };
                let p256dh = keys.required("p256dh", |field| key(field, 65));
                let auth = keys.required("auth", |field| key(field, 16));
                Some(SubscriptionKeys {
                    p256dh: URL_SAFE_NO_PAD.encode(p256dh?),
                    auth: URL_SAFE_NO_PAD.encode(auth?),
                })
            })
        });
        Some(Self {
            endpoint: endpoint?,
            keys: keys?,
        })
    }
}

/// Decodes base64url, or base64 as `btoa` writes it.
pub(crate) fn base64_bytes(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').replace('+', "-");
    URL_SAFE_NO_PAD.decode(text.replace('/', "_")).ok()
}

/// Decodes a key of this many bytes, see [`base64_bytes`].
pub(crate) fn key_bytes(text: &str, bytes: usize) -> Option<Vec<u8>> {
    base64_bytes(text).filter(|decoded| decoded.len() == bytes)
}

/// Returns whether a caller may choose this URL: `https`, the default port, and a host name or
/// public address. The addresses that the name resolves to are checked again before each call.
pub(crate) fn is_public_https(url: &Url) -> bool {
    let public_host = match url.host() {
        Some(Host::Domain(name)) => is_public_name(name),
        Some(Host::Ipv4(address)) => is_public(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => is_public(IpAddr::V6(address)),
        None => false,
    };
    let has_user = !url.username().is_empty() || url.password().is_some();
    url.scheme() == "https" && url.port().is_none() && !has_user && public_host
}

/// Returns whether a push service can write to this contact (RFC 8292 section 2.1): `mailto:` and an
/// address, or an `https` URL, of a public host.
pub(crate) fn is_public_contact(text: &str) -> bool {
    match text.strip_prefix("mailto:") {
        Some(text) => EmailAddress::parse(text).is_some_and(|it| is_public_name(it.parts().1)),
        None => Url::parse(text).is_ok_and(|url| is_public_https(&url)),
    }
}

/// Top-level names of which no public server exists: RFC 2606 section 2, RFC 6761, 6762, 7686 and
/// 9476, `home.arpa` (RFC 8375), and the name that ICANN reserves for private use.
const SPECIAL_USE_NAMES: [&str; 9] = [
    "alt",
    "arpa",
    "example",
    "internal",
    "invalid",
    "local",
    "localhost",
    "onion",
    "test",
];

/// Returns whether a host name can be one of a public server. A final dot is another spelling.
fn is_public_name(name: &str) -> bool {
    let top = name.rsplit_once('.').map_or("", |(_, top)| top);
    !top.is_empty() && !SPECIAL_USE_NAMES.contains(&top)
}

/// Returns whether an address is publicly routable (IANA special-purpose registries).
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || a == 0
                || a >= 224
                || (a == 100 && (64..128).contains(&b))
                || (a == 192 && b == 0 && c == 0)
                || (a == 192 && b == 88 && c == 99)
                || (a == 198 && (b == 18 || b == 19)))
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_public(IpAddr::V4(v4)),
            // Global unicast is 2000::/3. The documentation prefixes are excluded, protocol
            // assignments (2001::/23), and 6to4 and Teredo, which can embed a private IPv4 address.
            None => {
                let [first, second, ..] = v6.segments();
                (first & 0xe000) == 0x2000
                    && !(first == 0x2001 && (second == 0x0db8 || second < 0x0200))
                    && !(first == 0x3fff && second < 0x1000)
                    && first != 0x2002
            }
        },
    }
}

// === impl Recipient ===

impl Recipient {
    /// Parses the `recipient` of a request: exactly one address or actor, of the type that the
    /// channel requires.
    pub(crate) fn read(field: &Field<'_>, channel: Option<Channel>) -> Option<Self> {
        let found = field.object(|object| {
            let actor = object.optional("actorId", |field| parsed(field, ActorId::parse));
            let email = object.optional("email", EmailAddress::read);
            let phone = object.optional("phone", |field| parsed(field, PhoneNumber::parse));
            let token = object.optional("deviceToken", |field| parsed(field, DeviceToken::parse));
            let subscription =
                object.optional("subscription", |field| field.object(PushSubscription::read));
            let named = ["actorId", "email", "phone", "deviceToken", "subscription"];
            let (none, several) = (
                "must name one of actorId, email, phone, deviceToken, subscription",
                "must name exactly one way to reach the person",
            );
            match named.into_iter().filter(|name| object.has(name)).count() {
                1 => {}
                0 => object.fail("missing_field", none),
                _ => object.fail("ambiguous_recipient", several),
            }
            let address = email.map(Address::Email).or(phone.map(Address::Phone));
            let push = token.map(Address::DeviceToken);
            let address = address.or(push).or(subscription.map(Address::Subscription));
            actor.map(Self::ActorId).or(address.map(Self::Address))
        })?;
        match (channel, found.address().map(Address::channel)) {
            (Some(wanted), Some(has)) if wanted != has => {
                let detail = format!("does not fit the channel {}", wanted.as_str());
                field.reject("recipient_mismatch", detail)
            }
            _ => Some(found),
        }
    }

    /// Returns the text that identifies the recipient: the address as [`Address::key`], or the actor
    /// id.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Address(address) => address.key(),
            Self::ActorId(actor) => actor.as_str(),
        }
    }

    /// Returns the name of the member that holds the recipient in a request.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::ActorId(_) => "actorId",
            Self::Address(Address::Email(_)) => "email",
            Self::Address(Address::Phone(_)) => "phone",
            Self::Address(Address::DeviceToken(_)) => "deviceToken",
            Self::Address(Address::Subscription(_)) => "subscription",
        }
    }

    /// Returns the address, or `None` for an actor.
    pub(crate) fn address(&self) -> Option<&Address> {
        match self {
            Self::Address(address) => Some(address),
            Self::ActorId(_) => None,
        }
    }
}

fn parsed<T>(field: Field<'_>, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    parse(field.string()?).or_else(|| field.fail("invalid_format", "is not well-formed"))
}

impl From<Address> for Recipient {
    fn from(address: Address) -> Self {
        Self::Address(address)
    }
}

// === impl Address ===

impl Address {
    /// Returns the channel that delivers to this address.
    pub(crate) fn channel(&self) -> Channel {
        match self {
            Self::Email(_) => Channel::Email,
            Self::Phone(_) => Channel::Sms,
            Self::DeviceToken(_) | Self::Subscription(_) => Channel::Push,
        }
    }

    /// Returns the SHA-256 digest of the lowercased address, which is stored in place of the
    /// address.
    pub(crate) fn hash(&self) -> AddressHash {
        hash(self.key())
    }

    /// Returns the text that identifies this address in the suppression list.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Email(email) => email.as_str(),
            Self::Phone(phone) => phone.as_str(),
            Self::DeviceToken(token) => token.as_str(),
            Self::Subscription(subscription) => &subscription.endpoint,
        }
    }
}

/// Returns the digest of an address given as text.
pub(crate) fn hash(text: &str) -> AddressHash {
    use sha2::Digest;
    sha2::Sha256::digest(canonical(text).to_ascii_lowercase()).into()
}

/// Returns an address as [`EmailAddress`] stores it, with an international domain in ASCII. Any
/// other text is returned unchanged.
pub(crate) fn canonical(text: &str) -> String {
    let email = EmailAddress::parse(text);
    email.map_or_else(|| text.to_owned(), |email| email.as_str().to_owned())
}

/// Returns the key by which notifications to an address or actor are found: the first 8 bytes of
/// [`hash`]. Different recipients may share a key, so that the recipient is compared as well.
pub(crate) fn recipient_key(text: &str) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = hash(text);
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Returns the [`recipient_key`] of a stored recipient.
pub(crate) fn recipient_key_of(recipient: &str) -> Option<i64> {
    let recipient: Recipient = serde_json::from_str(recipient).ok()?;
    Some(recipient_key(recipient.key()))
}

#[cfg(test)]
mod tests;
